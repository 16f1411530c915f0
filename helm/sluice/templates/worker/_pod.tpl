{{/*
The pod of one worker. Takes (list $ rank): rank is "" for a worker on one node, else leader or follower of several.
*/}}

{{- define "sluice.workerArgs" -}}
{{- $root := index . 0 -}}{{- $rank := index . 1 -}}{{- $own := $root.Values.worker -}}
{{- if $own.emulated }}
- emulate
- --host=0.0.0.0
- --port={{ int $own.port }}
- --shutdown-timeout={{ include "sluice.shutdownSeconds" $root }}
{{- else }}
- worker
- run
- --profile={{ $own.profile }}
- --host=0.0.0.0
- --port={{ int $own.port }}
- --engine-python=/opt/engine/bin/python3
- --shutdown-grace-s={{ include "sluice.shutdownSeconds" $root }}
{{- with $own.model }}
- --model={{ . }}
{{- end }}
{{- with $own.tensorParallel }}
- --tensor-parallel={{ int . }}
{{- end }}
{{- with $own.kvCacheDtype }}
- --kv-cache-dtype={{ . }}
{{- end }}
{{- with $own.contextTokens }}
- --context-tokens={{ int . }}
{{- end }}
{{- with $own.runningRequests }}
- --running-requests={{ int . }}
{{- end }}
{{- with $own.speculation }}
- --speculation={{ . }}
{{- end }}
{{- with $own.schedule }}
- --schedule={{ . }}
{{- end }}
{{- if $rank }}
- --nodes={{ int $own.nodes }}
- --node-rank=$(LWS_WORKER_INDEX)
- --leader=$(LWS_LEADER_ADDRESS)
{{- end }}
{{- end }}
{{- range $own.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "sluice.workerHook" -}}
{{- $root := index . 0 -}}{{- $rank := index . 1 -}}
{{- $words := printf "drain --delay-s=%d --deadline-s=%s" (int $root.Values.drain.delaySeconds) (include "sluice.workerDrainSeconds" $root) -}}
{{- if eq $rank "follower" -}}
# It computes for the leader, so it stays as long as the leader has work. Only a shell puts the address in.
- sh
- -c
- exec /opt/sluice/bin/sluice worker {{ $words }} --url="http://$LWS_LEADER_ADDRESS:{{ int $root.Values.worker.port }}"
{{- else -}}
{{- range list "/opt/sluice/bin/sluice" "worker" }}
- {{ . }}
{{- end }}
{{- range splitList " " $words }}
- {{ . }}
{{- end }}
- --url=http://127.0.0.1:{{ int $root.Values.worker.port }}
{{- end }}
{{- end -}}

{{- define "sluice.workerPod" -}}
{{- $root := index . 0 -}}{{- $rank := index . 1 -}}{{- $own := $root.Values.worker -}}
metadata:
  {{- include "sluice.podMeta" (list $root "worker" $own) | nindent 2 }}
  {{- with $own.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "sluice.fullname" $root }}-worker
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "sluice.graceSeconds" $root }}
  {{- if and $own.runtimeClassName (not $own.emulated) }}
  runtimeClassName: {{ $own.runtimeClassName }}
  {{- end }}
  securityContext:
    {{- include "sluice.podSecurity" $root | nindent 4 }}
  {{- include "sluice.placement" (list $root "worker" $own) | nindent 2 }}
  containers:
    - name: worker
      image: {{ include "sluice.image" (list $root (ternary $root.Values.image $own.image $own.emulated)) }}
      imagePullPolicy: {{ (ternary $root.Values.image $own.image $own.emulated).pullPolicy }}
      args:
        {{- include "sluice.workerArgs" . | trim | nindent 8 }}
      env:
        # The uid has no entry in /etc/passwd: what asks for a name or a home finds it here.
        - {name: USER, value: sluice}
        - {name: HOME, value: /tmp}
        {{- if not $own.emulated }}
        - {name: HF_HOME, value: {{ $own.cache.mountPath }}}
        - {name: XDG_CACHE_HOME, value: {{ $own.cache.mountPath }}/.cache}
        - {name: VLLM_NO_USAGE_STATS, value: "1"}
        {{- with $own.tokenSecret }}
        - name: HF_TOKEN
          valueFrom:
            secretKeyRef: {name: {{ . }}, key: token}
        {{- end }}
        {{- end }}
        {{- with $own.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $own.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if ne $rank "follower" }}
      ports:
        - {name: http, containerPort: {{ int $own.port }}}
      # Loading the weights takes minutes; until this has passed once nothing else is asked.
      startupProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: {{ div (add (int $own.startup.seconds) 4) 5 }}
      # Patient: an engine that is merely full answers late, and the gateway watches its progress anyway.
      livenessProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 10
        timeoutSeconds: 10
        failureThreshold: 12
      readinessProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 2
        timeoutSeconds: 5
        failureThreshold: 3
      {{- end }}
      lifecycle:
        preStop:
          # Gateways see the endpoint terminating and send nothing more. Returns when the engine has nothing left to do:
          # what arrives after SIGTERM would fail.
          exec:
            command:
              {{- include "sluice.workerHook" . | nindent 14 }}
      resources:
        {{- $resources := deepCopy $own.resources }}
        {{- if and (not $own.emulated) $own.gpu.count }}
        {{- $gpu := dict $own.gpu.resource (int $own.gpu.count) }}
        {{- $resources = mergeOverwrite $resources (dict "limits" $gpu "requests" $gpu) }}
        {{- end }}
        {{- toYaml $resources | nindent 8 }}
      securityContext:
        {{- include "sluice.containerSecurity" $root | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- if not $own.emulated }}
        - {name: shm, mountPath: /dev/shm}
        - {name: models, mountPath: {{ $own.cache.mountPath }}}
        {{- end }}
        {{- with $own.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- if not $own.emulated }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ $own.sharedMemory }}}
    - name: models
      {{- if $own.cache.enabled }}
      persistentVolumeClaim:
        claimName: {{ default (printf "%s-models" (include "sluice.fullname" $root)) $own.cache.existingClaim }}
      {{- else }}
      emptyDir: {}
      {{- end }}
    {{- end }}
    {{- with $own.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
