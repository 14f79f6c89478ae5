"""How `eagleray serve` has Ray run, where the user's own environment does not say otherwise."""

from typing import Final

RAY_VARIABLES: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    # Serve updates ten times a second what Ray reads every 10 s.
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "5000",
    "RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH": "eagleray:calm_serve_controller",
    # The dashboard adds up the memory maps of its ten processes every 5 s, and its agent those of all workers.
    "METRICS_RECORD_INTERVAL_S": "60",
    "REPORTER_UPDATE_INTERVAL_MS": "10000",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray runs workers at niceness 15, which is right for batch work and wrong for a server.
    "RAY_worker_niceness": "0",
}
"""Ray reads them when it is imported, here and in every process that it starts."""
