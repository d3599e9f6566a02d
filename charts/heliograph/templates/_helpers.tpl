{{- /* Fails if the values lack a section: with --reuse-values they have no defaults but those of the release. */ -}}
{{- define "heliograph.checkValues" -}}
{{- range $path := list "operator" "operator.image" "operator.serviceAccount" "operator.networkPolicy" "broker" "broker.image" "connections" "authentication" "tls" "archive" "archive.image" "defaultCluster" "defaultCluster.spec" "metrics" "metrics.serviceMonitor" "metrics.prometheusRule" "metrics.dashboard" "test" "test.image" }}
{{- $at := $.Values }}
{{- range $name := splitList "." $path }}
{{- if not (kindIs "map" (index $at $name)) }}
{{- fail (printf "%s: the values lack it, as those of a release by an earlier chart do, which --reuse-values keeps; valid: helm upgrade --reset-then-reuse-values, with the defaults of this chart and your values" $path) }}
{{- end }}
{{- $at = index $at $name }}
{{- end }}
{{- end }}
{{- end }}

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

{{- /* "true" if there is a default BrokerCluster whose clients need credentials of the operator's. */ -}}
{{- define "heliograph.closed" -}}
{{- if and .Values.defaultCluster.enabled (dig "authentication" "enabled" false .Values.defaultCluster.spec) -}}true{{- end -}}
{{- end }}

{{/* How Prometheus verifies the metrics' port of the default BrokerCluster, if that has TLS. */}}
{{- define "heliograph.metricsTls" -}}
{{- with .Values.metrics.serviceMonitor.tlsConfig -}}
tlsConfig: {{- toYaml . | nindent 2 }}
{{- else }}
{{- if and .Values.defaultCluster.enabled (dig "tls" "only" false .Values.defaultCluster.spec) -}}
tlsConfig:
  ca: {configMap: {name: {{ .Values.defaultCluster.name }}-ca, key: ca.crt}}
  # Brokers are scraped by their addresses, which no certificate has.
  serverName: {{ .Values.defaultCluster.name }}-metrics.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}
{{- end }}
{{- end }}
