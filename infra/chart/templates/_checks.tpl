{{/* What neither the schema of the values nor Kubernetes refuses. Each message has the value, what was expected, and what to do. */}}

{{/* Settings that hold a secret: they belong into a Secret. */}}
{{- define "tabloop.secretSettings" -}}
access_key secret_key password token auth_string webhook admin_token simulation_token user_secret engine_token valkey api_key
{{- end }}

{{- define "tabloop.noSecrets" -}}
{{- $path := .path }}
{{- $names := include "tabloop.secretSettings" . | splitList " " }}
{{- range $key, $value := .table }}
{{- if kindIs "map" $value }}
{{- include "tabloop.noSecrets" (dict "table" $value "path" (append $path $key) "secret" $.secret) }}
{{- else if kindIs "slice" $value }}
{{- range $value }}
{{- if kindIs "map" . }}{{ include "tabloop.noSecrets" (dict "table" . "path" (append $path $key) "secret" $.secret) }}{{ end }}
{{- end }}
{{- else if and (has $key $names) $value }}
{{- $variable := printf "TABLOOP_%s" (append $path $key | join "__" | upper) }}
{{- fail (printf "settings.%s: a secret would stand in a ConfigMap; expected it as %s in the Secret %q: kubectl edit secret %s" (append $path $key | join ".") $variable $.secret $.secret) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tabloop.noOwnSettings" -}}
{{- range $section, $table := include "tabloop.ownSettings" . | fromYaml }}
{{- range $key, $value := $table }}
{{- if hasKey (get $.Values.settings $section | default dict) $key }}
{{- fail (printf "settings.%s.%s = %v: the chart sets it to %q; remove it from the values" $section $key (get (get $.Values.settings $section) $key | toJson) (toString $value)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tabloop.checks" -}}
{{- $v := .Values }}
{{- if not $v.image.repository }}{{ fail "image.repository is empty: expected the images' name without the target, registry.acme.example/tabloop; set it with --set image.repository=NAME" }}{{ end }}
{{- include "tabloop.noSecrets" (dict "table" $v.settings "path" (list) "secret" $v.secrets.existingSecret) }}
{{- include "tabloop.noOwnSettings" . }}
{{- $scaling := $v.app.autoscaling }}
{{- if and $scaling.enabled (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) }}
{{- fail (printf "app.autoscaling.minReplicas = %d: expected at most maxReplicas = %d" (int $scaling.minReplicas) (int $scaling.maxReplicas)) }}
{{- end }}
{{- $gpus := include "tabloop.gpus" . | int }}
{{- if and (gt (int $v.gpus.available) 0) (gt $gpus (int $v.gpus.available)) }}
{{- fail (printf "gpus.available = %d: engines (replicas = %d), evaluation and training (train.nodes = %d, train.processes = %d) ask for %d GPUs; lower engines.replicas or train, or raise gpus.available to the cluster's" (int $v.gpus.available) (int $v.engines.replicas) (int $v.settings.train.nodes) (int $v.settings.train.processes) $gpus) }}
{{- end }}
{{- if and (ne (len $v.engines.slots) 2) (not (dig "serving" "engines" "" $v.settings)) }}
{{- fail (printf "engines.slots = %s: settings.serving.engines is not set; expected both slots' engines there, of which one is an external server" (toJson $v.engines.slots)) }}
{{- end }}
{{- if and (ne (len $v.engines.slots) 2) (ne $v.engines.layout "slots") }}
{{- fail (printf "engines.layout = %q with engines.slots = %s: expected the layout slots, whose slots are apart" $v.engines.layout (toJson $v.engines.slots)) }}
{{- end }}
{{- if and (eq $v.engines.layout "pool") (lt (dig "serving" "adapters" 0 $v.settings | int) 4) }}
{{- fail (printf "engines.layout = \"pool\": settings.serving.adapters = %d, expected at least 4: its engines hold versions of both slots as adapters" (dig "serving" "adapters" 0 $v.settings | int)) }}
{{- end }}
{{- if and (eq $v.engines.layout "pair") (gt (dig "serving" "engine_arguments" "gpu_memory_utilization" 1.0 $v.settings | float64) 0.5) }}
{{- fail (printf "engines.layout = \"pair\": settings.serving.engine_arguments.gpu_memory_utilization = %v, expected at most 0.5: two engines share each GPU" (dig "serving" "engine_arguments" "gpu_memory_utilization" "unset" $v.settings)) }}
{{- end }}
{{- if and (not $v.evaluation.enabled) (not (dig "evaluate" "engine_url" "" $v.settings)) (ne (dig "evaluate" "engine" "" $v.settings) "slot") }}
{{- fail "evaluation.enabled = false: expected settings.evaluate.engine = slot, or an engine's address in settings.evaluate.engine_url" }}
{{- end }}
{{- if and (eq (dig "evaluate" "engine" "" $v.settings) "slot") (eq $v.engines.layout "slots") (gt (int $v.engines.replicas) 1) }}
{{- fail (printf "settings.evaluate.engine = \"slot\": engines.replicas = %d, expected 1: the evaluation uses a slot of one engine" (int $v.engines.replicas)) }}
{{- end }}
{{- if and $v.monitoring.podMonitors (not (and $v.monitoring.tokenSecret.name $v.monitoring.tokenSecret.key)) }}
{{- fail "monitoring.podMonitors = true: monitoring.tokenSecret has no name and key; expected the Secret of a token with the role metrics: tabloop token NAME --roles metrics" }}
{{- end }}
{{- end }}
