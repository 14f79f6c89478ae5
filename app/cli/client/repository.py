"""`eagleray repository register | unregister | list`: where a server in explicit mode may load models from."""

import json
import os
from typing import Any

import click

from app.cli.client.remote_server import RemoteServer, server_options
from app.cli.option_groups import CommandList
from app.cli.printable import printable


@click.group(cls=CommandList)
def repository() -> None:
    """Register repositories with a server in explicit mode, unregister and list them."""


@repository.command()
@click.argument("path")
@click.option(
    "--name", "names", multiple=True, metavar="FOLDER=NAME", help="Name of the model in a folder of it; several."
)
@server_options
def register(path: str, names: tuple[str, ...], server: RemoteServer, as_json: bool) -> None:
    """Have the models of a repository, by its path or address, be there to be loaded."""
    called = {}
    for each in names:
        folder, _, name = each.partition("=")
        if not folder or not name:
            raise click.UsageError(f"--name {each}: write FOLDER=NAME")
        if folder in called:
            raise click.UsageError(f"--name {each}: folder '{folder}' has a name already")
        called[folder] = name
    _ask(server, "register", {"repository": _absolute(path), "names": called}, as_json)


@repository.command()
@click.argument("path")
@server_options
def unregister(path: str, server: RemoteServer, as_json: bool) -> None:
    """Have a repository's models be there no more; what is loaded of them stays loaded."""
    _ask(server, "unregister", {"repository": _absolute(path)}, as_json)


@repository.command("list")
@server_options
def list_repositories(server: RemoteServer, as_json: bool) -> None:
    """Print the repositories that models can be loaded from."""
    found = server.get("/v2/repository/registered", kind=list)
    if as_json:
        click.echo(json.dumps(found))
        return
    for each in found:
        names = "".join(f"  {folder}={name}" for folder, name in each["names"].items())
        click.echo(printable(each["repository"] + names))


def _absolute(path: str) -> str:
    if not path:  # which would be the current folder
        raise click.UsageError("PATH is empty")
    return path if "://" in path else os.path.abspath(path)


def _ask(server: RemoteServer, verb: str, document: dict[str, Any], as_json: bool) -> None:
    server.post(f"/v2/repository/{verb}", document)
    click.echo(json.dumps(document) if as_json else f"{document['repository']} {verb}ed")
