"""Flags of tritonserver that say something about Triton's own threads, pools and folders.

They are accepted, so that a command line can be kept, and reported as having no effect.
"""

IGNORED_FLAGS = (
    "backend-directory",
    "buffer-manager-thread-count",
    "cache-directory",
    "cuda-memory-pool-byte-size",
    "cuda-virtual-address-size",
    "enable-peer-access",
    "grpc-infer-allocation-pool-size",
    "grpc-infer-thread-count",
    "grpc-max-response-pool-size",
    "host-policy",
    "http-thread-count",
    "metrics-interval-ms",
    "min-supported-compute-capability",
    "model-load-gpu-limit",
    "model-load-thread-count",
    "pinned-memory-pool-byte-size",
    "repoagent-directory",
)
