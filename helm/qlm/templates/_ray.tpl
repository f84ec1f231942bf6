{{- define "qlm.rayName" -}}
{{ include "qlm.fullname" . }}-ray
{{- end -}}

{{- /* The image of all nodes of Ray, which must be of one Python: emulated engines if the whole fleet is emulated. */ -}}
{{- define "qlm.rayImage" -}}
{{- $engines := list -}}
{{- range (include "qlm.fleet" . | fromJson).groups }}{{ $engines = append $engines (ternary "emulated" "agent" .emulated) }}{{ end -}}
{{- if gt (len (uniq $engines)) 1 -}}
{{- fail "fleet has entries with emulated models and entries with models of vLLM under agents.runtime ray; expected one of both, since all nodes of Ray run one image" -}}
{{- end -}}
{{- include "qlm.image" (list . (first $engines)) -}}
{{- end -}}

{{- define "qlm.rayEnv" -}}
- {name: RAY_AUTH_MODE, value: token}
- name: RAY_AUTH_TOKEN
  valueFrom: {secretKeyRef: {name: {{ include "qlm.secret" . | quote }}, key: auth_token}}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
- {name: RAY_DEDUP_LOGS, value: "0"}
- {name: RAY_COLOR_PREFIX, value: "0"}
# Ray's autoscaler, of which nothing is asked, would tell every few seconds that instances wait for a place.
- {name: RAY_SCHEDULER_EVENTS, value: "0"}
{{- end -}}

{{- /* Nodes read the token of their Ray when they start, and the supervisor starts anew with another one. */ -}}
{{- define "qlm.rayTokenAnnotation" -}}
{{- with .Values.secrets.rayToken }}
checksum/token: {{ sha256sum . }}
{{- end }}
{{- end -}}

{{- /*
Ports of a node of Ray, fixed so that a NetworkPolicy can name them; engines take theirs, on the loopback interface,
from the range of the kernel, 32768 and up. Agents exchange nothing through Ray's object store.
*/ -}}
{{- define "qlm.rayPorts" -}}
node-manager-port: "6380"
object-manager-port: "6381"
min-worker-port: "10002"
max-worker-port: "10999"
object-store-memory: "104857600"
{{- end -}}

{{- define "qlm.rayStart" -}}
{{- $root := . -}}
ray start --address={{ include "qlm.rayName" . }}-head-svc:6379 --num-cpus=0
{{- range $key, $value := include "qlm.rayPorts" . | fromYaml }} --{{ $key }}={{ $value }}{{ end -}}
{{- end -}}

{{- /* The pod of a worker: call with (list $ group command), command empty where KubeRay writes it. */ -}}
{{- define "qlm.rayWorker" -}}
{{- $root := index . 0 -}}{{- $group := index . 1 -}}{{- $command := index . 2 -}}
metadata:
  labels:
    {{- include "qlm.selector" (list $root "agent") | nindent 4 }}
    qlm.io/group: {{ $group.name | quote }}
    {{- if $command }}
    qlm.io/extra: "true"
    {{- end }}
  {{- with merge (include "qlm.rayTokenAnnotation" $root | fromYaml) (default (dict) $root.Values.agents.podAnnotations) }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "qlm.podSecurity" $root | nindent 2 }}
  {{- include "qlm.pullSecrets" $root | nindent 2 }}
  {{- include "qlm.instancePlace" $group | nindent 2 }}
  terminationGracePeriodSeconds: {{ $root.Values.agents.terminationGracePeriodSeconds }}
  containers:
    - name: worker
      image: {{ include "qlm.rayImage" $root }}
      imagePullPolicy: {{ $root.Values.images.pullPolicy }}
      {{- with $command }}
      command: [bash, -c]
      args:
        - {{ . | quote }}
      {{- end }}
      env:
        {{- include "qlm.rayEnv" $root | nindent 8 }}
      {{- include "qlm.envFrom" $root | nindent 6 }}
      ports:
        - {name: raylet, containerPort: 6380}
        - {name: monitor, containerPort: 8002}
      # KubeRay's own probes ask Ray's dashboard agent, which plain Ray does not have.
      startupProbe:
        tcpSocket: {port: raylet}
        periodSeconds: 2
        failureThreshold: 90
      livenessProbe:
        tcpSocket: {port: raylet}
        periodSeconds: 20
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        tcpSocket: {port: raylet}
        periodSeconds: 5
        timeoutSeconds: 3
      resources:
        {{- include "qlm.instanceResources" $group | nindent 8 }}
      {{- include "qlm.containerSecurity" $root | nindent 6 }}
      volumeMounts:
        {{- include "qlm.sharedMounts" $root | nindent 8 }}
        - {name: shm, mountPath: /dev/shm}
  volumes:
    {{- include "qlm.sharedVolumes" $root | nindent 4 }}
    {{- include "qlm.shmVolume" $group.shmMiB | nindent 4 }}
{{- end -}}
