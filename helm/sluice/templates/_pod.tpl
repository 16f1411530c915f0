{{/* What pods share. */}}

{{/* Restricted pod security. The uid is above 10000, so it is nobody on the host. */}}
{{- define "sluice.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "sluice.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Placement and what users may add. Takes (list $ component values). */}}
{{- define "sluice.placement" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}{{- $own := index . 2 -}}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "sluice.priorityClass" (list $root $component $own.priorityClassName) }}
priorityClassName: {{ . }}
{{- end }}
{{- with $own.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- if $own.topologySpreadConstraints }}
  {{- toYaml $own.topologySpreadConstraints | nindent 2 }}
{{- else }}
{{- range $key, $over := dict "kubernetes.io/hostname" "nodes" "topology.kubernetes.io/zone" "zones" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: {{ index $own.spread $over }}
    labelSelector:
      matchLabels:
        {{- include "sluice.selector" (list $root $component) | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end }}
{{- end -}}

{{- define "sluice.podMeta" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}{{- $own := index . 2 -}}
labels:
  {{- include "sluice.podLabels" (list $root $component) | nindent 2 }}
  {{- with $own.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "sluice.dnsEgress" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
  to:
    - namespaceSelector:
        {{- toYaml .Values.networkPolicy.dns.namespaceSelector | nindent 8 }}
      podSelector:
        {{- toYaml .Values.networkPolicy.dns.podSelector | nindent 8 }}
{{- end -}}
