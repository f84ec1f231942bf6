{{- /*
The beginning of all names, which are also those of Services: no dots, a letter first. Of 31 characters, since a
StatefulSet of an entry of the fleet (20 characters) may have 52: its pods carry its name and a hash in a label.
*/ -}}
{{- define "qlm.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $whole := default (ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name)) .Values.fullnameOverride -}}
{{- $fit := $whole | replace "." "-" | trunc 31 | trimSuffix "-" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $fit) -}}
{{- fail (printf "names would begin with %q; expected letters, digits and hyphens, a letter first, as Services have it: another name of the release, or fullnameOverride" $fit) -}}
{{- end -}}
{{- $fit -}}
{{- end -}}

{{- /* Labels of everything. */ -}}
{{- define "qlm.labels" -}}
app.kubernetes.io/part-of: qlm
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /*
What pods of a component are known by: call with (list $ "gateway"). KubeRay puts app.kubernetes.io/name on its pods
and selects by it: it is none of ours.
*/ -}}
{{- define "qlm.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/part-of: qlm
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- /* Metadata of an object: call with (list $ "name" "component"). */ -}}
{{- define "qlm.metadata" -}}
{{- $root := index . 0 -}}
name: {{ index . 1 | quote }}
namespace: {{ $root.Release.Namespace | quote }}
labels:
  {{- include "qlm.labels" $root | nindent 2 }}
  app.kubernetes.io/component: {{ index . 2 }}
{{- end -}}

{{- define "qlm.secret" -}}
{{- default (include "qlm.fullname" .) .Values.secrets.existing -}}
{{- end -}}

{{- /* An image of QLM's own: call with (list $ "gateway"). */ -}}
{{- define "qlm.image" -}}
{{- $root := index . 0 -}}
{{- $images := $root.Values.images -}}
{{- $name := printf "%s:%s" (index $images (index . 1)) (default $root.Chart.AppVersion $images.tag) -}}
{{- if $images.registry }}{{ trimSuffix "/" $images.registry }}/{{ end }}{{ $name }}
{{- end -}}

{{- define "qlm.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end -}}
