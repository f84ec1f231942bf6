{{- /* The file qlm.yaml, from models, fleet and config. Addresses with passwords come from the Secret. */ -}}
{{- define "qlm.config" -}}
{{- $root := . -}}
{{- $fleet := include "qlm.fleet" . | fromJson -}}
{{- $models := list -}}
{{- range .Values.models -}}
{{- $model := dict "id" .id "engine" (default "emulated" .engine) -}}
{{- $given := . -}}
{{- range $key, $name := dict "path" "path" "profile" "profile" "contextTokens" "context_tokens" "kvSwap" "kv_swap" "adapters" "adapters" -}}
{{- if hasKey $given $key }}{{ $_ := set $model $name (get $given $key) }}{{ end -}}
{{- end -}}
{{- if hasKey . "render" -}}
{{- /* Only vLLM's models have one here: gateways emulate that of an emulated model. */ -}}
{{- if ne (default "emulated" $given.engine) "vllm" -}}
{{- fail (printf "models has %q with render, and it is emulated; expected engine: vllm, or no render" $given.id) -}}
{{- end -}}
{{- $render := dict "url" (printf "http://%s:8000" (include "qlm.renderName" (list $root $given.id))) -}}
{{- range $key, $name := dict "reasons" "reasons" "timeoutS" "timeout_s" -}}
{{- if hasKey $given.render $key }}{{ $_ := set $render $name (get $given.render $key) }}{{ end -}}
{{- end -}}
{{- $_ := set $model "render" $render -}}
{{- end -}}
{{- $models = append $models $model -}}
{{- end -}}
{{- $instances := list -}}{{- $resources := dict -}}
{{- range $group := $fleet.groups -}}
{{- $_ := set $resources $group.kind (include "qlm.rayTakes" $group | fromJson) -}}
{{- range $n, $id := $group.instances -}}
{{- /* The first model is brought up at the start: take turns, so that the fleet begins with all of them. */ -}}
{{- $turn := mod $n (len $group.models) | int -}}
{{- $instance := dict
  "id" $id
  "accelerator" $group.accelerator
  "gpus" $group.gpus
  "models" (concat (slice $group.models $turn) (slice $group.models 0 $turn))
  "host_memory_gib" $group.hostMemoryGiB
  "host_kv_gib" $group.hostKvGiB
-}}
{{- range $key, $name := dict "seqsMax" "seqs_max" "swapTiers" "swap_tiers" "environment" "environment" -}}
{{- if hasKey $group $key }}{{ $_ := set $instance $name (get $group $key) }}{{ end -}}
{{- end -}}
{{- /* A large number would be written as 4e+10, which is a text in YAML. */ -}}
{{- with $group.batchedTokensMax }}{{ $_ := set $instance "batched_tokens_max" (int64 .) }}{{ end -}}
{{- with $group.kvCacheBytes }}{{ $_ := set $instance "kv_cache_bytes" (int64 .) }}{{ end -}}
{{- $instances = append $instances $instance -}}
{{- end -}}
{{- end -}}
{{- $own := dict
  "http" (merge (dict "host" "0.0.0.0" "port" 8000 "behind_proxy" (include "qlm.behindProxy" . | eq "true")) (include "qlm.hostNames" (list . "http" "gateway") | fromJson))
  "data_dir" "/var/lib/qlm/data"
  "broker" "amqp://set-by-QLM_BROKER"
  "store" "redis://set-by-QLM_STORE"
  "models" $models
  "instances" $instances
-}}
{{- if .Values.profiles }}{{ $_ := set $own "profiles" (list "/etc/qlm/profiles") }}{{ end -}}
{{- if dig "files" "s3" "" (deepCopy .Values.config) -}}
{{- fail "config.files.s3 is set; expected filesS3, which names the secret of its credentials, too" -}}
{{- end -}}
{{- if and .Values.filesVolume .Values.filesS3 -}}
{{- fail "filesVolume and filesS3 are set; expected one of them: files are in one place" -}}
{{- end -}}
{{- if dig "files" "dir" "" (deepCopy .Values.config) -}}
{{- fail (printf "config.files.dir is %q; expected filesVolume, which all gateways mount" .Values.config.files.dir) -}}
{{- end -}}
{{- if .Values.filesVolume }}{{ $_ := set $own "files" (dict "dir" "/var/lib/qlm/files") }}{{ end -}}
{{- with .Values.filesS3 }}
{{- $s3 := dict "bucket" .bucket -}}
{{- range $key, $name := dict "prefix" "prefix" "endpointUrl" "endpoint_url" "region" "region" "timeoutS" "timeout_s" -}}
{{- with get $.Values.filesS3 $key }}{{ $_ := set $s3 $name . }}{{ end -}}
{{- end -}}
{{- $_ := set $own "files" (dict "s3" $s3) -}}
{{- end -}}
{{- if eq .Values.agents.runtime "ray" -}}
{{- $_ := set $own "ray" (dict "namespace" (include "qlm.fullname" .) "resources" $resources) -}}
{{- end -}}
{{- range $name := list "default_slo" "interactive_slo" }}{{ include "qlm.checkObjective" (list $name (get $root.Values.config $name)) }}{{ end -}}
{{- $whole := merge $own (include "qlm.doorsConfig" . | fromYaml) (deepCopy .Values.config) -}}
{{- toYaml $whole -}}
{{- end -}}

{{- /* Refuse an objective that QLM does not know: call with (list "default_slo" objective). */ -}}
{{- define "qlm.checkObjective" -}}
{{- $name := index . 0 -}}{{- $given := default (dict) (index . 1) -}}
{{- $keys := keys $given | sortAlpha | join " and " -}}
{{- if not (has $keys (list "" "deadline_ms" "ttft_ms" "tpot_ms and ttft_ms" "tokens_per_s and ttft_ms")) -}}
{{- fail (printf "config.%s has %s; expected deadline_ms, or ttft_ms with tpot_ms or tokens_per_s or neither, or nothing (batch)" $name $keys) -}}
{{- end -}}
{{- range $key, $value := $given -}}
{{- $most := ternary 10000.0 2592000000.0 (eq $key "tokens_per_s") -}}
{{- $known := not (kindIs "invalid" $value) -}}
{{- if and $known (or (lt (float64 $value) 0.01) (gt (float64 $value) $most)) -}}
{{- fail (printf "config.%s.%s is %v; expected 0.01 to %.0f" $name $key $value $most) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /*
What an instance takes from a node of Ray, as JSON: its GPUs, and one place for its kind, of which each worker pod
has one. So it does not matter by which name Ray knows the GPU.
*/ -}}
{{- define "qlm.rayTakes" -}}
{{- $takes := dict (printf "qlm-%s" .kind) 1 -}}
{{- if not .emulated }}{{ $_ := set $takes "GPU" .gpus }}{{ end -}}
{{- toJson $takes -}}
{{- end -}}
