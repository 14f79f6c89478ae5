"""Every setting once: the source of the CLI's flags, the environment, the `args` of serve_config.yaml and the docs.

A field's `flag` is spelled as tritonserver spells it where it has one. The environment variable of a setting is
`EAGLERAY_` and its name in capitals; a flag wins over it.
"""

import os
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Port = Annotated[int, Field(ge=0, le=65535)]


class Settings(BaseModel):
    """What an operator can set."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model_repository: tuple[str, ...] = Field(
        (), description="Path of a model repository; may be given several times.", min_length=1
    )
    id: str = Field("triton", description="Name of the server in its metadata.")
    placement: Literal["isolated", "packed", "embedded"] = Field(
        "isolated",
        description="Where models run: each version in a deployment of its own, many in one deployment, or in the "
        "ingress itself.",
    )
    http_address: str = Field("127.0.0.1", description="Address on which HTTP is served.")
    http_port: Port = Field(8000, description="Port on which HTTP is served; 0 takes a free one.")
    metrics_address: str = Field("", description="Address on which metrics are served; empty: the HTTP address.")
    metrics_port: Port = Field(8002, description="Port on which metrics are served; 0 takes a free one.")
    allow_metrics: bool = Field(True, description="Whether metrics are served.")
    allow_cpu_metrics: bool = Field(True, description="Whether metrics of the CPU and memory are among them.")
    model_control_mode: Literal["none", "explicit"] = Field(
        "none", description="none: load every model at the start; explicit: only those named by --load-model."
    )
    load_model: tuple[str, ...] = Field(
        (), description="Model to load at the start in explicit mode, or * for all; may be given several times."
    )
    strict_readiness: bool = Field(True, description="Whether the server is ready only when every model is.")
    exit_on_error: bool = Field(False, description="Whether to stop when a model fails to load at the start.")
    strict_model_config: bool = Field(
        False, description="Deprecated by Triton: whether config.pbtxt must be complete.", deprecated=True
    )
    disable_auto_complete_config: bool = Field(False, description="Whether config.pbtxt must be complete.")
    model_config_name: str = Field("", description="Name of the custom configuration configs/<name>.pbtxt to use.")
    backend_config: tuple[str, ...] = Field(
        (), description="Setting of a backend, as [<backend>,]<key>=<value>; may be given several times."
    )
    kind_gpu_fallback_to_cpu: bool = Field(
        False, description="Whether KIND_GPU instances run on the CPU where the cluster has no GPU."
    )
    http_max_input_size: int = Field(64 << 20, description="Largest HTTP request body, in bytes.", gt=0)
    http_header_timeout_s: float = Field(10.0, description="Time in which a request's head must arrive.", gt=0)
    http_body_timeout_s: float = Field(60.0, description="Time in which a request's body must arrive.", gt=0)
    max_connections: int = Field(4096, description="Largest number of open connections of an ingress.", gt=0)
    max_inflight_per_replica: int = Field(
        4096, description="Largest number of requests under way to one replica; more are refused with 503.", gt=0
    )
    replica_num_cpus: float = Field(
        0.05, description="CPUs that Ray reserves for each replica of a model, unless the model says otherwise.", ge=0
    )
    gpu_memory_bytes: int = Field(
        16 << 30, description="Memory of the cluster's GPUs, from which a replica's fraction of one is computed.", gt=0
    )
    health_check_period_s: float = Field(2.0, description="How often Serve asks a replica whether it is well.", gt=0)
    exit_timeout_secs: float = Field(30.0, description="Time that requests under way get when the server stops.", ge=0)
    lane_tcp: bool = Field(
        True, description="Whether replicas accept lanes from other nodes, over TCP on the node's address."
    )
    log_verbose: int = Field(0, description="Verbosity: 0 says what is loaded, 1 and more what is done.", ge=0)

    @field_validator("http_port", "metrics_port")
    @classmethod
    def _port(cls, value: int) -> int:
        return value

    def backend_settings(self) -> dict[str, dict[str, str]]:
        """Return --backend-config as backend → key → value; the key "" holds what applies to all backends."""
        settings: dict[str, dict[str, str]] = {}
        for entry in self.backend_config:
            backend, comma, rest = entry.partition(",")
            if not comma:
                backend, rest = "", entry
            key, _, value = rest.partition("=")
            settings.setdefault(backend, {})[key] = value
        return settings


def environment() -> dict[str, Any]:
    """Return the settings that the environment gives; those of several values are separated by the path separator."""
    found: dict[str, Any] = {}
    for name, field in Settings.model_fields.items():
        value = os.environ.get(f"EAGLERAY_{name.upper()}")
        if value is not None:
            several = str(field.annotation).startswith("tuple")
            found[name] = tuple(value.split(os.pathsep)) if several else value
    return found
