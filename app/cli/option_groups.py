"""What `--help` shows: commands with whole sentences, and the flags of `serve` under headings."""

from typing import Final

import click

GROUPS: Final = (
    ("Ray", ("ray_", "num_", "dashboard")),
    ("Access and TLS", ("api_key", "allow_admin", "admin_", "http_restricted", "grpc_restricted")),
    (
        "Models",
        (
            "model_",
            "load_model",
            "placement",
            "backend_",
            "repository_",
            "exit_on_error",
            "strict_",
            "disable_auto_complete",
            "kind_gpu",
            "allow_client_shm",
            "max_batch",
            "replica_",
            "gpu_memory",
        ),
    ),
    ("HTTP", ("http_", "allow_http", "reuse_http")),
    ("gRPC", ("grpc_", "allow_grpc", "reuse_grpc")),
    ("Metrics, logs and traces", ("metrics_", "allow_metrics", "allow_cpu", "allow_gpu_metrics", "log_", "trace_")),
)
"""Headings, and how the names of their settings begin; the first that fits counts."""
OTHER: Final = "Server"
_TLS: Final = ("_cert", "_key", "_ssl", "_ssl_mutual")


def group_of(name: str) -> str:
    """Return the heading of a setting."""
    if name.endswith(_TLS):
        return "Access and TLS"
    return next((title for title, starts in GROUPS if name.startswith(starts)), OTHER)


class CommandList(click.Group):
    """Lists its commands with a whole sentence on each, which click cuts to one line."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(1000)) for name, each in sorted(self.commands.items())])


class GroupedCommand(click.Command):
    """Lists its flags by heading."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them."""
        records: dict[str, list[tuple[str, str]]] = {"Models": [], OTHER: []}
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context)
            if record is not None:
                records.setdefault(group_of(str(parameter.name)), []).append(record)
        for title, listed in records.items():
            with formatter.section(title):
                formatter.write_dl(listed)
