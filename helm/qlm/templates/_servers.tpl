{{- /* Security of a pod of RabbitMQ or Redis: call with the user of the image. */ -}}
{{- define "qlm.serverSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ . }}
  runAsGroup: {{ . }}
  fsGroup: {{ . }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "qlm.claim" -}}
volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .className }}
      storageClassName: {{ . | quote }}
      {{- end }}
      resources: {requests: {storage: {{ .size }}}}
{{- end -}}

{{- /*
Bytes that Redis may fill: 60 % of its memory limit. The rest is for what does not count there, above all the pages
that are written while a child process writes the file anew.
*/ -}}
{{- define "qlm.redisBytesMax" -}}
{{- $given := .Values.redis.resources.limits.memory -}}
{{- $number := $given -}}{{- $unit := "" -}}
{{- if kindIs "string" $given -}}
{{- $number = regexFind "^[0-9.]+" $given -}}{{- $unit = trimPrefix $number $given -}}
{{- end -}}
{{- $bytes := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- $most := mulf $number (get $bytes $unit) 0.6 -}}
{{- if or (lt $most 1048576.0) (gt $most 9e18) -}}
{{- fail (printf "redis.resources.limits.memory is %v; expected 2Mi to 8Ei, of which Redis fills 60 %%" $given) -}}
{{- end -}}
{{- int64 $most -}}
{{- end -}}

{{- define "qlm.rabbitmqConf" -}}
listeners.tcp.default = 5672
log.console = true
log.console.level = warning
log.file = false
vm_memory_high_watermark.relative = 0.6
disk_free_limit.absolute = 1GB
# In milliseconds; agents renew the delivery of a message every third of it.
consumer_timeout = {{ mulf 1000 (default 1800 .Values.config.broker_ack_timeout_s) | int64 }}
{{- end -}}
