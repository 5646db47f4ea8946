{{/* Names of the variables of the flows: of the worker and of the bootstrap. */}}
{{- define "tabloop.flowVariables" -}}
{{- $slot := eq (dig "evaluate" "engine" "own" .Values.settings) "slot" }}
{{- $engine := $slot | ternary "TABLOOP_SERVING__ENGINE_TOKEN" "TABLOOP_EVALUATE__ENGINE_TOKEN" -}}
needed: [TABLOOP_SERVING__USER_SECRET, {{ $engine }}]
optional:
  - TABLOOP_EVALUATE__JUDGE__API_KEY
  - TABLOOP_ORCHESTRATION__AUTH_STRING
  - TABLOOP_ORCHESTRATION__WEBHOOK
  - TABLOOP_REGISTRY__USERNAME
  - TABLOOP_REGISTRY__PASSWORD
  - TABLOOP_REGISTRY__TOKEN
  {{- range include "tabloop.traceSecrets" . | fromJsonArray }}
  - {{ . }}
  {{- end }}
{{- end }}
