{{/* The value taint. `helm upgrade --reuse-values` brings no value that the chart before did not have: then it is the default. */}}
{{- define "rail-cni.taint" -}}
{{- if kindIs "invalid" .Values.taint }}rail-cni/not-ready{{ else }}{{ .Values.taint }}{{ end }}
{{- end }}
