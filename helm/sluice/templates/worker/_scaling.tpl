{{- define "sluice.workerTarget" -}}
{{- if eq .Values.worker.kind "LeaderWorkerSet" -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
{{- else -}}
apiVersion: apps/v1
kind: Deployment
{{- end }}
name: {{ include "sluice.fullname" . }}-worker
{{- end -}}

{{/* Up at once, down one worker at a time: a worker takes half an hour to come back. Takes .Values.worker. */}}
{{- define "sluice.workerScaling" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies:
    - {type: Percent, value: 100, periodSeconds: 60}
scaleDown:
  stabilizationWindowSeconds: {{ int .autoscaling.scaleDownWindowSeconds }}
  policies:
    - {type: Pods, value: 1, periodSeconds: 300}
{{- end -}}
