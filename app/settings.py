"""Every setting once: the source of the CLI's flags, the environment, the `args` of serve_config.yaml and the docs.

A field's `flag` is spelled as tritonserver spells it where it has one. The environment variable of a setting is
`EAGLERAY_` and its name in capitals; a flag wins over it.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from app.backend_config import backend_settings
from app.cache_config import cache_bytes
from app.edge.api_keys import ApiKeys
from app.edge.header_forwarding import HeaderForwarding
from app.edge.restricted_api import RestrictedApis
from app.listeners import Listener, clash
from app.rate_limit_resource import rate_limit_resources
from app.service.trace_settings import TraceSettings
from repository_loader.overrides import PlacementChoice
from repository_loader.storage.model_cache import DEFAULT_CACHE_DIR

if TYPE_CHECKING:  # they bring protobuf and gRPC along, which `--help` need not wait for
    from deployments.core.metrics_options import MetricsOptions
    from deployments.core.rate_limit import Given
    from deployments.log.log_options import LogOptions
    from repository_loader.deployment_plan import PlanSettings
    from repository_loader.snapshot import LoaderOptions

FILE_SETTINGS = frozenset(
    {
        "api_key_file",
        "backend_directory",
        "model_cache_dir",
        "log_file",
        "http_unix_socket",
        "http_server_cert",
        "http_server_key",
        "http_root_cert",
        "grpc_server_cert",
        "grpc_server_key",
        "grpc_root_cert",
    }
)
"""Settings that are paths."""

_UNLOAD_S: Final = 3600.0
"""Where nothing bounds a batch."""
_READERS: Final[dict[str, Callable[[Any], object]]] = {
    "http_restricted_api": RestrictedApis,
    "grpc_restricted_protocol": RestrictedApis,
    "api_key": ApiKeys,
    "http_header_forward_pattern": HeaderForwarding,
    "grpc_header_forward_pattern": HeaderForwarding,
    "backend_config": backend_settings,
    "cache_config": cache_bytes,
    "rate_limit_resource": rate_limit_resources,
    "trace_config": TraceSettings,
}
"""What refuses a value that cannot be read."""

Port = Annotated[int, Field(ge=0, le=65535)]
Address = Annotated[str, Field(min_length=1)]
Int64 = Annotated[int, Field(lt=1 << 63)]
Seconds = Annotated[float, Field(le=1e9)]
"""What the waits of the operating system, of Python and of Ray all take."""


class Settings(BaseModel):
    """What an operator can set."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    model_repository: tuple[str, ...] = Field(
        (),
        description="Path of a model repository, or its address: s3://, gs://, as://, or http(s):// of an archive; may "
        "be given several times.",
        min_length=1,
    )
    model_cache_dir: str = Field(
        DEFAULT_CACHE_DIR,
        description="Folder for the models of repositories that are no folders; EAGLERAY_MODEL_CACHE_DIR, where it is "
        "set on a node, names another one for that node.",
    )
    id: str = Field("triton", description="Name of the server in its metadata.")
    placement: PlacementChoice = Field(
        "auto",
        description="Where models run: isolated, each version in a deployment of its own; packed, many in one; "
        "embedded, in the ingress itself; auto isolates what has a reason, as far as there is room, and packs the "
        "rest.",
    )
    ingresses_per_node: int = Field(
        0,
        description="How many ingresses share the ports of each node; 0: one for every four cores, at least 1 and at "
        "most 16, and 1 with embedded models.",
        ge=0,
        le=64,
    )
    min_ingress_nodes: int = Field(
        0,
        description="On how many nodes at least, the head one of them, there are ingresses; others have none while "
        "nothing else runs there, so that Ray's autoscaler gives them back. 0: on every node.",
        ge=0,
        le=1000,
    )
    allow_http: bool = Field(True, description="Whether HTTP is served.")
    http_address: Address = Field("127.0.0.1", description="Address on which HTTP is served.")
    http_port: Port = Field(8000, description="Port on which HTTP is served; 0 takes a free one.")
    http_unix_socket: str = Field(
        "", description="Path of a Unix socket on which HTTP is served as well, to this user only."
    )
    reuse_http_port: bool = Field(
        False, description="Whether the HTTP port may be shared with another server; ingresses always share it."
    )
    http_server_cert: str = Field("", description="File with the certificate of the HTTP server, PEM.")
    http_server_key: str = Field("", description="File with the key of that certificate, PEM.")
    http_root_cert: str = Field(
        "", description="File with the root certificates that HTTP clients' certificates must have, PEM."
    )
    http_use_ssl: bool = Field(False, description="Whether HTTP is served over TLS.")
    http_use_ssl_mutual: bool = Field(
        False, description="Whether HTTP clients must have a certificate signed by --http-root-cert."
    )
    http_restricted_api: tuple[str, ...] = Field(
        (),
        description="Restricts APIs to requests with a header, as <category>[,<category>...]:<header>=<value>; may be "
        "given several times.",
    )
    http_header_forward_pattern: str = Field(
        "",
        description="Headers in whose name this regular expression is found become parameters of the request; it goes "
        "by the case if it begins with (?-i).",
    )
    grpc_header_forward_pattern: str = Field(
        "", description="Pattern as of --http-header-forward-pattern, for the metadata of gRPC calls."
    )
    allow_grpc: bool = Field(True, description="Whether gRPC is served.")
    grpc_address: Address = Field("127.0.0.1", description="Address on which gRPC is served.")
    grpc_port: Port = Field(8001, description="Port on which gRPC is served; 0 takes a free one.")
    reuse_grpc_port: bool = Field(
        False, description="Whether the gRPC port may be shared with another server; ingresses always share it."
    )
    grpc_server_cert: str = Field("", description="File with the certificate of the gRPC server, PEM.")
    grpc_server_key: str = Field("", description="File with the key of that certificate, PEM.")
    grpc_root_cert: str = Field(
        "", description="File with the root certificates that gRPC clients' certificates must have, PEM."
    )
    grpc_use_ssl: bool = Field(False, description="Whether gRPC is served over TLS.")
    grpc_use_ssl_mutual: bool = Field(
        False, description="Whether gRPC clients must have a certificate signed by --grpc-root-cert."
    )
    grpc_restricted_protocol: tuple[str, ...] = Field(
        (),
        description="Restricts methods to calls with the metadata triton-grpc-protocol-<key>, as "
        "<category>[,<category>...]:<key>=<value>; may be given several times.",
    )
    grpc_infer_response_compression_level: Literal["none", "low", "medium", "high"] = Field(
        "none", description="How much responses to inference are compressed."
    )
    grpc_max_message_size: int = Field(
        64 << 20, description="Largest gRPC request message, in bytes.", gt=0, le=2**31 - 1
    )
    grpc_max_decompression_ratio: Int64 = Field(
        100, description="How many times larger than its compressed form a gRPC message may be, beyond 1 MiB.", gt=0
    )
    grpc_keepalive_time: Int64 = Field(
        7_200_000, description="Silence after which the server pings a client, in milliseconds.", gt=0
    )
    grpc_keepalive_timeout: Int64 = Field(20_000, description="Time for the answer to a ping, in milliseconds.", gt=0)
    grpc_keepalive_permit_without_calls: bool = Field(
        False, description="Whether clients may ping while they have no call."
    )
    grpc_http2_max_pings_without_data: Int64 = Field(
        2, description="Accepted for Triton's sake; the server pings only as --grpc-keepalive-time says.", ge=0
    )
    grpc_http2_min_recv_ping_interval_without_data: Int64 = Field(
        300_000, description="Least time between a client's pings without data in between, in milliseconds.", ge=0
    )
    grpc_http2_max_ping_strikes: Int64 = Field(
        2, description="Pings that may come earlier before the connection ends; 0: any number.", ge=0
    )
    grpc_max_connection_age: Int64 = Field(
        0, description="Age at which a connection is told to go, in milliseconds; 0: none.", ge=0
    )
    grpc_max_connection_age_grace: Int64 = Field(
        0, description="Time that its calls get then, in milliseconds; 0: no end.", ge=0
    )
    metrics_address: str = Field("", description="Address on which metrics are served; empty: the HTTP address.")
    metrics_port: Port = Field(8002, description="Port on which metrics are served; 0 takes a free one.")
    api_key_file: str = Field(
        "",
        description="File of API keys, one line each: <name> <scope>[,<scope>...] <SHA-256>, with the scopes infer, "
        "read and manage; a changed file counts within two seconds.",
    )
    api_key: tuple[str, ...] = Field((), description="Line as in --api-key-file; may be given several times.")
    allow_admin_api: bool = Field(
        True, description="Whether clients may load and unload models, and change traffic and trace and log settings."
    )
    admin_address: Address = Field("127.0.0.1", description="Address of the admin API, if it has a port of its own.")
    admin_port: int = Field(
        -1,
        description="Port on which alone the admin API is served, over HTTP; 0 takes a free one, -1: it is served on "
        "the HTTP and gRPC ports.",
        ge=-1,
        le=65535,
    )
    allow_metrics: bool = Field(True, description="Whether metrics are served.")
    allow_cpu_metrics: bool = Field(True, description="Whether metrics have those of CPU and memory.")
    allow_gpu_metrics: bool = Field(True, description="Whether metrics have those of the GPUs.")
    metrics_config: tuple[str, ...] = Field(
        (),
        description="Setting of the metrics, as <key>=<value>: counter_latencies, summary_latencies, "
        "histogram_latencies, summary_quantiles; may be given several times.",
    )
    metrics_aliases: bool = Field(
        False, description="Whether some of Triton's metrics are shown as triton_infer_... and triton_gpu_... too."
    )
    metrics_interval_ms: int = Field(
        2000, description="How often present state is noted for the metrics, in milliseconds.", ge=100, le=3_600_000
    )
    model_control_mode: Literal["none", "poll", "explicit"] = Field(
        "none",
        description="none: load every model at the start; explicit: those of --load-model, others as clients say; "
        "poll: follow what changes in the repositories.",
    )
    repository_poll_secs: Seconds = Field(
        15.0, description="How often the repositories are looked at in poll mode; 0: never, as Triton takes it.", ge=0
    )
    repository_quiet_secs: Seconds = Field(
        2.0,
        description="How long a model's folder must have stayed as it is before a change is taken in poll mode.",
        ge=0,
    )
    model_namespacing: bool = Field(
        False, description="Whether models of the same name in several repositories are served, each to its ensembles."
    )
    model_load_retry_count: int = Field(
        0, description="How often a model that does not load is tried again.", ge=0, le=100
    )
    model_load_thread_count: int = Field(
        4, description="How many models a process loads at the same time.", gt=0, le=256
    )
    load_model: tuple[str, ...] = Field(
        (),
        description="Model to load at the start in explicit mode; a pattern such as * stands for all that it fits. "
        "May be given several times.",
    )
    console: bool = Field(True, description="Whether HTTP serves the console: a page at / that shows the models.")
    strict_readiness: bool = Field(True, description="Whether the server is ready only when every model is.")
    exit_on_error: bool = Field(False, description="Whether to stop when a model fails to load at the start.")
    strict_model_config: bool = Field(False, description="Deprecated by Triton: whether config.pbtxt must be complete.")
    disable_auto_complete_config: bool = Field(False, description="Whether config.pbtxt must be complete.")
    model_config_name: str = Field("", description="Name of the custom configuration configs/<name>.pbtxt to use.")
    backend_config: tuple[str, ...] = Field(
        (), description="Setting of a backend, as [<backend>,]<key>=<value>; may be given several times."
    )
    backend_directory: str = Field(
        "/opt/tritonserver/backends",
        description="Folder with Python-based backends, as <backend>/model.py; every node needs it.",
    )
    cache_config: tuple[str, ...] = Field(
        (),
        description="Response cache for models that enable theirs, as local,size=<bytes>; the processes of a node "
        "have one of that size together.",
    )
    rate_limit: Literal["off", "execution_count"] = Field(
        "off",
        description="Whether instances run only while the resources are free that their rate_limiter names.",
    )
    rate_limit_resource: tuple[str, ...] = Field(
        (),
        description="How many of a resource a node has, as <name>:<count>[:<device>]; may be given several times. "
        "Without it, as many as the instance needs that needs the most.",
    )
    kind_gpu_fallback_to_cpu: bool = Field(
        False, description="Whether KIND_GPU instances run on the CPU where the cluster has no GPU."
    )
    http_max_input_size: Int64 = Field(64 << 20, description="Largest HTTP request body, in bytes.", gt=0)
    http_max_decompression_ratio: Int64 = Field(
        100, description="How many times larger than its compressed form a request may be, beyond 1 MiB.", gt=0
    )
    http_max_stream_buffer_bytes: Int64 = Field(
        16 << 20,
        description="How much of a stream may wait for a client that takes none of it, in bytes; four times as much "
        "may for any other.",
        gt=0,
    )
    http_header_timeout_s: Seconds = Field(10.0, description="Time in which a request's head must arrive.", gt=0)
    http_body_timeout_s: Seconds = Field(60.0, description="Time in which a request's body must arrive.", gt=0)
    http_write_timeout_s: Seconds = Field(
        60.0, description="Time in which a client must take 64 KiB of its answer, or all that is left of it.", gt=0
    )
    http_idle_timeout_s: Seconds = Field(
        620.0, description="Time after which a connection without a request is closed.", gt=0
    )
    http_max_total_body_bytes: Int64 = Field(
        1 << 30, description="How much of bodies, and of unread answers, an ingress may hold at a time, in bytes.", gt=0
    )
    grpc_max_total_message_bytes: Int64 = Field(
        1 << 30,
        description="How much of unfinished gRPC requests and waiting answers an ingress may hold, in bytes.",
        gt=0,
    )
    max_connections: Int64 = Field(4096, description="Largest number of open connections of an ingress.", gt=0)
    max_inflight_per_replica: Int64 = Field(
        4096, description="Largest number of requests under way to one replica; more are refused with 503.", gt=0
    )
    max_queue_s: Seconds = Field(
        2.0,
        description="How long a model's queue may get: as many requests as the model answers in this time, more where "
        "its batches are long, and 256 at least; others are refused with 503. 0: any, as in Triton. A model with a "
        "default_queue_policy goes by that.",
        ge=0,
    )
    replica_num_cpus: float = Field(
        0.05,
        description="CPUs that Ray reserves for each replica of a model, unless the model says otherwise.",
        ge=0,
        le=1e6,
    )
    gpu_memory_bytes: Int64 = Field(
        0,
        description="Memory of a GPU, from which a replica's share of one is computed; 0: what each GPU says, or "
        "16 GiB where it cannot.",
        ge=0,
    )
    gpu_headroom: float = Field(
        0.2, description="Share of a GPU's memory that stays free beside the models planned on it.", ge=0, lt=1
    )
    health_check_period_s: Seconds = Field(2.0, description="How often Serve asks a replica whether it is well.", gt=0)
    max_batch_duration_s: Seconds = Field(
        600.0,
        description="Time after which a batch that still runs counts as stuck, and the process of its model is "
        "replaced; 0: never. Decoupled models may take longer. What its process unloads has as long to answer.",
        ge=0,
    )
    exit_timeout_secs: Seconds = Field(
        30.0, description="Time that requests under way get when the server stops.", ge=0
    )
    drain_delay_s: Seconds = Field(
        0.0,
        description="Time in which a stopping server already says that it is not ready, and still takes requests: as "
        "long as load balancers need to notice.",
        ge=0,
    )
    lane_tcp: bool = Field(
        True, description="Whether replicas accept lanes from other nodes, over TCP on the node's address."
    )
    allow_client_shm: bool = Field(False, description="Whether clients may register shared memory.")
    trace_config: tuple[str, ...] = Field(
        (),
        description="Trace setting, as <key>=<value> (level=TIMESTAMPS, level=TENSORS, rate=<one in so many>, count, "
        "mode=triton or opentelemetry), triton,<key>=<value> (file, log-frequency), or opentelemetry,<key>=<value> "
        "(url, resource=<name>=<value>, bsp_*); may be given several times.",
    )
    log_info: bool = Field(True, description="Whether information is logged.")
    log_warning: bool = Field(True, description="Whether warnings are logged.")
    log_error: bool = Field(True, description="Whether errors are logged.")
    log_format: Literal["default", "ISO8601", "json"] = Field(
        "default", description="Form of a line: Triton's, Triton's with the time by ISO 8601, or an object of JSON."
    )
    log_file: str = Field(
        "", description="File that gets every line of the log, on each node, besides those in Ray's log folder."
    )
    log_verbose: int = Field(
        0, description="Verbosity: 0 says what is loaded, 1 and more what is done.", ge=0, lt=1 << 32
    )

    log_slow_requests_ms: int = Field(
        0, description="Time above which a request is logged with its stages; 0: none is.", ge=0, lt=1 << 32
    )

    @field_validator("log_verbose", mode="before")
    @classmethod
    def _verbosity(cls, value: object) -> object:
        """Take what tritonserver takes: a level, or whether to be verbose."""
        return {"true": 1, "false": 0}.get(str(value).lower(), value)

    @field_validator("log_file")
    @classmethod
    def _log_file(cls, value: str) -> str:
        if value and not os.path.isabs(value):
            raise ValueError("must be an absolute path: the processes that log are in other folders")
        return value

    @field_validator(*_READERS)
    @classmethod
    def _readable(cls, value: Any, info: ValidationInfo) -> Any:
        _READERS[str(info.field_name)](value)
        return value

    @field_validator("metrics_config")
    @classmethod
    def _metrics_config(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        from deployments.core.metrics_options import MetricsOptions

        MetricsOptions.parse(value)
        return value

    @field_validator("http_use_ssl", "grpc_use_ssl")
    @classmethod
    def _ssl(cls, value: bool, info: ValidationInfo) -> bool:
        protocol = str(info.field_name).partition("_")[0]
        if value and not (info.data.get(f"{protocol}_server_cert") and info.data.get(f"{protocol}_server_key")):
            raise ValueError(f"needs --{protocol}-server-cert and --{protocol}-server-key")
        return value

    @field_validator("http_use_ssl_mutual", "grpc_use_ssl_mutual")
    @classmethod
    def _ssl_mutual(cls, value: bool, info: ValidationInfo) -> bool:
        protocol = str(info.field_name).partition("_")[0]
        if value and not (info.data.get(f"{protocol}_use_ssl") and info.data.get(f"{protocol}_root_cert")):
            raise ValueError(f"needs --{protocol}-use-ssl and --{protocol}-root-cert")
        return value

    @model_validator(mode="after")
    def _chosen(self) -> "Settings":
        """Refuse names of models in a mode that loads all."""
        if self.load_model and self.model_control_mode != "explicit":
            raise ValueError("--load-model can only be given with --model-control-mode=explicit")
        return self

    @model_validator(mode="after")
    def _ports(self) -> "Settings":
        """Refuse two listeners on one port."""
        if told := clash(self.listeners()):
            raise ValueError(told)
        return self

    def listeners(self) -> list[Listener]:
        """Return what is listened on."""
        metrics_address = self.metrics_address or self.http_address
        offered = (
            (self.allow_http, Listener("--http-port", self.http_address, self.http_port)),
            (self.allow_grpc, Listener("--grpc-port", self.grpc_address, self.grpc_port)),
            (self.allow_admin_api, Listener("--admin-port", self.admin_address, max(self.admin_port, 0))),
            (self.allow_metrics, Listener("--metrics-port", metrics_address, self.metrics_port)),
        )
        return [listener for allowed, listener in offered if allowed]

    def response_cache_bytes(self) -> int:
        """Return the size of the response cache, 0 without one."""
        return cache_bytes(self.cache_config)

    def unload_timeout_s(self) -> float:
        """Return how long what is unloaded or replaced in a process that goes on has to answer what it has taken."""
        return self.max_batch_duration_s or _UNLOAD_S

    def log_options(self) -> "LogOptions":
        """Return what is logged, and how."""
        from deployments.log.log_options import LogOptions

        kinds = self.log_info, self.log_warning, self.log_error
        return LogOptions(self.log_file, *kinds, self.log_verbose, self.log_format, self.log_slow_requests_ms)

    def metrics_options(self) -> "MetricsOptions":
        """Return which latencies are counted and shown."""
        from deployments.core.metrics_options import MetricsOptions

        return MetricsOptions.parse(self.metrics_config, self.metrics_interval_ms)

    def rate_limits(self) -> "Given | None":
        """Return what --rate-limit-resource says, None when there is no rate limiter."""
        return None if self.rate_limit == "off" else rate_limit_resources(self.rate_limit_resource)

    def loader_options(self) -> "LoaderOptions":
        """Return how repositories are read."""
        from repository_loader.snapshot import LoaderOptions

        return LoaderOptions(
            disable_auto_complete_config=self.disable_auto_complete_config or self.strict_model_config,
            model_config_name=self.model_config_name,
            backend_settings=backend_settings(self.backend_config),
            kind_gpu_fallback_to_cpu=self.kind_gpu_fallback_to_cpu,
            cache_dir=self.model_cache_dir,
            backend_directory=self.backend_directory,
            namespacing=self.model_namespacing,
        )

    def plan_settings(self) -> "PlanSettings":
        """Return how models are placed."""
        from repository_loader.deployment_plan import PlanSettings

        return PlanSettings(
            placement=self.placement,
            num_cpus_per_replica=self.replica_num_cpus,
            gpu_headroom=self.gpu_headroom,
            keep_packed=self.model_control_mode == "explicit" and self.placement in ("auto", "packed"),
        )

    def chosen_models(self) -> list[str] | None:
        """Return the models to load at the start, None for all."""
        from repository_loader.repository import choose_models

        if self.model_control_mode != "explicit":
            return None
        return choose_models(self.model_repository, self.loader_options(), self.load_model)
