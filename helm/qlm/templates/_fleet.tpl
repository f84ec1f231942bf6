{{- /*
The fleet with everything that follows from it, as JSON: {"groups": [...]}. Refuses what cannot be served, each in
one sentence.
*/ -}}
{{- define "qlm.fleet" -}}
{{- $root := . -}}
{{- if not .Values.models }}{{ fail "models is empty; expected at least one model (examples/ has three answers)" }}{{ end -}}
{{- if not .Values.fleet }}{{ fail "fleet is empty; expected at least one kind of instance (examples/ has three answers)" }}{{ end -}}
{{- $models := dict -}}
{{- range .Values.models -}}
{{- if hasKey $models .id }}{{ fail (printf "models has %q twice; expected each id once" .id) }}{{ end -}}
{{- $_ := set $models .id . -}}
{{- end -}}
{{- $adapters := dict -}}
{{- range .Values.models -}}
{{- range .adapters -}}
{{- if or (hasKey $models .id) (hasKey $adapters .id) -}}
{{- fail (printf "models has %q twice, once as an adapter; expected each id once, since clients name both alike" .id) -}}
{{- end -}}
{{- $_ := set $adapters .id . -}}
{{- end -}}
{{- end -}}
{{- $groups := list -}}{{- $owners := dict -}}{{- $served := dict -}}{{- $kinds := dict -}}
{{- range .Values.fleet -}}
{{- /* Those are names of Services, StatefulSets or budgets, behind the beginning that all names share. */ -}}
{{- $reserved := list "gateway" "gateway-admin" "controller" "rabbitmq" "redis" "render" -}}
{{- $extra := and (eq $root.Values.agents.runtime "ray") (regexMatch "^ray-.*-extra$" .name) -}}
{{- if or $extra (has .name $reserved) (regexMatch "^render-[0-9a-f]{8}$" .name) -}}
{{- fail (printf "fleet has an entry named %s; expected another name, since a part of QLM has this one" .name) -}}
{{- end -}}
{{- $group := include "qlm.group" (list $root . $models) | fromJson -}}
{{- range $id := $group.instances -}}
{{- if hasKey $owners $id -}}
{{- fail (printf "fleet has the instance %q in %s and in %s; expected ids that differ, so give each entry a name of its own" $id (get $owners $id) $group.name) -}}
{{- end -}}
{{- $_ := set $owners $id $group.name -}}
{{- end -}}
{{- range $group.models }}{{ $_ := set $served . true }}{{ end -}}
{{- $host := printf "%v/%v/%v" $group.hostMemoryGiB $group.hostKvGiB $group.emulated -}}
{{- if and (eq $root.Values.agents.runtime "ray") (ne (default $host (get $kinds $group.kind)) $host) -}}
{{- fail (printf "fleet has the kind %s twice, and %s differs in host memory; expected equal pods, since Ray places an instance on any node of its kind (or agents.runtime: process)" $group.kind $group.name) -}}
{{- end -}}
{{- $_ := set $kinds $group.kind $host -}}
{{- $groups = append $groups $group -}}
{{- end -}}
{{- range $id, $model := $models -}}
{{- if not (hasKey $served $id) -}}
{{- fail (printf "models has %q, which needs %v GiB and fits on no entry of fleet (%s); expected an entry with more accelerator memory, or without the model" $id (default 0 $model.gpuMemoryGiB) (include "qlm.offers" $groups)) -}}
{{- end -}}
{{- end -}}
{{- toJson (dict "groups" $groups) -}}
{{- end -}}

{{- define "qlm.offers" -}}
{{- $told := list -}}
{{- range . }}{{ $told = append $told (printf "%s has %v GiB" .name .gpuMemoryGiB) }}{{ end -}}
{{- join ", " $told -}}
{{- end -}}

{{- /* One entry of the fleet with what follows from it, as JSON: call with (list $ entry models-by-id). */ -}}
{{- define "qlm.group" -}}
{{- $root := index . 0 -}}{{- $entry := index . 1 -}}{{- $models := index . 2 -}}
{{- $accelerator := get $root.Values.accelerators $entry.accelerator -}}
{{- if not $accelerator -}}
{{- fail (printf "fleet has %s with the accelerator %q; expected one of %s, or a kind of your own under accelerators" $entry.name $entry.accelerator (keys $root.Values.accelerators | sortAlpha | join ", ")) -}}
{{- end -}}
{{- $gpus := int (default 1 $entry.gpus) -}}
{{- $gpuMemoryGiB := mulf $gpus $accelerator.gpuMemoryGiB -}}
{{- $fitting := list -}}
{{- range $root.Values.models -}}
{{- if le (float64 (default 0 .gpuMemoryGiB)) $gpuMemoryGiB }}{{ $fitting = append $fitting .id }}{{ end -}}
{{- end -}}
{{- range $entry.models -}}
{{- if not (hasKey $models .) -}}
{{- fail (printf "fleet has %s with the model %q; expected one of %s" $entry.name . (keys $models | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if not (has . $fitting) -}}
{{- fail (printf "fleet has %s with the model %q, which needs %v GiB; expected one that fits into the %v GiB of its %d x %s" $entry.name . (get $models .).gpuMemoryGiB $gpuMemoryGiB $gpus $entry.accelerator) -}}
{{- end -}}
{{- end -}}
{{- $served := default $fitting $entry.models -}}
{{- if not $served -}}
{{- fail (printf "fleet has %s, into whose %v GiB no model fits; expected a smaller model, or no such entry" $entry.name $gpuMemoryGiB) -}}
{{- end -}}
{{- $engines := list -}}
{{- range $served }}{{ $engines = append $engines (default "emulated" (get $models .).engine) }}{{ end -}}
{{- if gt (len (uniq $engines)) 1 -}}
{{- fail (printf "fleet has %s with emulated models and models of vLLM; expected one kind of engine, since they differ in image" $entry.name) -}}
{{- end -}}
{{- $emulated := eq (first $engines) "emulated" -}}
{{- if and (not $emulated) (not $root.Values.modelsVolume) -}}
{{- range $served -}}
{{- $path := toString (get $models .).path -}}
{{- if hasPrefix "/models/" $path -}}
{{- fail (printf "models has %q with the path %s, and modelsVolume is empty; expected the volume that agents mount at /models" . $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $kvCacheBytes := default (dig "vllm" "kv_cache_bytes" 0 $root.Values.config) $entry.kvCacheBytes -}}
{{- if and (not $emulated) (gt (len $served) 1) (not $kvCacheBytes) -}}
{{- fail (printf "fleet has %s with %d models that take turns, and no size of their KV cache; expected kvCacheBytes (or config.vllm.kv_cache_bytes), since vLLM's own choice leaves no room for the others" $entry.name (len $served)) -}}
{{- end -}}
{{- $count := int $entry.count -}}
{{- $most := $count -}}
{{- if $root.Values.keda.enabled }}{{ $most = int (default $count $entry.countMax) }}{{ end -}}
{{- if lt (int (default $count $entry.countMax)) $count -}}
{{- fail (printf "fleet has %s with countMax %d; expected at least its count, %d" $entry.name (int $entry.countMax) $count) -}}
{{- end -}}
{{- $instances := list -}}
{{- range $n := until $most }}{{ $instances = append $instances (printf "%s-%d" $entry.name $n) }}{{ end -}}
{{- $hostMemoryGiB := default 64 $entry.hostMemoryGiB | float64 -}}
{{- $hostKvGiB := default 0 $entry.hostKvGiB | float64 -}}
{{- $overheadGiB := default (ternary 2 16 $emulated) $entry.overheadGiB | float64 -}}
{{- $nodeSelector := ternary (dict) (default (dict) $accelerator.nodeSelector) $emulated -}}
{{- $group := dict
  "name" $entry.name
  "accelerator" $entry.accelerator
  "gpus" $gpus
  "kind" (ternary $entry.accelerator (printf "%sx%d" $entry.accelerator $gpus) (eq $gpus 1))
  "gpuMemoryGiB" $gpuMemoryGiB
  "gpuResource" (default "nvidia.com/gpu" $accelerator.resource)
  "count" $count
  "extra" (sub $most $count)
  "instances" $instances
  "models" $served
  "emulated" $emulated
  "hostMemoryGiB" $hostMemoryGiB
  "hostKvGiB" $hostKvGiB
  "memoryGiB" (ternary $overheadGiB (addf $hostMemoryGiB $hostKvGiB $overheadGiB) $emulated | ceil | int)
  "shmMiB" (ternary 256 (addf (mulf $hostKvGiB (len $served) 1024) 2048 | ceil | int) $emulated)
  "cpu" (default (ternary 1 8 $emulated) $entry.cpu)
  "nodeSelector" (merge (dict) (default (dict) $entry.nodeSelector) $nodeSelector)
  "tolerations" (default (list) $entry.tolerations)
  "runtimeClassName" (default "" $entry.runtimeClassName)
-}}
{{- range $key := list "seqsMax" "batchedTokensMax" "kvCacheBytes" "swapTiers" "environment" -}}
{{- if hasKey $entry $key }}{{ $_ := set $group $key (get $entry $key) }}{{ end -}}
{{- end -}}
{{- toJson $group -}}
{{- end -}}
