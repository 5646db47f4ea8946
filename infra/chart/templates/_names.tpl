{{/* Names, labels, images and addresses. Every helper takes the root context, or a dict with it as "root". */}}

{{- define "tabloop.fullname" -}}
{{- $name := contains "tabloop" .Release.Name | ternary .Release.Name (printf "%s-tabloop" .Release.Name) }}
{{- $name | replace "." "-" | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "tabloop.selector" -}}
app.kubernetes.io/name: tabloop
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "tabloop.labels" -}}
{{ include "tabloop.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "tabloop.image" -}}
{{- $image := .root.Values.image }}
{{- $digest := get $image.digests .target }}
{{- if $digest }}{{ printf "%s-%s@%s" $image.repository .target $digest }}
{{- else }}{{ printf "%s-%s:%s" $image.repository .target (default .root.Chart.AppVersion $image.tag) }}{{ end }}
{{- end }}

{{/* The name of a Service as pods of the cluster resolve it. */}}
{{- define "tabloop.host" -}}
{{ .name }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end }}

{{/* The Service of a slot's engines. */}}
{{- define "tabloop.engineService" -}}
{{- $name := include "tabloop.fullname" .root }}
{{- eq .root.Values.engines.layout "slots" | ternary (printf "%s-engine-%d" $name (int .slot)) (printf "%s-engines" $name) }}
{{- end }}

{{/* The port of a slot's engines. */}}
{{- define "tabloop.enginePort" -}}
{{- if eq .root.Values.engines.layout "pool" }}18100{{ else }}{{ add 18100 (int .slot) }}{{ end }}
{{- end }}

{{- define "tabloop.secret" -}}
{{- get .root.Values.secrets .of | default .root.Values.secrets.existingSecret }}
{{- end }}

{{/* The most engines of a StatefulSet. */}}
{{- define "tabloop.engineReplicas" -}}
{{- $engines := .Values.engines }}
{{- $engines.autoscaling.enabled | ternary $engines.autoscaling.maxReplicas $engines.replicas | int }}
{{- end }}

{{/* The value that gives that number. */}}
{{- define "tabloop.engineReplicasValue" -}}
engines.{{ .Values.engines.autoscaling.enabled | ternary "autoscaling.maxReplicas" "replicas" }}
{{- end }}

{{/* GPUs that engines, evaluation and training ask for together. */}}
{{- define "tabloop.gpus" -}}
{{- $v := .Values }}
{{- $pods := mul (include "tabloop.engineReplicas" . | int) (ternary (len $v.engines.slots) 1 (eq $v.engines.layout "slots")) }}
{{- $evaluation := ternary (int $v.evaluation.gpus) 0 $v.evaluation.enabled }}
{{- $training := ternary (mul (int $v.settings.train.nodes) (int $v.settings.train.processes)) 0 $v.training.enabled }}
{{- add (mul $pods (int $v.engines.gpus)) $evaluation $training }}
{{- end }}

{{- define "tabloop.engineUpdates" -}}
{{- $engines := .Values.engines }}
{{- $least := $engines.autoscaling.enabled | ternary $engines.autoscaling.minReplicas $engines.replicas | int }}
{{- $one := eq $least 1 }}
{{- $alone := and (eq $engines.layout "slots") $one (gt (len $engines.slots) 1) }}
{{- $alone | ternary "OnDelete" "RollingUpdate" }}
{{- end }}
