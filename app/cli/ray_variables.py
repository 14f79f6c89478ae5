"""How Eagleray has Ray run, where the user's own environment does not say otherwise."""

from typing import Final

LOG_FILE_BYTES: Final = 64 << 20
LOG_FILES_KEPT: Final = 3

NODE_VARIABLES: Final = {
    # Serve updates ten times a second what Ray reads every 10 s.
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "5000",
    "RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH": "eagleray:calm_serve_controller",
    # The dashboard adds up the memory maps of its ten processes every 5 s, and its agent those of all workers.
    "METRICS_RECORD_INTERVAL_S": "60",
    "REPORTER_UPDATE_INTERVAL_MS": "10000",
    # Ray puts what workers write to their standard streams aside only where it is told when; all of its logs go by it.
    "RAY_ROTATION_MAX_BYTES": str(LOG_FILE_BYTES),
    "RAY_ROTATION_BACKUP_COUNT": str(LOG_FILES_KEPT),
    # ONNX Runtime sends what it is used for to Microsoft, and keeps an identity of the user for it.
    "ORT_DISABLE_TELEMETRY": "1",
    # Otherwise each of a worker's some forty threads has a heap of its own, and what one has freed no other takes.
    "MALLOC_ARENA_MAX": "2",
    # Ray runs workers at niceness 15, which is right for batch work and wrong for a server.
    "RAY_worker_niceness": "0",
}
"""For the nodes of any cluster that serves."""

_OF_LOCAL_RAY: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray starts another one when a thread of Serve's asks it something after this one has ended.
    "RAY_ENABLE_AUTO_CONNECT": "0",
    # The first workers start beside what this process does next; `ray.init` would wait until there are all of them.
    "RAY_prestart_worker_first_driver": "0",
}


def ray_variables(*, terminal: bool) -> dict[str, str]:
    """Return those of `eagleray serve`; Ray reads them when it is imported, here and in every process that it starts.

    What Ray itself prints here, as when a worker dies, has colours on a `terminal` only.
    """
    return NODE_VARIABLES | _OF_LOCAL_RAY | ({} if terminal else {"RAY_COLOR_PREFIX": "0"})
