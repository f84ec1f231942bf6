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
      storageClassName: {{ . }}
      {{- end }}
      resources: {requests: {storage: {{ .size }}}}
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
