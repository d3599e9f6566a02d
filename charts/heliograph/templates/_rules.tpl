{{- /* The permissions in operator/heliograph_operator/kube/permissions.py; a test compares the two. */ -}}
{{- define "heliograph.rules" -}}
- apiGroups: [heliograph.dev]
  resources: [brokerclusters, brokerconnections, tenants, namespaces, topics, subscriptions, users]
  verbs: [get, list, watch, patch]
- apiGroups: [heliograph.dev]
  resources: [backups]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [heliograph.dev]
  resources: [scheduledbackups]
  verbs: [get, list, watch]
- apiGroups: [heliograph.dev]
  resources: [brokerclusters/status, brokerconnections/status, tenants/status, namespaces/status, topics/status, subscriptions/status, backups/status, scheduledbackups/status, users/status]
  verbs: [patch]
- apiGroups: [heliograph.dev]
  resources: [brokerclusters/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
{{- if .Values.archive.enabled }}
- apiGroups: [batch]
  resources: [cronjobs]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
{{- if .Values.tls.enabled }}
- apiGroups: [""]
  resources: [secrets]
  {{- with .Values.tls.secrets }}
  resourceNames: {{ toJson . }}
  {{- end }}
  verbs: [get, update]
- apiGroups: [""]
  resources: [secrets]
  # What does not exist has no name yet.
  verbs: [create]
{{- end }}
{{- with .Values.connections.secrets }}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: {{ toJson . }}
  verbs: [get]
{{- end }}
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, create, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [list, watch, patch, delete]
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{- /* For keys and tokens, in fewer Kubernetes namespaces than the rules above. */ -}}
{{- define "heliograph.secretRules" -}}
- apiGroups: [""]
  resources: [secrets]
  {{- with .Values.authentication.secrets }}
  resourceNames: {{ toJson . }}
  {{- end }}
  verbs: [get, update]
- apiGroups: [""]
  resources: [secrets]
  # What does not exist has no name yet.
  verbs: [create]
{{- end }}
