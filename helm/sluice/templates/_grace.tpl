{{/* One number: how long a pod may take to leave. Its parts are in values.yaml under `drain`. */}}

{{- define "sluice.graceSeconds" -}}
{{- add (int .Values.drain.delaySeconds) (int .Values.drain.seconds) (int .Values.drain.marginSeconds) -}}
{{- end -}}

{{/* How long a worker's preStop hook may wait until the engine has nothing to do. */}}
{{- define "sluice.workerDrainSeconds" -}}
{{- add (int .Values.drain.delaySeconds) (int .Values.drain.seconds) -}}
{{- end -}}

{{/* vLLM's --shutdown-timeout, for what has run even longer: SIGKILL comes 10 s after its end. */}}
{{- define "sluice.shutdownSeconds" -}}
{{- sub (int .Values.drain.marginSeconds) 10 -}}
{{- end -}}

{{/* The gateway keeps the last 3.6 s of its grace for the last bytes: what runs is cut only after delay + seconds. */}}
{{- define "sluice.gatewayGraceSeconds" -}}
{{- add (int .Values.drain.delaySeconds) (int .Values.drain.seconds) 4 -}}
{{- end -}}
