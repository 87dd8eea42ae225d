{{/* What the pods of both DaemonSets have, by the values. */}}
{{- define "rail-cni.pod" -}}
serviceAccountName: {{ include "rail-cni.agent" . }}
# Only the container that asks the API server gets the token.
automountServiceAccountToken: false
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
terminationGracePeriodSeconds: 10
# The host's processes: what the agent judges, it judges in the namespaces of process 1.
hostPID: true
# Pods of this network start before the cluster's own network does.
hostNetwork: true
{{- end }}

{{/* What their containers have: all of them change the host. */}}
{{- define "rail-cni.container" -}}
image: {{ include "rail-cni.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  privileged: true
  readOnlyRootFilesystem: true
{{- with .Values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What automountServiceAccountToken would mount into all containers. */}}
{{- define "rail-cni.token" -}}
- name: token
  projected:
    defaultMode: 256 # 0400
    sources:
    - serviceAccountToken:
        path: token
        expirationSeconds: 3607
    - configMap:
        name: kube-root-ca.crt
        items:
        - key: ca.crt
          path: ca.crt
    - downwardAPI:
        items:
        - path: namespace
          fieldRef:
            apiVersion: v1
            fieldPath: metadata.namespace
{{- end }}
