"""`eagleray doctor`: names what is unsafe or broken here or on the nodes of a server, and where nodes differ."""

import json
import os
import sys
from collections.abc import Iterator
from functools import partial

import click

from app.cli.client.remote_server import RemoteServer, server_options, url_of_environment
from app.doctor.finding import ERROR, OK, WARNING, Finding
from app.doctor.machine import CHECKS, findings_of, ray_token
from app.doctor.versions import compare, versions

_PORTS = ((8000, "HTTP"), (8001, "gRPC"), (8002, "metrics"))
_COLOURS = {OK: "green", WARNING: "yellow", ERROR: "red"}


def ports() -> Iterator[Finding]:
    """Whether the default ports are free."""
    from app.cli.ports import PortTaken, require_free

    for port, purpose in _PORTS:
        try:
            require_free("127.0.0.1", port, purpose)
        except PortTaken as taken:
            yield Finding(WARNING, "ports", str(taken))
        else:
            yield Finding(OK, "ports", f"{port} ({purpose}) is free")


def nodes(address: str) -> Iterator[Finding]:
    """Whether all nodes of a cluster have the same versions."""
    from app.cli.cluster_nodes import ask_each_node

    try:
        yield from compare(ask_each_node(address, versions))
    except click.ClickException as error:
        yield Finding(ERROR, "nodes", error.message)


def _of_this_machine(ray_address: str) -> list[dict[str, str]]:
    found = findings_of(ray_token, *CHECKS, ports)
    if ray_address:
        found += nodes(ray_address)
    return [finding._asdict() for finding in found]


@click.command()
@click.option("--ray-address", default="", help="A running cluster whose nodes to compare ('auto' finds one).")
@partial(server_options, url="")
def doctor(ray_address: str, server: RemoteServer, as_json: bool) -> None:
    """Look for what is unsafe or broken, on this machine or on the nodes of a server; exit code 1 if there is such.

    A server with --url looks on each of its nodes, and for what differs between them; a key must be one that manages.
    """
    url = "" if ray_address and url_of_environment() else server.url
    if url and ray_address:
        raise click.UsageError("--url does not go with --ray-address")
    findings = server.get("/v2/doctor")["findings"] if url else _of_this_machine(ray_address)
    if as_json:
        click.echo(json.dumps(findings))
    else:
        for each in findings:
            node = f"[{each['node'][:8]}] " if each.get("node") else ""
            colour = None if os.environ.get("NO_COLOR") else _COLOURS.get(each["level"])
            level = click.style(each["level"], colour) if colour else each["level"]
            click.echo(f"{node}{level}  {each['check']}: {each['text']}")
    sys.exit(any(each["level"] == ERROR for each in findings))
