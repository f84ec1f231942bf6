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

{{- /* Addresses with passwords. */ -}}
{{- define "qlm.env" -}}
- name: QLM_BROKER
  valueFrom: {secretKeyRef: {name: {{ include "qlm.secret" . }}, key: broker}}
- name: QLM_STORE
  valueFrom: {secretKeyRef: {name: {{ include "qlm.secret" . }}, key: store}}
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
- {name: data, mountPath: /var/lib/qlm}
- {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "qlm.volumes" -}}
- name: config
  configMap: {name: {{ include "qlm.fullname" . }}}
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
- name: data
  emptyDir: {}
- name: tmp
  emptyDir: {}
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
runtimeClassName: {{ . }}
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
