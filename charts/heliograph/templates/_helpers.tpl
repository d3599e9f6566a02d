{{- define "heliograph.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "heliograph.operator" -}}
{{- printf "%s-operator" (include "heliograph.name" .) -}}
{{- end }}

{{- define "heliograph.selector" -}}
app.kubernetes.io/name: heliograph
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "heliograph.labels" -}}
{{ include "heliograph.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* An image from the values: by digest if there is one, else by tag; the default tag is the chart's version. */ -}}
{{- define "heliograph.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end }}

{{- /* "true" if an optional object is to be created: for true, or for auto if the API server has the kind. */ -}}
{{- define "heliograph.wanted" -}}
{{- $enabled := toString .enabled -}}
{{- if or (eq $enabled "true") (and (eq $enabled "auto") (.root.Capabilities.APIVersions.Has .api)) -}}true{{- end -}}
{{- end }}

{{- define "heliograph.podSecurity" -}}
runAsNonRoot: true
{{- if .Values.fixedUser }}
runAsUser: 10001
runAsGroup: 10001
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "heliograph.containerSecurity" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}
