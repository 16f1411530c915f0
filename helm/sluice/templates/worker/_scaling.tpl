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

{{/* The scaler's pool label: the release, so that two in one Prometheus are told apart. */}}
{{- define "sluice.pool" -}}
{{ .Release.Namespace }}/{{ include "sluice.fullname" . }}
{{- end -}}

{{/* A number that is present is a fresh one: a scaler that has known nothing for five minutes is not asked. */}}
{{- define "sluice.desiredQuery" -}}
{{- $pool := include "sluice.pool" . -}}
max(sluice_desired_replicas{pool="{{ $pool }}"} and on (instance) (sluice_scaler_input_age_seconds{pool="{{ $pool }}"} < 300))
{{- end -}}

{{/* Up at once, down one worker at a time: a worker takes half an hour to come back. Takes .Values.worker. `scaleUp` stands last, so that
more can be put into it. */}}
{{- define "sluice.workerScaling" -}}
scaleDown:
  stabilizationWindowSeconds: {{ int .autoscaling.scaleDownWindowSeconds }}
  policies:
    - {type: Pods, value: 1, periodSeconds: 300}
scaleUp:
  stabilizationWindowSeconds: 0
  policies:
    - {type: Percent, value: 100, periodSeconds: 60}
    - {type: Pods, value: 2, periodSeconds: 60}
  selectPolicy: Max
{{- end -}}
