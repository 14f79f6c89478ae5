"""The command line: `eagleray serve | validate | plan | status | infer | load | unload | repository | traffic | …`.

Exit codes: 0, 1 (something failed at run time), 2 (usage or configuration).
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import click
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from app.cli.client.commands import infer, load, reload, status, unload
from app.cli.client.repository import repository
from app.cli.client.top import top
from app.cli.client.traffic import traffic
from app.cli.doctor import doctor
from app.cli.model_logs import logs
from app.cli.option_groups import CommandList, GroupedCommand, SettingsCommand
from app.cli.ray_command import ray
from app.cli.ray_token import choose_token
from app.cli.ray_variables import ray_variables
from app.cli.standard_streams import open_streams, outlive_readers
from app.edge.api_keys import ApiKeys, add_key, new_key
from app.environment import environment, unknown_variables, variable_of
from app.listener_files import check_listeners
from app.listeners import Listener, clash
from app.other_ray import other_ray
from app.service.trace_settings import EXPORTER_PACKAGE, TraceSettings, exporter_is_installed, with_absolute_file
from app.settings import FILE_SETTINGS, Settings
from app.triton_flags import ALIASES, OLD_FLAGS, REASONS, merged_settings
from deployments.available_cores import available_cores
from repository_loader.storage.location import LocationError, is_remote, missing_package, read_location

if TYPE_CHECKING:
    from repository_loader.cluster_facts import ClusterFacts

RUNTIME_ERROR = 1
_COUNT = click.IntRange(min=0)
_PORT = click.IntRange(0, 65535)
_NO_THREAD = "can't start new thread"
"""What Python says then, in an error of no class of its own."""


def _option(name: str, field: FieldInfo) -> Callable[[Any], Any]:
    annotation = field.annotation
    default = "" if field.default in ((), "", None) else f"  [default: {_spell(field.default)}]"
    text = f"{field.description}{default}"
    attributes: dict[str, Any] = {"help": text, "default": None}
    if get_origin(annotation) is tuple:
        attributes["multiple"] = True
    elif annotation is bool:
        attributes |= {"type": click.BOOL, "is_flag": False, "flag_value": True, "metavar": "BOOL"}
    elif get_args(annotation) and isinstance(get_args(annotation)[0], str):
        attributes["type"] = click.Choice(get_args(annotation), case_sensitive=False)
    elif annotation in (int, float):
        attributes["metavar"] = "INTEGER" if annotation is int else "FLOAT"
    return click.option(f"--{name.replace('_', '-')}", *ALIASES.get(name, ()), name, **attributes)


def _spell(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command a flag for every setting."""
    for name, field in reversed(Settings.model_fields.items()):
        command = _option(name, field)(command)
    return command


def triton_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command accept the rest of tritonserver's flags: they mean nothing here, or are old."""
    for flag in (*REASONS, *OLD_FLAGS):
        command = click.option(f"--{flag}", hidden=True, multiple=True)(command)
    return command


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the flags that say on what Ray to serve."""
    for option in (
        click.option("--num-cpus", type=_COUNT, default=0, help="CPUs of the local Ray; 0: all that it may use."),
        click.option("--num-gpus", type=_COUNT, help="GPUs of the local Ray; left out: those that it finds."),
        click.option("--ray-address", default="", help="A running Ray to use ('auto' finds one); empty: start one."),
        click.option("--dashboard-port", type=_PORT, default=0, help="Port of Ray's dashboard; 0: 8265 or a free one."),
        click.option("--dashboard/--no-dashboard", default=True, help="Whether the local Ray has its dashboard."),
    ):
        command = option(command)
    return command


def offline_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that starts nothing every flag of `serve`, so that it says what that would do."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    repositories = click.argument("repositories", nargs=-1)
    return repositories(as_json(settings_options(triton_options(cluster_options(command)))))


def read_target(flags: dict[str, Any]) -> "tuple[Settings, ClusterFacts]":
    """Return the settings, and the cluster of one node that `serve` would start."""
    from app.cli.local_facts import local_facts

    num_cpus, num_gpus = flags.pop("num_cpus"), flags.pop("num_gpus")
    repositories = flags.pop("repositories")
    for name in ("ray_address", "dashboard", "dashboard_port"):
        flags.pop(name)
    if repositories:
        flags["model_repository"] = (*flags["model_repository"], *repositories)
    settings = read_settings(flags)
    try:
        return settings, local_facts(num_cpus or float(available_cores()), num_gpus, settings.gpu_memory_bytes)
    except RuntimeError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(RUNTIME_ERROR)


def read_settings(flags: dict[str, Any]) -> Settings:
    """Merge flags and environment; paths become absolute, since replicas run in other folders."""
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    variables = environment()
    try:
        merged, warnings = merged_settings(given, variables)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    by_variable = {name for name, value in variables.items() if name not in given and merged[name] == value}

    def source(name: str) -> str:
        return variable_of(name) if name in by_variable else f"--{name.replace('_', '-')}"

    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    if not merged.get("model_repository"):
        raise click.UsageError("--model-repository must be specified (validate and plan also take REPOSITORIES)")
    merged["model_repository"] = tuple(
        _repository(path, source("model_repository")) for path in merged["model_repository"]
    )
    for name in FILE_SETTINGS & merged.keys():
        if merged[name] and not merged[name].startswith("~"):  # which is another folder on each node
            merged[name] = os.path.abspath(merged[name])
    merged["trace_config"] = tuple(with_absolute_file(flag, os.getcwd()) for flag in merged.get("trace_config", ()))
    try:
        settings = Settings(**merged)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{source(str(name))}: " for name in first["loc"][:1])
        raise click.UsageError(where + first["msg"].removeprefix("Value error, ")) from error
    try:
        ApiKeys(settings.api_key, settings.api_key_file)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{source('api_key_file')}: {error}") from None
    if settings.log_file:
        from deployments.log.log_file import check_log_file

        try:
            check_log_file(settings.log_file)
        except OSError as error:
            raise click.UsageError(f"{source('log_file')}: {error}") from None
    if TraceSettings(settings.trace_config).exports and not exporter_is_installed():
        raise click.UsageError(f"{source('trace_config')} mode=opentelemetry needs the package {EXPORTER_PACKAGE}")
    return settings


def _repository(path: str, source: str) -> str:
    """Return an absolute path, or an address that can be read; `source` is the flag or the variable that gave it."""
    if is_remote(path):
        try:
            missing = missing_package(read_location(path))
        except LocationError as error:
            raise click.UsageError(str(error)) from error
        if missing:
            raise click.UsageError(missing)
        return path
    where = "" if source.startswith("--") else f"{source}: "
    if not path or not Path(path).is_dir():
        between = "put ':' between several folders, or spaces where one is an address"
        more = between if where else "give --model-repository once for each of several"
        hint = f"; {more}" if any(os.path.isdir(each) for each in re.split(r"[:,\s]", path)) else ""
        raise click.UsageError(f"{where}the model repository {os.path.abspath(path)} is not a folder{hint}")
    if not os.access(path, os.R_OK | os.X_OK):
        raise click.UsageError(f"{where}the model repository {os.path.abspath(path)} cannot be read: Permission denied")
    absolute = os.path.abspath(path)
    if (shown := os.fsencode(absolute).decode(errors="replace")) != absolute:
        raise click.UsageError(f"{where}the path of the model repository {shown} is not UTF-8 text, as Ray's are")
    return absolute


class Commands(CommandList):
    """Says in a line what the machine has refused."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Read the line up to the command; a flag of tritonserver without a command is one of `serve`."""
        try:
            return super().parse_args(context, args)
        except click.NoSuchOption as error:
            if any(error.option_name in each.opts for each in self.commands["serve"].params):
                raise click.UsageError(f"{error.option_name} is a flag of `eagleray serve`", context) from None
            raise

    def invoke(self, context: click.Context) -> Any:
        """Run a command."""
        open_streams()
        try:
            return super().invoke(context)
        except BrokenPipeError:
            raise  # nobody reads on; click knows what to do
        except OSError as error:
            raise click.ClickException(str(error)) from error
        except RuntimeError as error:
            if str(error) != _NO_THREAD:
                raise
            text = "no more threads can be started here: see `ulimit -u`, and the pids limit of the container"
            raise click.ClickException(text) from error


@contextmanager
def readable_repositories() -> Iterator[None]:
    """Say in a line what repository cannot be read."""
    from repository_loader.repository import RepositoryError

    try:
        yield
    except RepositoryError as error:
        raise click.ClickException(str(error)) from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="eagleray")
def main() -> None:
    """Serve Triton model repositories from a Ray cluster."""
    for warning in unknown_variables():
        click.echo(f"warning: {warning}", err=True)


@main.command(cls=GroupedCommand)
@settings_options
@triton_options
@cluster_options
@click.argument("repositories", nargs=-1, metavar="")
def serve(
    num_cpus: int,
    num_gpus: int | None,
    ray_address: str,
    dashboard_port: int,
    dashboard: bool,
    repositories: tuple[str, ...],
    **flags: Any,
) -> None:
    """Serve model repositories until Ctrl-C."""
    if repositories:
        raise click.UsageError(
            f"'{repositories[0]}' stands without a flag; repositories are given by --model-repository"
        )
    try:
        os.getcwd()
    except FileNotFoundError:  # Ray's processes would not start there
        raise click.UsageError("the current folder has been removed; start in another one") from None
    if other := other_ray():
        click.echo(f"error: {other}", err=True)
        sys.exit(RUNTIME_ERROR)
    settings = read_settings(flags)
    for name, value in ray_variables(terminal=sys.stdout.isatty()).items():
        os.environ.setdefault(name, value)
    if not ray_address:
        try:
            check_listeners(settings)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        on_dashboard = [Listener("--dashboard-port", "127.0.0.1", dashboard_port)] if dashboard else []
        if told := clash([*settings.listeners(), *on_dashboard]):
            raise click.UsageError(told)
        # Despite its name it says, everywhere, that nothing of Ray's need be reached from other machines.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        choose_token()
    from app.cli.local_ray import RayOptions, StartFailed
    from app.cli.local_server import LocalServer
    from app.cli.ports import PortTaken

    outlive_readers()
    options = RayOptions(ray_address, num_cpus, num_gpus, dashboard, dashboard_port)
    # A local cluster has no other nodes.
    settings = settings if ray_address else settings.model_copy(update={"lane_tcp": False})
    try:
        sys.exit(LocalServer(settings, options).run())
    except (PortTaken, StartFailed) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(RUNTIME_ERROR)


@main.command(cls=SettingsCommand)
@offline_options
@click.option("--load", is_flag=True, help="Also load each model once, in a process of its own.")
def validate(as_json: bool, load: bool, **flags: Any) -> None:
    """Read, complete and check repositories; print file:line:column for each fault and each field without effect."""
    settings, facts = read_target(flags)
    from app.cli.validation import Validation

    with readable_repositories():
        loader, places = settings.loader_options(), settings.plan_settings()
        validation = Validation.of(settings.model_repository, loader, places, facts)
        validation.expect(settings.chosen_models() or ())
    if load:
        validation.load()
    sys.exit(validation.print(as_json))


@main.command(cls=SettingsCommand)
@offline_options
def plan(as_json: bool, **flags: Any) -> None:
    """Print the deployments that repositories would become, with their resources. Starts nothing."""
    settings, facts = read_target(flags)
    from app.cli.offline import print_plan

    with readable_repositories():
        sys.exit(print_plan(settings, facts, as_json))


@main.command()
@click.argument("name")
@click.option(
    "--for",
    "scopes",
    default="infer",
    show_default=True,
    help="What the key lets do: infer, read, manage, by commas.",
)
@click.option("--file", "path", type=click.Path(dir_okay=False), help="File of keys to add it to; made if needed.")
def new_api_key(name: str, scopes: str, path: str | None) -> None:
    """Print a new API key, and add the line that stands for it to the file of --api-key-file."""
    try:
        key, line = new_key(name, scopes)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if path is None:
        click.echo(f"for --api-key, or a line of --api-key-file: {line}", err=True)
    else:
        add_key(path, line)
    click.echo(key)


@main.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    click.echo(installed("eagleray"))


for _command in (status, top, infer, load, unload, reload, repository, traffic, logs, doctor, ray):
    main.add_command(_command)


if __name__ == "__main__":
    main()
