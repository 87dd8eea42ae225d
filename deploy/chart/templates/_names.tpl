{{/* The name of the agent, which its account, its roles and its policies have, too. */}}
{{- define "rail-cni.agent" -}}{{ .Values.fullnameOverride | default "rail-agent" }}{{- end }}

{{- define "rail-cni.config" -}}{{ .Values.fullnameOverride | default "rail-cni" }}{{- end }}

{{- define "rail-cni.uninstall" -}}{{ with .Values.fullnameOverride }}{{ . }}-uninstall{{ else }}rail-uninstall{{ end }}{{- end }}
