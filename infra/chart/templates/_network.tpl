{{/* A rule of egress by the name of a way in the values; nothing for a way without peers. */}}
{{- define "tabloop.egress" -}}
{{- if eq .way "dns" }}
{{- with .values.dns }}
- to: {{ toJson . }}
  ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]
{{- end }}
{{- else }}
{{- $way := get .values .way }}
{{- if $way.to }}
- to: {{ toJson $way.to }}
  ports:
    {{- range $way.ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tabloop.peers" -}}
- podSelector:
    matchLabels:
      {{- include "tabloop.selector" . | nindent 6 }}
{{- end }}
