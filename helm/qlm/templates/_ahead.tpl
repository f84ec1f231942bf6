{{- /* Keys, options and probes of the gRPC door and of the monitors: not empty where the programs have them. */ -}}
{{- define "qlm.monitored" -}}
{{- end -}}

{{- define "qlm.monitoredConfig" -}}
{{- if include "qlm.monitored" . -}}
grpc: {host: 0.0.0.0, port: 8001}
monitor: {host: 0.0.0.0, port: 8002}
{{- with .Values.tracing }}
tracing: {{ toJson . }}
{{- end }}
{{- end -}}
{{- end -}}

{{- /* Options of every command that runs parts, as a JSON list. */ -}}
{{- define "qlm.options" -}}
{{- $options := list "--config" "/etc/qlm/qlm.yaml" "--log-level" .Values.logLevel -}}
{{- if include "qlm.monitored" . -}}
{{- $options = concat $options (list "--log-format" .Values.logFormat) -}}
{{- end -}}
{{- toJson $options -}}
{{- end -}}

{{- /* Probes of a process without a gateway. Liveness has a long breath: a restart costs the engines. */ -}}
{{- define "qlm.monitorProbes" -}}
{{- if include "qlm.monitored" . -}}
startupProbe:
  httpGet: {path: /healthz, port: monitor}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: monitor}
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: monitor}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end -}}
{{- end -}}
