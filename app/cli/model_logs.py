"""The log files of a model's replicas, which Serve keeps in the folder of the Ray session of each node."""

import json
from contextlib import nullcontext, suppress
from functools import partial
from itertools import chain
from pathlib import Path

import click

from app.cli.client.remote_server import RemoteServer, quoted, server_options, url_of_environment
from deployments.log.line_format import for_terminal
from deployments.ray_folder import ray_folder

_ELSEWHERE = (
    ", where the Ray that started last here logs. Of a server on another Ray, or with another RAY_TMPDIR: ask it with "
    "--url, name the folder with --folder, or set RAY_TMPDIR"
)


def default_folder() -> Path:
    """Return where Serve of the last Ray session that started on this machine logs."""
    return ray_folder() / "session_latest" / "logs" / "serve"


def lines_of_node(model: str, count: int) -> list[tuple[str, str]]:
    """Return file and line of the last lines of this node's replicas; runs in a task there."""
    from deployments.log.model_log import ModelLog
    from deployments.serve_internals import serve_logs_folder

    return ModelLog(model, Path(serve_logs_folder())).last(count)


def _print_of_cluster(model: str, address: str, count: int, as_json: bool) -> None:
    from app.cli.cluster_nodes import ask_each_node

    told = ask_each_node(address, lines_of_node, model, count)
    if not any(told.values()):
        raise click.ClickException(f"no replica has logged for '{model}' on {len(told)} nodes")
    for node, found in told.items():
        for file, line in found:
            told_by = {"node": node, "file": file, "line": line}
            click.echo(json.dumps(told_by) if as_json else f"[{node.partition(' ')[0]}] {for_terminal(line)}")


def _print_of_server(server: RemoteServer, model: str, count: int, as_json: bool) -> None:
    nodes = server.get(f"/v2/console/models/{quoted(model)}/log")["nodes"]
    if not nodes:
        raise click.ClickException(f"no replica has logged for '{model}' on the nodes of {server.url}")
    for node in nodes:
        for line in node["lines"][-count:]:
            click.echo(
                json.dumps({"node": node["node"], "line": line})
                if as_json
                else f"[{node['node'][:8]}] {for_terminal(line)}"
            )


def _print_of_machine(model: str, folder: Path | None, count: int, as_json: bool, follow: bool) -> None:
    from deployments.log.model_log import ModelLog

    where = folder or default_folder()
    hint = "; the logs of other nodes are there" if folder else _ELSEWHERE
    found = ModelLog(model, where)
    if not found.files:
        raise click.ClickException(f"no replica has logged for '{model}' in {where}{hint}")

    def show(file: str, line: str) -> None:
        click.echo(json.dumps({"file": file, "line": line}) if as_json else for_terminal(line))

    last = found.last(count)
    if not (last or follow):
        raise click.ClickException(f"no replica has logged a line that names '{model}' in {where}{hint}")
    if not found.own and not as_json:
        click.echo(f"'{model}' has no process of its own; these are the lines of the shared one that name it", err=True)
    with suppress(KeyboardInterrupt) if follow else nullcontext():
        for each in chain(last, found.follow() if follow else ()):
            show(*each)


@click.command()
@click.argument("model")
@click.option("--lines", "count", default=100, type=click.IntRange(min=1), help="How many lines.", show_default=True)
@click.option("--follow", is_flag=True, help="Go on with the lines that come.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where Serve logs; left out: the last Ray session.")
@click.option(
    "--ray-address", default="", help="A running cluster, to print what all its nodes have ('auto' finds one)."
)
@partial(server_options, url="")
def logs(
    model: str,
    count: int,
    follow: bool,
    folder: Path | None,
    ray_address: str,
    server: RemoteServer,
    as_json: bool,
) -> None:
    """Print what a model's replicas have logged: those on this machine, or on every node of a server or a cluster.

    A server with --url is asked as its console asks it, for the last 400 lines of each node.
    """
    elsewhere = ray_address or follow or folder is not None
    url = "" if elsewhere and url_of_environment() else server.url
    if ray_address or url:
        if follow or folder is not None or (ray_address and url):
            raise click.UsageError("--url and --ray-address exclude each other, and both exclude --follow and --folder")
        if url:
            _print_of_server(server, model, count, as_json)
        else:
            _print_of_cluster(model, ray_address, count, as_json)
    else:
        _print_of_machine(model, folder, count, as_json, follow)
