{{/* The Job of an update, as a flow makes it: the flow adds the cycle's name, the number of pods, and what they train. */}}
{{- define "tabloop.trainingJob" -}}
{{- $training := .Values.training }}
{{- $names := dict "component" "trainer" "target" "trainer" "of" "trainer" }}
{{- $context := merge (dict "root" . "pod" $training.pod "sharedMemory" $training.sharedMemory) $names -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ include "tabloop.fullname" . | trunc 22 | trimSuffix "-" }}-train  # the flow adds 24 characters, of 52
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "tabloop.labels" $context | nindent 4 }}
spec:
  backoffLimit: 0
  ttlSecondsAfterFinished: 86400
  template:
    metadata:
      labels:
        {{- include "tabloop.labels" $context | nindent 8 }}
        {{- with $training.pod.labels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $training.pod.annotations }}
      annotations: {{ toJson . }}
      {{- end }}
    spec:
      {{- include "tabloop.podFields" $context | nindent 6 }}
      serviceAccountName: {{ include "tabloop.fullname" . }}-trainer
      automountServiceAccountToken: false
      restartPolicy: Never
      terminationGracePeriodSeconds: 60
      containers:
        - name: trainer
          {{- include "tabloop.container" $context | nindent 10 }}
          command: [python, -m, tasks.trainer.pod]
          ports:
            - {name: rendezvous, containerPort: 29500}
          resources:
            requests: {{ toJson $training.resources.requests }}
            limits: {{ merge (dict .Values.engines.gpuResource "{{ gpus }}") $training.resources.limits | toJson }}
      volumes:
        {{- include "tabloop.volumes" $context | nindent 8 }}
        - {name: state, emptyDir: {sizeLimit: {{ $training.disk }}}}
{{- end }}
