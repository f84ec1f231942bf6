{{- /* Sections of qlm.yaml for what listens beside HTTP, and for traces. */ -}}
{{- define "qlm.doorsConfig" -}}
grpc:
  host: 0.0.0.0
  port: {{ ternary 8001 0 .Values.grpc.enabled }}
  {{- if .Values.grpc.tlsSecret }}
  tls: {cert: /etc/qlm/grpc-tls/tls.crt, key: /etc/qlm/grpc-tls/tls.key}
  {{- end }}
admin: {{ merge (dict "host" "0.0.0.0" "port" 8090) (include "qlm.hostNames" (list . "admin" "gateway-admin") | fromJson) | toJson }}
monitor: {host: 0.0.0.0, port: 8002}
{{- with .Values.tracing }}
tracing: {{ toJson . }}
{{- end }}
{{- end -}}

{{- /*
Names by which a listener may be called, as JSON: those of the values, and if there are any, those of its Service, by
which parts of the chart call it. Call with (list $ "admin" "gateway-admin").
*/ -}}
{{- define "qlm.hostNames" -}}
{{- $root := index . 0 -}}
{{- $given := dig (index . 1) "allowed_hosts" (list) (deepCopy $root.Values.config) -}}
{{- $service := printf "%s-%s" (include "qlm.fullname" $root) (index . 2) -}}
{{- $inNamespace := printf "%s.%s" $service $root.Release.Namespace -}}
{{- $own := list $service $inNamespace (printf "%s.svc" $inNamespace) -}}
{{- if $given }}{{ dict "allowed_hosts" (concat $given $own | uniq) | toJson }}{{ else }}{}{{ end -}}
{{- end -}}

{{- /* Options of every command that runs parts, as a JSON list. */ -}}
{{- define "qlm.options" -}}
{{- list "--config" "/etc/qlm/qlm.yaml" "--log-level" .Values.logLevel "--log-format" .Values.logFormat | toJson -}}
{{- end -}}

{{- /* Probes of a process without a gateway. Liveness has a long breath: a restart costs the engines. */ -}}
{{- define "qlm.monitorProbes" -}}
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

{{- /* The token by which Prometheus may read metrics. */ -}}
{{- define "qlm.scrapeToken" -}}
authorization:
  type: Bearer
  credentials: {name: {{ include "qlm.secret" . | quote }}, key: admin-token}
{{- end -}}

{{- /* Whether only known clients reach the gateways: as said, or as the network policy names them. */ -}}
{{- define "qlm.behindProxy" -}}
{{- $closed := and .Values.networkPolicy.enabled (not (empty .Values.networkPolicy.clientsFrom)) -}}
{{- or .Values.gateway.behindProxy $closed -}}
{{- end -}}
