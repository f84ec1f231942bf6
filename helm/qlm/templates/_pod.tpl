{{- /* Security of a pod of QLM's own images. */ -}}
{{- define "qlm.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "qlm.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Addresses with passwords, and the token of operators. */ -}}
{{- define "qlm.env" -}}
- name: QLM_BROKER
  valueFrom: {secretKeyRef: {name: {{ include "qlm.secret" . | quote }}, key: broker}}
- name: QLM_STORE
  valueFrom: {secretKeyRef: {name: {{ include "qlm.secret" . | quote }}, key: store}}
- name: QLM_ADMIN_TOKEN
  valueFrom: {secretKeyRef: {name: {{ include "qlm.secret" . | quote }}, key: admin-token}}
{{- end -}}

{{- /* What all pods of QLM mount. The root file system is read-only: what is written goes to data and tmp. */ -}}
{{- define "qlm.mounts" -}}
- {name: config, mountPath: /etc/qlm/qlm.yaml, subPath: qlm.yaml, readOnly: true}
{{ include "qlm.sharedMounts" . }}
{{- end -}}

{{- define "qlm.sharedMounts" -}}
{{- if .Values.profiles }}
- {name: profiles, mountPath: /etc/qlm/profiles, readOnly: true}
{{- end }}
{{- if .Values.modelsVolume }}
- {name: models, mountPath: /models, readOnly: true}
{{- end }}
{{- if include "qlm.ca" . }}
- {name: ca, mountPath: /etc/qlm/ca, readOnly: true}
{{- end }}
- {name: data, mountPath: /var/lib/qlm}
- {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "qlm.volumes" -}}
- name: config
  configMap: {name: {{ include "qlm.fullname" . | quote }}}
{{ include "qlm.sharedVolumes" . }}
{{- end -}}

{{- define "qlm.sharedVolumes" -}}
{{- if .Values.profiles }}
- name: profiles
  configMap: {name: {{ include "qlm.fullname" . }}-profiles}
{{- end }}
{{- with .Values.modelsVolume }}
- name: models
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "qlm.ca" . | fromYaml }}
- name: ca
  {{- toYaml . | nindent 2 }}
{{- end }}
- name: data
  emptyDir: {}
- name: tmp
  emptyDir: {}
{{- end -}}

{{- /* Name of the render tier of a model: call with (list $ id). Ids of models may have any characters. */ -}}
{{- define "qlm.renderName" -}}
{{- printf "%s-render-%s" (include "qlm.fullname" (index . 0)) (index . 1 | sha256sum | trunc 8) -}}
{{- end -}}

{{- /* Roll the pods when their configuration changes. */ -}}
{{- define "qlm.configAnnotation" -}}
checksum/config: {{ printf "%s%s%s" (include "qlm.config" .) (toYaml .Values.profiles) (toYaml .Values.secrets) | sha256sum }}
{{- end -}}

{{- /* Replicas rather on different nodes: call with (list $ "gateway"). */ -}}
{{- define "qlm.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "qlm.selector" . | nindent 8 }}
{{- end -}}

{{- /* Seconds an agent needs to stop: its grace (default 20 s), and 10 s for engines. */ -}}
{{- define "qlm.agentStopSeconds" -}}
{{- $stop := addf (dig "grace_s" 20 (default (dict) .Values.config.stop)) 10 | ceil | int -}}
{{- $given := int .Values.agents.terminationGracePeriodSeconds -}}
{{- if lt $given (add $stop 30 | int) -}}
{{- fail (printf "agents.terminationGracePeriodSeconds is %d; expected at least %d, since an agent takes so long to stop (30 s to give its work back, config.stop.grace_s and 10 s)" $given (add $stop 30)) -}}
{{- end -}}
{{- $stop -}}
{{- end -}}

{{- /* Secrets and ConfigMaps whose keys are environment variables. */ -}}
{{- define "qlm.envFrom" -}}
{{- $sources := .Values.envFrom -}}
{{- if include "qlm.ca" . -}}
{{- $own := dict "configMapRef" (dict "name" (printf "%s-ca" (include "qlm.fullname" .))) -}}
{{- $sources = prepend $sources $own -}}
{{- end -}}
{{- with $sources }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The volume with the authorities that vouch for RabbitMQ and Redis; nothing if there is none. */ -}}
{{- define "qlm.ca" -}}
{{- $ca := .Values.secrets.ca -}}
{{- if and $ca.configMap $ca.secret -}}
{{- fail (printf "secrets.ca has the configMap %q and the secret %q; expected one of both" $ca.configMap $ca.secret) -}}
{{- end -}}
{{- if $ca.configMap }}
configMap: {name: {{ $ca.configMap | quote }}, items: [{key: {{ $ca.key | quote }}, path: ca.crt}]}
{{- else if $ca.secret }}
secret: {secretName: {{ $ca.secret | quote }}, items: [{key: {{ $ca.key | quote }}, path: ca.crt}], defaultMode: 0440}
{{- end -}}
{{- end -}}

{{- /*
How many instances of one entry of the fleet may be taken away at once: call with (list $ group). Pods of a RayCluster
have no owner with a scale: their budget is the number that stays, and those that KEDA adds have one of their own.
*/ -}}
{{- define "qlm.instanceBudget" -}}
{{- $root := index . 0 -}}{{- $group := index . 1 -}}
{{- $ray := eq $root.Values.agents.runtime "ray" -}}
{{- $most := int $root.Values.agents.maxUnavailable -}}
{{- $lasting := int $group.count -}}
{{- if not $ray }}{{ $lasting = add $lasting $group.extra | int }}{{ end -}}
{{- if gt $lasting $most }}
{{- $limit := ternary (dict "minAvailable" (sub $lasting $most)) (dict "maxUnavailable" $most) $ray }}
{{ include "qlm.budget" (list $root $group $limit false) }}
{{- end }}
{{- if and $ray (gt (int $group.extra) $most) }}
{{ include "qlm.budget" (list $root $group (dict "maxUnavailable" $most) true) }}
{{- end }}
{{- end -}}

{{- /* A budget of pods of an entry: call with (list $ group limit extra), extra for those that KEDA adds under Ray. */ -}}
{{- define "qlm.budget" -}}
{{- $root := index . 0 -}}{{- $group := index . 1 -}}{{- $extra := index . 3 -}}
{{- $name := printf "%s-%s" (include "qlm.fullname" $root) $group.name -}}
{{- if $extra }}{{ $name = printf "%s-%s-extra" (include "qlm.rayName" $root) $group.name }}{{ end -}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "qlm.metadata" (list $root $name "agent") | nindent 2 }}
spec:
  {{- toYaml (index . 2) | nindent 2 }}
  selector:
    matchLabels:
      {{- include "qlm.selector" (list $root "agent") | nindent 6 }}
      qlm.io/group: {{ $group.name | quote }}
      {{- if $extra }}
      qlm.io/extra: "true"
      {{- end }}
    {{- if and (eq $root.Values.agents.runtime "ray") (not $extra) }}
    matchExpressions:
      - {key: qlm.io/extra, operator: DoesNotExist}
    {{- end }}
{{- end -}}

{{- /* Resources of a pod that holds one instance: call with the group. Memory is not lent twice. */ -}}
{{- define "qlm.instanceResources" -}}
requests:
  cpu: {{ .cpu | quote }}
  memory: {{ .memoryGiB }}Gi
  {{- if not .emulated }}
  {{ .gpuResource }}: {{ .gpus }}
  {{- end }}
limits:
  cpu: {{ .cpu | quote }}
  memory: {{ .memoryGiB }}Gi
  {{- if not .emulated }}
  {{ .gpuResource }}: {{ .gpus }}
  {{- end }}
{{- end -}}

{{- define "qlm.instancePlace" -}}
{{- with .runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* What engines share with their workers, and Ray its objects, lies in memory: it counts in the limit above. */ -}}
{{- define "qlm.shmVolume" -}}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ . }}Mi}
{{- end -}}
