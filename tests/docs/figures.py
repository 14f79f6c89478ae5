"""Which constants and settings the figures of `docs/behaviour.md` are.

A key is words that one sentence (or row of a table) of the page holds. Its value are figures as they are spelled there,
each with what the product goes by: a constant of a module, or the default of a class's field. The end of its name tells
the unit. So nobody changes either and leaves the other.
"""

SETTINGS = "app.settings.Settings."
HTTP = "app.http.limits.HttpLimits."
LIMITS = "protocol.limits.Limits."
CONNECTION = "app.http.timed_connection."
RETURNING = "deployments.schedulers.returning_clients."
QUEUE_BOUND = "deployments.schedulers.queue_bound."
WAITING_CALLS = "deployments.lane.waiting_calls."
ROW_SPLIT = "deployments.backends.row_split."
STALL_GUARD = "deployments.replica.stall_guard."
RESTART = "deployments.backends.python.process.restart."
SHADOW = "app.traffic.shadow."
ARCHIVE = "repository_loader.storage.archive."
INGRESS = "app.ingress.ingress."
MODEL_LOG = "deployments.log.model_log."

FIGURES: dict[str, tuple[tuple[str, str], ...]] = {
    # Log
    "Each file in the log folder of the Ray": (("64 MiB", "app.cli.ray_variables.LOG_FILE_BYTES"),),
    # Limits
    "| request body |": (("64 MiB", SETTINGS + "http_max_input_size"), ("64 MiB", HTTP + "max_body_bytes")),
    "| request bodies of an ingress together": (("1 GiB", SETTINGS + "http_max_total_body_bytes"),),
    "| gRPC requests of an ingress together": (("1 GiB", SETTINGS + "grpc_max_total_message_bytes"),),
    "| time in which a client of a unary gRPC call": (("60 s", "app.http2.limits.Http2Limits.body_timeout_s"),),
    "| request head |": (
        ("64 KiB", HTTP + "max_header_bytes"),
        ("100 fields", HTTP + "max_header_count"),
        ("16 KiB", HTTP + "max_url_bytes"),
    ),
    "| time for a head to arrive |": (("10 s", SETTINGS + "http_header_timeout_s"),),
    "| time for a body to arrive |": (("60 s", SETTINGS + "http_body_timeout_s"),),
    "| time for a client to take 64 KiB": (
        ("64 KiB", CONNECTION + "_PROGRESS_BYTES"),
        ("60 s", SETTINGS + "http_write_timeout_s"),
    ),
    "| time without a request on a connection |": (("620 s", SETTINGS + "http_idle_timeout_s"),),
    "| chunks of a chunked body |": (("65,536", HTTP + "max_chunk_count"),),
    "| open connections of an ingress |": (("4,096", SETTINGS + "max_connections"),),
    "| requests of one gRPC stream that are not answered": (
        ("1,024", "app.grpc.options.GrpcOptions.max_stream_inflight_count"),
    ),
    "| requests under way to one replica |": (
        ("4,096", SETTINGS + "max_inflight_per_replica"),
        ("1 GiB", "deployments.lane.client.MAX_INFLIGHT_BYTES"),
        ("64 KiB", "deployments.lane.client.SMALL_CALL_BYTES"),
    ),
    "| queue of a model, in each of its replicas": (
        ("2 s", SETTINGS + "max_queue_s"),
        ("256", QUEUE_BOUND + "ALWAYS_TAKEN"),
        ("a second", QUEUE_BOUND + "MEASURED_NS"),
    ),
    "| time that one batch may run": (("600 s", SETTINGS + "max_batch_duration_s"),),
    "| time in which a Python model, with all that it imports": (
        ("300 s", "deployments.backends.python.auto_complete.TIMEOUT_S"),
    ),
    "| JSON nesting; elements |": (("100", LIMITS + "json_max_depth"), ("16 Mi", LIMITS + "json_max_elements")),
    "| JSON of a request that is neither inference nor load": (
        ("256 KiB", "app.http.endpoint._MAX_BYTES"),
        ("65,536", "app.http.endpoint._MAX_MEMBERS"),
    ),
    "| inputs, outputs, parameters of a request |": (
        ("1,024", LIMITS + "max_inputs"),
        ("1,024", LIMITS + "max_outputs"),
        ("64", LIMITS + "max_parameters"),
    ),
    "| tensor rank; one dimension |": (("32", LIMITS + "max_tensor_rank"), ("2³¹−1", LIMITS + "max_dim")),
    "| one BYTES element |": (("64 MiB", LIMITS + "max_bytes_element_bytes"),),
    "| `config.pbtxt` | 1 MiB |": (("1 MiB", "repository_loader.config_text.MAX_CONFIG_BYTES"),),
    # HTTP
    "A refused request is read to its end": (
        ("10 s", HTTP + "linger_timeout_s"),
        ("four times", CONNECTION + "_LINGER_BODIES"),
    ),
    "What `--http-restricted-api` forbids": (("64 KiB", "app.http.connection._SMALL_BODY_BYTES"),),
    "Error bodies are one sentence": (("1 KiB", "app.http.responses._MAX_ERROR_BYTES"),),
    # Readiness
    "`/v2/health/live` answers": (("10 s", INGRESS + "_SETTLE_TIMEOUT_S"),),
    # Where models run
    "With `--placement auto` (the default)": (("64 MiB", "repository_loader.auto_placement.HEAVY_BYTES"),),
    "A fifth of each GPU's memory stays free": (("A fifth", SETTINGS + "gpu_headroom"),),
    "It is ready all the same": (
        ("999 others", WAITING_CALLS + "MAX_CALLS"),
        ("64 MiB", WAITING_CALLS + "MAX_BYTES"),
        ("60 s", WAITING_CALLS + "MAX_WAIT_S"),
    ),
    "With no other replica they wait": (
        ("1,000", WAITING_CALLS + "MAX_CALLS"),
        ("64 MiB", WAITING_CALLS + "MAX_BYTES"),
        ("60 s", "deployments.lane.routes.REPLACEMENT_S"),
    ),
    # Loading and unloading
    "A command that reaches the controller is carried out": (("15 s", "app.ingress.client_state._KEEP_TIMEOUT_S"),),
    # Versions and traffic
    "A copy leaves after its request": (
        ("256 copies", SHADOW + "MAX_INFLIGHT"),
        ("64 MiB", SHADOW + "MAX_INFLIGHT_BYTES"),
    ),
    "Its history, of the last 64 events": (("64 events", "deployments.control.canary.MAX_EVENTS"),),
    # Configuration
    "`--load` also loads": (
        ("two at a time", "app.cli.validation.PARALLEL_LOADS"),
        ("five minutes", "deployments.replica.trial_load.TIMEOUT_S"),
    ),
    # Repositories that are no folders
    "An archive with links": (("100 times", ARCHIVE + "MAX_RATIO"), ("64 MiB", ARCHIVE + "_FREE_BYTES")),
    # Batching
    "A request that finds one full is sent": (("three at most", "deployments.lane.target._MAX_REPLICAS_ASKED"),),
    "With `dynamic_batching` and no queue policy, delay": (
        ("8 ms", RETURNING + "SLOW_BATCH_NS"),
        ("a twelfth", RETURNING + "SHARE"),
        ("25 ms", RETURNING + "LONGEST_WAIT_NS"),
    ),
    "When fewer than half come back in that time": (("256", RETURNING + "MOST_SKIPPED"),),
    "Only models with `dynamic_batching`, whose batches": (
        ("2 ms", ROW_SPLIT + "SLOW_RUN_NS"),
        ("256 MiB", ROW_SPLIT + "LARGEST_WEIGHTS_BYTES"),
    ),
    # Response cache
    "Errors are not kept": (("2 MiB", "deployments.schedulers.cached.MAX_INPUT_BYTES"),),
    # Sequences
    "A sequence without requests for": (("1 s", "repository_loader.normalisation.DEFAULT_SEQUENCE_IDLE_US"),),
    # Faults
    "A replica to which no lane can be opened": (("3 s", "deployments.lane.link.WARN_AFTER_S"),),
    "One that was in two deaths waits": (("60 s", "deployments.lane.suspects.MAX_WAIT_S"),),
    "Serve's health checks do": (("10 s", "deployments.control.serve_clock._TOLERATED_S"),),
    "A replica or ingress whose event loop stands still": (("10 s", STALL_GUARD + "MIN_LIMIT_S"),),
    "Where a repository cannot be read": (("5 s", "deployments.control.repository_controller._WATCH_S"),),
    "One whose own processes are not": (("ten minutes", "app.cli.local_server._START_TIMEOUT_S"),),
    "While models load it may take ten minutes": (("ten minutes", STALL_GUARD + "_LOAD_LIMIT_S"),),
    # Processes of Python models
    "It is started again at once, and after": (
        ("0.5 s", RESTART + "FIRST_DELAY_S"),
        ("30 s", RESTART + "LAST_DELAY_S"),
    ),
    # Python models
    "A model with an `is_ready` is asked every second": (
        ("every second", "deployments.replica.readiness.ASK_S"),
        ("5 s", "deployments.backends.python.instance._READY_TIMEOUT_S"),
        ("5 s", "deployments.backends.python.process.process_instance._READY_TIMEOUT_S"),
    ),
    "Metrics that Prometheus could not read": (("10,000 rows", "deployments.backends.python.metric_rows.MAX_ROWS"),),
    # Log
    "Log settings that a client changes hold in all processes": (
        ("about a second", "deployments.replica.node_log._LOOK_S"),
    ),
    "A message has 512 characters": (("512 characters", "app.service.refusal_log._MAX_CHARACTERS"),),
    "A second has ten of these lines": (("ten", "deployments.log.slow_requests._LINES_PER_S"),),
    "Of the tracebacks that one place": (
        ("500", "deployments.log.traceback_limit._BURST"),
        ("two a second", "deployments.log.traceback_limit._PER_S"),
    ),
    # Access
    "A file that is gone or malformed": (("half a second", "app.ingress.listeners._KEY_WATCH_S"),),
    # Console
    "Its state is made at most once a second": (("once a second", "app.console.live_state._MIN_AGE_S"),),
    # Commands
    "the newest 12 MiB of them": (("12 MiB", MODEL_LOG + "_MAX_BYTES"), ("4 MiB", MODEL_LOG + "_TAIL_BYTES")),
    # Several ingresses
    "Without the flag there is one for every four cores": (
        ("four cores", "app.ingress.count._CORES_PER_INGRESS"),
        ("16", "app.ingress.count._MAX_AUTOMATIC"),
    ),
    "The one that replaces it listens when every model": (("10 s", INGRESS + "_SETTLE_TIMEOUT_S"),),
    "A sampled request's [trace]": (("50 ms", "app.trace.collector.PAUSE_S"),),
    # Applications in Serve
    "Each group of models is a Serve application": (
        ("30 s", "deployments.control.repository_controller._SWEEP_AFTER_S"),
    ),
    # Stopping
    "For `--drain-delay-s`": (("0 by default", SETTINGS + "drain_delay_s"),),
    "Then nothing new is accepted": (("2 s", INGRESS + "_COMMANDS_S"),),
    "The models of a replica finish and are freed": (
        ("5 s", "deployments.backends.python.model_loop.CLOSE_TIMEOUT_S"),
    ),
}
