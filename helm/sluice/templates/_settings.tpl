{{/* The gateway's configuration file. */}}

{{/*
A value as block YAML. Not toYaml: that writes 1048576 as 1.048576e+06 and the edges of `ttft` as text, out of order.
*/}}
{{- define "sluice.block" -}}
{{- $value := . -}}
{{- if and (kindIs "map" $value) $value -}}
{{- $sorted := list -}}
{{- range $key := keys $value -}}
{{- if regexMatch "^[0-9]{1,19}$" $key -}}
{{- $sorted = append $sorted (printf "%s%s" (repeat (int (sub 20 (len $key))) "0") $key) -}}
{{- else -}}
{{- $sorted = append $sorted $key -}}
{{- end -}}
{{- end -}}
{{- $lines := list -}}
{{- range $padded := sortAlpha $sorted -}}
{{- $key := $padded -}}
{{- if regexMatch "^[0-9]{20}$" $padded -}}{{- $key = regexReplaceAll "^0+" $padded "" -}}{{- end -}}
{{- $item := index $value $key -}}
{{- if kindIs "invalid" $item -}}
{{- else if and (or (kindIs "map" $item) (kindIs "slice" $item)) $item -}}
{{- $lines = append $lines (printf "%s:\n%s" $key (include "sluice.block" $item | indent 2)) -}}
{{- else -}}
{{- $lines = append $lines (printf "%s: %s" $key (include "sluice.block" $item)) -}}
{{- end -}}
{{- end -}}
{{- join "\n" $lines -}}
{{- else if and (kindIs "slice" $value) $value -}}
{{- $lines := list -}}
{{- range $item := $value -}}
{{- $lines = append $lines (printf "- %s" (include "sluice.block" $item | indent 2 | trim)) -}}
{{- end -}}
{{- join "\n" $lines -}}
{{- else -}}
{{- toJson $value -}}
{{- end -}}
{{- end -}}

{{/* Whether gateways tell the cluster which worker is the cheapest to lose: where something scales a Deployment. */}}
{{- define "sluice.tellsDeletionCost" -}}
{{- with .Values.worker -}}
{{- and .enabled (eq .kind "Deployment") (ne .autoscaling.mode "none") (eq $.Values.gateway.discovery "kubernetes") -}}
{{- end -}}
{{- end -}}

{{/* How many gateways there may be: one that cannot ask the others takes no more than its part. */}}
{{- define "sluice.gatewaysMost" -}}
{{- with .Values.gateway -}}
{{- ternary .autoscaling.maxReplicas .replicas .autoscaling.enabled -}}
{{- end -}}
{{- end -}}

{{- define "sluice.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- $workers := printf "%s-workers" (include "sluice.fullname" .) -}}
{{- $pool := dict "discovery" "kubernetes" "service" $workers "port_name" "http" "namespace" .Release.Namespace -}}
{{- if eq (include "sluice.tellsDeletionCost" .) "true" -}}
{{- $_ := set $pool "kubernetes" (dict "deletion_cost" true) -}}
{{- end -}}
{{- if eq .Values.gateway.discovery "dns" -}}
{{- $pool = dict "discovery" "dns" "name" (printf "%s.%s.svc" $workers .Release.Namespace) "port" (int .Values.worker.port) -}}
{{- end -}}
{{- $listen := dict "host" "0.0.0.0" "port" 8080 "admin_host" "0.0.0.0" "admin_port" 8081 -}}
{{- $limits := dict "drain_delay_s" (int .Values.drain.delaySeconds) "grace_s" (int (include "sluice.gatewayGraceSeconds" .)) "whole_s" (int .Values.drain.seconds) -}}
{{- if and (hasPrefix "redis" (default "" $settings.state)) (not (dig "limits" "replicas_assumed" 0 $settings)) -}}
{{- $_ := set $limits "replicas_assumed" (int (include "sluice.gatewaysMost" .)) -}}
{{- end -}}
{{- $settings = mergeOverwrite $settings (dict "pool" $pool "listen" $listen "limits" $limits) -}}
{{- with .Values.worker -}}
{{- if not .emulated -}}
{{- $_ := set $settings.pool "profile" (default .profile $settings.pool.profile) -}}
{{- /* Workers that run something else than the profile on purpose would never be confirmed. */ -}}
{{- if and (or .kvCacheDtype .speculation .schedule .tensorParallel .contextTokens) (not (hasKey $settings.pool "confirm_profile")) -}}
{{- $_ := set $settings.pool "confirm_profile" false -}}
{{- end -}}
{{- end -}}
{{- end -}}
# Made by the chart; every setting is described in deploy/SETTINGS.md.
{{ include "sluice.block" $settings }}
{{- if not .Values.keepLedger }}
ledger: null
{{- end }}
{{- end -}}
