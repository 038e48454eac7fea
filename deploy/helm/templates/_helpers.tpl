{{- define "holdfast.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "holdfast.labels" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "holdfast.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{/* Name and address of every data node, made from the number of replicas. */}}
{{- define "holdfast.dataNodes" -}}
{{- $name := include "holdfast.name" . -}}
{{- range $number := until (int .Values.dataNodes.replicas) }}
node-{{ $number }}: {{ $name }}-node-{{ $number }}.{{ $name }}-node.{{ $.Release.Namespace }}.svc:8816
{{- end }}
{{- end }}

{{/* The graph file, with `copies` behind every quiver if there are data nodes. */}}
{{- define "holdfast.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if gt (int .Values.dataNodes.replicas) 0 -}}
{{- $nodes := include "holdfast.dataNodes" . | fromYaml -}}
{{- $copies := dict "kind" "exporter" "type" "nodes" "config" (dict "nodes" $nodes "token" "${env:NODE_TOKEN}") -}}
{{- range $key, $node := $config.nodes -}}
{{- if eq $node.type "quiver" -}}
{{- $_ := set $node "to" (append $node.to "copies") -}}
{{- end -}}
{{- end -}}
{{- $_ := set $config.nodes "copies" $copies -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}

{{- define "holdfast.security" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "holdfast.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
