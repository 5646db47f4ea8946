{{/* The settings as a TOML file. YAML has one kind of number, so a whole number is written without a point. */}}

{{- define "tabloop.tomlKey" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ toJson . }}{{ end }}
{{- end }}

{{- define "tabloop.tomlValue" -}}
{{- if kindIs "map" . -}}
{{- $pairs := list }}
{{- range $key, $value := . }}
{{- if not (kindIs "invalid" $value) }}
{{- $pairs = append $pairs (printf "%s = %s" (include "tabloop.tomlKey" $key) (include "tabloop.tomlValue" $value)) }}
{{- end }}
{{- end -}}
{ {{ join ", " $pairs }} }
{{- else if kindIs "slice" . -}}
{{- $items := list }}
{{- range . }}{{ $items = append $items (include "tabloop.tomlValue" .) }}{{ end -}}
[{{ join ", " $items }}]
{{- else if kindIs "float64" . -}}
{{- if and (eq . (floor .)) (lt . 9e15) (gt . -9e15) }}{{ printf "%.0f" . }}{{ else }}{{ . }}{{ end }}
{{- else if kindIs "string" . -}}
{{ toRawJson . }}
{{- else -}}
{{ . }}
{{- end }}
{{- end }}

{{- define "tabloop.tomlTable" -}}
{{- $path := .path }}
{{- range $key, $value := .table }}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{ include "tabloop.tomlKey" $key }} = {{ include "tabloop.tomlValue" $value }}
{{- end }}
{{- end }}
{{- range $key, $value := .table }}
{{- if kindIs "map" $value }}
{{- $inner := append $path (include "tabloop.tomlKey" $key) }}

[{{ join "." $inner }}]
{{- include "tabloop.tomlTable" (dict "table" $value "path" $inner) }}
{{- end }}
{{- end }}
{{- end }}

{{/* What the chart sets itself: addresses, ports and folders of what it starts. */}}
{{- define "tabloop.ownSettings" -}}
{{- $name := include "tabloop.fullname" . }}
{{- $engines := list }}
{{- range $slot := list 0 1 }}
{{- $host := include "tabloop.host" (dict "root" $ "name" (include "tabloop.engineService" (dict "root" $ "slot" $slot))) }}
{{- $engines = append $engines (printf "http://%s:%s" $host (include "tabloop.enginePort" (dict "root" $ "slot" $slot))) }}
{{- end }}
stack:
  state: /var/lib/tabloop/stack
model:
  base: /var/lib/tabloop/base
orchestration:
  work_pool_type: process
  job_configuration: ""
serving:
  host: "::"  # every address, of IPv4 and IPv6
  port: 8081
  feedback_port: 8082
  spool: /var/lib/tabloop/spool
  state: /var/lib/tabloop/serving
  token_file: {{ ternary "/etc/tabloop/tokens.toml" "" (ne .Values.tokens.existingSecret "") | quote }}
  engine_host: "::"
  {{- if eq (len .Values.engines.slots) 2 }}
  engines: {{ toJson $engines }}
  {{- end }}
train:
  folder: /var/lib/tabloop/cycles
  {{- if .Values.training.enabled }}
  job: /etc/tabloop/train_job.yaml
  {{- end }}
evaluate:
  shares_disk: false
  engine_host: "::"
  {{- if .Values.evaluation.enabled }}
  engine: own
  engine_url: http://{{ include "tabloop.host" (dict "root" $ "name" (printf "%s-evaluation" $name)) }}:18102
  {{- end }}
{{- end }}

{{/* All settings, those given and those of the chart, as YAML. */}}
{{- define "tabloop.merged" -}}
{{- $own := include "tabloop.ownSettings" . | fromYaml }}
{{- $given := deepCopy .Values.settings }}
{{- $default := dict "orchestration" (dict "work_pool" (include "tabloop.fullname" .)) }}
{{- $settings := mergeOverwrite $default $given $own }}
{{- $hosts := list (include "tabloop.host" (dict "root" $ "name" (include "tabloop.fullname" .))) }}
{{- $_ := set $settings.serving "hosts" (concat (dig "serving" "hosts" (list) .Values.settings) $hosts | uniq) }}
{{- toJson $settings }}
{{- end }}

{{- define "tabloop.settings" -}}
{{- $settings := include "tabloop.merged" . | fromJson -}}
release = {{ toJson .Chart.AppVersion }}
extends = {{ toJson .Values.extends }}
{{- include "tabloop.tomlTable" (dict "table" $settings "path" (list)) }}
{{ end }}

{{/* The settings that an engine reads: it restarts for a change of these alone. */}}
{{- define "tabloop.engineSettings" -}}
{{- $settings := include "tabloop.merged" . | fromJson }}
{{- $names := list "engines" "engine_host" "engine_arguments" "adapters" "state" "most_deltas" }}
{{- $names = concat $names (list "token_file" "tokens" "name_users") }}
{{- $serving := dict }}
{{- range $names }}{{ $_ := set $serving . (get $settings.serving .) }}{{ end }}
{{- $evaluate := pick $settings.evaluate "engine_url" "engine_host" }}
{{- toJson (list .Values.extends (pick $settings "model" "store" "stack") $serving $evaluate) }}
{{- end }}
