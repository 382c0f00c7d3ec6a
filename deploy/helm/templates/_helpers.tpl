{{- define "tuner.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "tuner.labels" -}}
app.kubernetes.io/name: tuner
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "tuner.selector" -}}
app.kubernetes.io/name: tuner
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: service
{{- end }}

{{- define "tuner.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* What the pods of the service and of Ray have in common. */}}
{{- define "tuner.pod" -}}
enableServiceLinks: false  # otherwise a service named tuner would set TUNER_PORT
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.serviceAccount.name }}
serviceAccountName: {{ . }}
{{- end }}
{{- end }}

{{/* Trials read and write checkpoints from every node, so every node has the storage and its credentials. */}}
{{- define "tuner.env" -}}
{{- if or .service .Values.storageSecret.name }}
envFrom:
  {{- with .Values.storageSecret.name }}
  - secretRef: {name: {{ . }}}
  {{- end }}
  {{- if .service }}
  - secretRef: {name: {{ .Values.secret.name }}}
  {{- end }}
{{- end }}
env:
  - {name: TUNER_STORAGE, value: {{ required "set storage, for example to s3://my-bucket/tuner" .Values.storage | quote }}}
  {{- /* As JSON, since large numbers are otherwise rendered as 2e+07. */}}
  {{- range $name, $value := .Values.env }}
  - {name: {{ $name }}, value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}}
  {{- end }}
{{- end }}

{{/* The nodes that Ray's autoscaler may add, for TUNER_NODE_TYPES. As for Ray, limits count before requests, and are rounded up. */}}
{{- define "tuner.nodeTypes" -}}
{{- $types := list }}
{{- range .Values.ray.workers }}
{{- $amounts := list }}
{{- range $name, $amount := mergeOverwrite dict (.resources.requests | default dict) (.resources.limits | default dict) }}
{{- $amount = toString $amount }}
{{- $amount = hasSuffix "m" $amount | ternary (divf (trimSuffix "m" $amount) 1000) $amount | ceil }}
{{- if and (gt $amount 0.0) (or (eq $name "cpu") (hasSuffix "gpu" $name)) }}
{{- $amounts = append $amounts (printf "%s:%v" (eq $name "cpu" | ternary "CPU" "GPU") $amount) }}
{{- end }}
{{- end }}
{{- if $amounts }}
{{- $types = append $types (printf "%dx%s" (int64 .max) (join "+" $amounts)) }}
{{- end }}
{{- end }}
{{- join "," $types }}
{{- end }}
