{{/* Names and labels. A "component" is gateway, worker, scaler, prober or test. */}}

{{- define "sluice.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters, so that suffixes fit into the 63 of a label. */}}
{{- define "sluice.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "sluice.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "sluice.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What never changes over the life of a release. Takes (list $ component). */}}
{{- define "sluice.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "sluice.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Labels of pods: no version of the chart in them, so that a chart upgrade alone restarts nothing. */}}
{{- define "sluice.podLabels" -}}
{{- $root := index . 0 -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/part-of: sluice
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "sluice.labels" -}}
{{- $root := index . 0 -}}
{{ include "sluice.podLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Takes (list $ image). */}}
{{- define "sluice.image" -}}
{{- $root := index . 0 -}}{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default $root.Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{- define "sluice.gatewayScheme" -}}
{{- if dig "listen" "tls" false .Values.settings -}}https{{- else -}}http{{- end -}}
{{- end -}}

{{- define "sluice.secretName" -}}
{{- default (include "sluice.fullname" .) .Values.secrets.existingSecret -}}
{{- end -}}

{{- define "sluice.configMapName" -}}
{{- default (printf "%s-gateway" (include "sluice.fullname" .)) .Values.existingConfigMap -}}
{{- end -}}

{{- define "sluice.priorityClass" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}{{- $own := index . 2 -}}
{{- if $own -}}
{{ $own }}
{{- else if and $root.Values.priorityClasses.create (has $component (list "gateway" "worker")) -}}
{{ include "sluice.fullname" $root }}-{{ $component }}
{{- end -}}
{{- end -}}
