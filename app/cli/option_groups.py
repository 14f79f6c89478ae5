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


class SettingsCommand(click.Command):
    """Has flags for settings; one that is true or false may stand without a value, whatever is behind it."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Read the line; what is behind such a flag is its value only where it says true or false."""
        settings = [each for each in self.params if isinstance(each, click.Option) and not each.is_flag]
        booleans = {flag for each in settings if each.type is click.BOOL for flag in each.opts}
        end = args.index("--") if "--" in args else len(args)
        told = [
            f"{arg}=true" if arg in booleans and not _is_boolean(after) else arg
            for arg, after in zip(args[:end], [*args[1:end], ""], strict=False)
        ]
        return super().parse_args(context, [*told, *args[end:]])


def _is_boolean(text: str) -> bool:
    try:
        click.BOOL.convert(text, None, None)
    except click.BadParameter:
        return False
    return bool(text)


class GroupedCommand(SettingsCommand):
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
