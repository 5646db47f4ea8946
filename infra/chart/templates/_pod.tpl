{{/* What the pods have in common. All of them pass Pod Security "restricted". */}}

{{- define "tabloop.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {{ .seccompProfile | default (dict "type" "RuntimeDefault") | toJson }}
{{- end }}

{{- define "tabloop.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Where a pod runs, from the values `pod` of a component. */}}
{{- define "tabloop.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "tabloop.podMetadata" -}}
labels:
  {{- include "tabloop.labels" . | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .pod.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/config: {{ .settings | default (include "tabloop.settings" .root) | sha256sum }}
  {{- with .pod.annotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Fields of every pod. Services would put variables TABLOOP_... into the environment, which the settings refuse. A name of the
cluster with four points is not looked up in every search domain. */}}
{{- define "tabloop.podFields" -}}
enableServiceLinks: false
dnsConfig: {options: [{name: ndots, value: "2"}]}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext:
  {{- include "tabloop.podSecurity" . | nindent 2 }}
{{- with .pod }}
{{- include "tabloop.scheduling" . }}
{{- end }}
{{- end }}

{{/* Variables of a component, each from its own Secret's key; "needed" must be there, "optional" may. The values of "variables" are no
secrets. */}}
{{- define "tabloop.env" -}}
{{- $secret := include "tabloop.secret" . }}
- {name: TABLOOP_SETTINGS, value: /etc/tabloop/settings.toml}
- {name: HOME, value: /tmp}
- {name: XDG_CACHE_HOME, value: /var/lib/tabloop/cache}
- {name: TRITON_CACHE_DIR, value: /var/lib/tabloop/cache/triton}
- {name: PREFECT_HOME, value: /tmp/prefect}
{{- range .needed }}
- name: {{ . }}
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: {{ . }}}}
{{- end }}
{{- range $name, $value := .variables }}
- {name: {{ $name }}, value: {{ quote $value }}}
{{- end }}
{{- range concat (list "TABLOOP_STORE__ACCESS_KEY" "TABLOOP_STORE__SECRET_KEY") (.optional | default list) }}
- name: {{ . }}
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: {{ . }}, optional: true}}
{{- end }}
{{- end }}

{{/* Variables of traces that may hold a credential. */}}
{{- define "tabloop.traceSecrets" -}}
{{- $headers := list "OTEL_EXPORTER_OTLP_HEADERS" "OTEL_EXPORTER_OTLP_TRACES_HEADERS" }}
{{- empty .Values.monitoring.traces | ternary list $headers | toJson }}
{{- end }}

{{/* A container of tabloop's: image, security and environment, without its command. */}}
{{- define "tabloop.container" -}}
image: {{ include "tabloop.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- include "tabloop.containerSecurity" . | nindent 2 }}
env:
  {{- include "tabloop.env" . | nindent 2 }}
volumeMounts:
  - {name: settings, mountPath: /etc/tabloop, readOnly: true}
  - {name: state, mountPath: /var/lib/tabloop}
  - {name: temporary, mountPath: /tmp}
  {{- if .sharedMemory }}
  - {name: shared-memory, mountPath: /dev/shm}
  {{- end }}
{{- end }}

{{/* Fetches the base model to the pod's own disk, verified. */}}
{{- define "tabloop.fetchBase" -}}
- name: base-model
  {{- include "tabloop.container" . | nindent 2 }}
  command: [tabloop, base, fetch]
  resources:
    requests: {cpu: 500m, memory: 1Gi}
    limits: {memory: 8Gi}
{{- end }}

{{/* Settings and tokens in one projected volume, and the places that are written, but for the disk "state". */}}
{{- define "tabloop.volumes" -}}
- name: settings
  projected:
    sources:
      - configMap: {name: {{ .configMap | default (printf "%s-settings" (include "tabloop.fullname" .root)) }}}
      {{- with .root.Values.tokens.existingSecret }}
      - secret: {name: {{ . }}, items: [{key: tokens.toml, path: tokens.toml}]}
      {{- end }}
- {name: temporary, emptyDir: {sizeLimit: 8Gi}}
{{- with .sharedMemory }}
- {name: shared-memory, emptyDir: {medium: Memory, sizeLimit: {{ . }}}}
{{- end }}
{{- end }}

{{/* The claim of a StatefulSet's pod. */}}
{{- define "tabloop.claim" -}}
- metadata:
    name: state
    labels:
      {{- include "tabloop.selector" . | nindent 6 }}
  spec:
    {{- include "tabloop.claimSpec" .disk | nindent 4 }}
{{- end }}

{{- define "tabloop.claimSpec" -}}
accessModes: [ReadWriteOnce]
resources: {requests: {storage: {{ .size }}}}
{{- with .storageClass }}
storageClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "tabloop.resources" -}}
{{- $gpus := gt (int .of.gpus) 0 | ternary (dict .resource (toString .of.gpus)) dict }}
requests: {{ toJson .of.resources.requests }}
limits: {{ merge $gpus .of.resources.limits | toJson }}
{{- end }}
{{/* An engine's probe: it answers to the name of its Service. */}}
{{- define "tabloop.engineProbe" -}}
httpGet:
  path: /health
  port: {{ .port }}
  httpHeaders: [{name: Host, value: {{ .host }}}]
{{- end }}

{{/* Annotations of a hook before an installation and an upgrade, by its weight. */}}
{{- define "tabloop.hook" -}}
helm.sh/hook: pre-install,pre-upgrade,pre-rollback
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation
{{- end }}
