# An image for every pod of a Ray cluster: Ray, Eagleray and what its models need.
#
#   docker build -t eagleray:0.1.0 .
#   docker build -t eagleray:0.1.0-gpu --build-arg BASE=rayproject/ray:2.60.0-py311-gpu --build-arg EXTRAS=storage,cuda,torch .
#
# On one machine, without Kubernetes:
#
#   docker run --rm --shm-size=2g -p 127.0.0.1:8000-8002:8000-8002 -v /models:/models:ro eagleray:0.1.0 \
#     eagleray serve --model-repository /models --http-address 0.0.0.0 --grpc-address 0.0.0.0
ARG BASE=rayproject/ray:2.60.0-py311-cpu
FROM ${BASE}

ARG EXTRAS=storage

# The base's own user, without rights: KubeRay's pods run as it, too.
USER 1000:100
WORKDIR /home/ray
COPY --chown=1000:100 pyproject.toml constraints.txt README.md eagleray-src/
COPY --chown=1000:100 app eagleray-src/app
COPY --chown=1000:100 deployments eagleray-src/deployments
COPY --chown=1000:100 eagleray eagleray-src/eagleray
COPY --chown=1000:100 protocol eagleray-src/protocol
COPY --chown=1000:100 repository_loader eagleray-src/repository_loader
RUN pip install --no-cache-dir --constraint eagleray-src/constraints.txt "./eagleray-src[${EXTRAS}]"
RUN eagleray version && python -c "import eagleray; eagleray.build"

ENV RAY_worker_niceness=0 RAY_USAGE_STATS_ENABLED=0 RAY_ROTATION_MAX_BYTES=67108864 RAY_ROTATION_BACKUP_COUNT=3 \
    MALLOC_ARENA_MAX=2 ORT_DISABLE_TELEMETRY=1
EXPOSE 8000 8001 8002
CMD ["eagleray", "serve", "--help"]
