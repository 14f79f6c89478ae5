{{- define "eagleray.labels" -}}
app.kubernetes.io/name: eagleray
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "eagleray.pod" -}}
{{- $root := .root -}}
metadata:
  labels:
    {{- include "eagleray.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  {{- /* As long as an ingress takes to end: the Service hears of it, requests under way are answered, and 20 s. */}}
  {{- $delay := int (default 0 $root.Values.settings.drain_delay_s) }}
  {{- $drain := add $delay (int (default 30 $root.Values.settings.exit_timeout_secs)) 20 }}
  terminationGracePeriodSeconds: {{ add $drain 30 }}
  # Kubernetes would describe each Service in variables: EAGLERAY_PORT and the like, which would be settings.
  enableServiceLinks: false
  securityContext:
    runAsNonRoot: true
    runAsUser: 1000
    runAsGroup: 100
    fsGroup: 100
    seccompProfile:
      type: RuntimeDefault
  {{- if .gpus }}
  tolerations:
    - key: nvidia.com/gpu
      operator: Exists
      effect: NoSchedule
  {{- end }}
  containers:
    - name: ray
      image: {{ printf "%s:%s" $root.Values.image.repository $root.Values.image.tag | quote }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      ports:
        {{- range $name, $port := .ports }}
        - name: {{ $name }}
          containerPort: {{ $port }}
        {{- end }}
      env:
        # Ray runs its workers at niceness 15, which is right for batch work and wrong for a server.
        - name: RAY_worker_niceness
          value: "0"
        # ONNX Runtime sends what it is used for to Microsoft.
        - name: ORT_DISABLE_TELEMETRY
          value: "1"
        - name: EAGLERAY_MODEL_CACHE_DIR
          value: /var/cache/eagleray
      envFrom:
        - secretRef:
            name: {{ $root.Values.storageSecret }}
            optional: true
      resources:
        requests:
          cpu: {{ .cpu | quote }}
          memory: {{ .memory }}
          {{- if .gpus }}
          nvidia.com/gpu: {{ .gpus }}
          {{- end }}
        limits:
          cpu: {{ .cpu | quote }}
          memory: {{ .memory }}
          {{- if .gpus }}
          nvidia.com/gpu: {{ .gpus }}
          {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        capabilities:
          drop: [ALL]
      {{- if eq .component "worker" }}
      # KubeRay adds its own probes where there are none; its liveness probe asks the raylet, and so restarts what hangs.
      readinessProbe:
        httpGet:
          path: /v2/health/ready
          port: serve
        periodSeconds: 5
        timeoutSeconds: 2
        failureThreshold: 2
      {{- end }}
      lifecycle:
        preStop:
          exec:
            {{- if eq .component "worker" }}
            # Serve has what runs here finish what it has, and starts it elsewhere; at its SIGTERM Ray ends it at once.
            command:
              - sh
              - -c
              - >-
                timeout 30 ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION --reason-message 'the pod ends'
                --deadline-remaining-seconds {{ $drain }} & sleep {{ $drain }}
            {{- else }}
            # Workers that end with the head tell it that they drain.
            command: ["sleep", "15"]
            {{- end }}
      volumeMounts:
        - name: shared-memory
          mountPath: /dev/shm
        - name: models
          mountPath: /var/cache/eagleray
  volumes:
    - name: shared-memory
      emptyDir:
        medium: Memory
        sizeLimit: {{ $root.Values.sharedMemorySize }}
    - name: models
      emptyDir:
        sizeLimit: {{ $root.Values.modelCacheSize }}
{{- end }}
