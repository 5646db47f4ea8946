{{/* Faults that neither the schema nor Kubernetes refuses. A message has the value, the expected one, and what to do. */}}

{{/* Names of the settings that hold a secret: they belong into a Secret. */}}
{{- define "tabloop.secretSettings" -}}
access_key secret_key password token auth_string webhook admin_token simulation_token user_secret engine_token valkey api_key
{{- end }}

{{- define "tabloop.noSecrets" -}}
{{- $path := .path }}
{{- $names := include "tabloop.secretSettings" . | splitList " " }}
{{- range $key, $value := .table }}
{{- $inner := append $path $key }}
{{- if kindIs "map" $value }}
{{- include "tabloop.noSecrets" (dict "table" $value "path" $inner "list" $.list "secret" $.secret) }}
{{- else if kindIs "slice" $value }}
{{- range $value }}
{{- if kindIs "map" . }}{{ include "tabloop.noSecrets" (dict "table" . "path" $inner "list" $inner "secret" $.secret) }}{{ end }}
{{- end }}
{{- else if and (has $key $names) $value }}
{{- $variable := printf "TABLOOP_%s" (join "__" ($.list | default $inner) | upper) }}
{{- if $.list }}{{ $variable = printf "%s, the whole value as JSON," $variable }}{{ end }}
{{- fail (printf "settings.%s: a secret would stand in a ConfigMap; expected %s in the Secret %q: kubectl edit secret %s"
  (join "." $inner) $variable $.secret $.secret) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tabloop.noOwnSettings" -}}
{{- range $section, $table := include "tabloop.ownSettings" . | fromYaml }}
{{- $given := get $.Values.settings $section | default dict }}
{{- range $key, $value := $table }}
{{- if hasKey $given $key }}
{{- fail (printf "settings.%s.%s = %v: the chart sets it to %q; remove it from the values"
  $section $key (get $given $key | toJson) (toString $value)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A quantity of Kubernetes as a number. */}}
{{- define "tabloop.amount" -}}
{{- $unit := regexFind "[A-Za-z]+$" (toString .) }}
{{- $units := dict "" 1.0 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12
  "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 }}
{{- mulf (trimSuffix $unit (toString .) | float64) (get $units $unit) }}
{{- end }}

{{- define "tabloop.checkResources" -}}
{{- range $name, $component := pick .Values "app" "engines" "evaluation" "worker" "training" "bootstrap" }}
{{- range $resource, $least := $component.resources.requests }}
{{- $most := get $component.resources.limits $resource }}
{{- if and $most (gt (include "tabloop.amount" $least | float64) (include "tabloop.amount" $most | float64)) }}
{{- fail (printf "%s.resources.requests.%s = %v: expected at most limits.%s = %v, which Kubernetes asks for"
  $name $resource $least $resource $most) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tabloop.checkSizes" -}}
{{- range $name, $scaling := dict "app" .Values.app.autoscaling "engines" .Values.engines.autoscaling }}
{{- if and $scaling.enabled (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) }}
{{- fail (printf "%s.autoscaling.minReplicas = %d: expected at most maxReplicas = %d"
  $name (int $scaling.minReplicas) (int $scaling.maxReplicas)) }}
{{- end }}
{{- end }}
{{- if and .Values.engines.autoscaling.enabled (not .Values.engines.autoscaling.prometheus) }}
{{- fail "engines.autoscaling.prometheus is empty: expected its address, http://prometheus.monitoring.svc:9090" }}
{{- end }}
{{- $gpus := include "tabloop.gpus" . | int }}
{{- $available := int .Values.gpus.available }}
{{- if and (gt $available 0) (gt $gpus $available) }}
{{- $train := .Values.settings.train }}
{{- $engines := printf "engines (replicas = %d)" (include "tabloop.engineReplicas" . | int) }}
{{- $training := printf "training (train.nodes = %d, train.processes = %d)" (int $train.nodes) (int $train.processes) }}
{{- $value := include "tabloop.engineReplicasValue" . }}
{{- $next := printf "lower %s or train, or raise gpus.available to what the cluster has" $value }}
{{- fail (printf "gpus.available = %d: %s, evaluation and %s ask for %d GPUs; %s" $available $engines $training $gpus $next) }}
{{- end }}
{{- end }}

{{- define "tabloop.checkEngines" -}}
{{- $engines := .Values.engines }}
{{- $serving := .Values.settings.serving }}
{{- $slots := toJson $engines.slots }}
{{- if ne (len $engines.slots) 2 }}
{{- if not (get $serving "engines") }}
{{- fail (printf "engines.slots = %s: settings.serving.engines is not set; expected both slots there, one an external server"
  $slots) }}
{{- end }}
{{- if ne $engines.layout "slots" }}
{{- fail (printf "engines.slots = %s: expected engines.layout = slots, not %s, whose slots are one" $slots $engines.layout) }}
{{- end }}
{{- end }}
{{- $cards := dig "engine_arguments" "tensor_parallel_size" 1 $serving | int }}
{{- $own := ternary (dict "engines" $engines.gpus) dict (gt (len $engines.slots) 0) }}
{{- range $name, $gpus := merge $own (ternary (dict "evaluation" .Values.evaluation.gpus) dict .Values.evaluation.enabled) }}
{{- if and (gt (int $gpus) 0) (lt (int $gpus) $cards) }}
{{- fail (printf "%s.gpus = %d: settings.serving.engine_arguments.tensor_parallel_size = %d, expected at least as many GPUs"
  $name (int $gpus) $cards) }}
{{- end }}
{{- end }}
{{- $adapters := get $serving "adapters" | default 0 | int }}
{{- if and (eq $engines.layout "pool") (lt $adapters 4) }}
{{- fail (printf "engines.layout = pool: settings.serving.adapters = %d, expected at least 4: versions of both slots"
  $adapters) }}
{{- end }}
{{- $share := dig "engine_arguments" "gpu_memory_utilization" 1.0 $serving | float64 }}
{{- if and (eq $engines.layout "pair") (gt $share 0.5) }}
{{- fail (printf "engines.layout = pair: settings.serving.engine_arguments.gpu_memory_utilization = %v, expected at most 0.5: %s"
  $share "two engines share each GPU") }}
{{- end }}
{{- end }}

{{- define "tabloop.checkEvaluation" -}}
{{- $evaluate := .Values.settings.evaluate | default dict }}
{{- $slot := eq (get $evaluate "engine") "slot" }}
{{- if not (or .Values.evaluation.enabled $slot (get $evaluate "engine_url")) }}
{{- fail "evaluation.enabled = false: expected settings.evaluate.engine = slot, or an engine in settings.evaluate.engine_url" }}
{{- end }}
{{- if and $slot (gt (include "tabloop.engineReplicas" . | int) 1) }}
{{- fail (printf "settings.evaluate.engine = slot: %s = %s, expected 1: it uses a slot of one engine"
  (include "tabloop.engineReplicasValue" .) (include "tabloop.engineReplicas" .)) }}
{{- end }}
{{- end }}

{{- define "tabloop.checkTraces" -}}
{{- $traces := .Values.monitoring.traces }}
{{- range include "tabloop.traceSecrets" . | fromJsonArray }}
{{- if hasKey $traces . }}
{{- fail (printf "monitoring.traces.%s: it may hold a credential; expected %s in the Secrets of app and worker" . .) }}
{{- end }}
{{- end }}
{{- if and $traces .Values.networkPolicy.enabled (not .Values.networkPolicy.traces.to) }}
{{- fail "networkPolicy.traces.to is empty: expected the peers of the collector that monitoring.traces names" }}
{{- end }}
{{- end }}

{{- define "tabloop.checks" -}}
{{- if not (regexMatch "^[a-z]" .Release.Name) }}
{{- fail (printf "release name %s: expected one that begins with a letter, since Services are named after it" .Release.Name) }}
{{- end }}
{{- if not .Values.image.repository }}
{{- fail "image.repository is empty: expected the images' name without target: --set image.repository=REGISTRY/tabloop" }}
{{- end }}
{{- include "tabloop.noSecrets" (dict "table" .Values.settings "path" (list) "secret" .Values.secrets.existingSecret) }}
{{- include "tabloop.noOwnSettings" . }}
{{- include "tabloop.checkSizes" . }}
{{- include "tabloop.checkResources" . }}
{{- include "tabloop.checkEngines" . }}
{{- include "tabloop.checkEvaluation" . }}
{{- include "tabloop.checkTraces" . }}
{{- $token := .Values.monitoring.tokenSecret }}
{{- if and .Values.monitoring.podMonitors (not (and $token.name $token.key)) }}
{{- fail "monitoring.podMonitors = true: monitoring.tokenSecret has no name and key; expected a token with the role metrics" }}
{{- end }}
{{- end }}
