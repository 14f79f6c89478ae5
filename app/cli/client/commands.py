"""`eagleray status | infer | load | unload | reload`: what a person asks of a server that runs."""

import json
import os
import sys
import time
from contextlib import nullcontext, suppress
from typing import Any

import click

from app.cli.client.remote_server import RemoteServer, quoted, server_options
from app.cli.client.status import Status
from app.cli.printable import printable, printable_lines

_WATCH_S = 2.0


@click.command()
@server_options
@click.option("--watch", is_flag=True, help="Show it again every two seconds.")
def status(server: RemoteServer, as_json: bool, watch: bool) -> None:
    """Show a server's models: their states, how many requests they had, and how long these took.

    Exit code 1 says that the server is not ready.
    """
    before: Status | None = None
    with suppress(KeyboardInterrupt) if watch else nullcontext():
        while True:
            now = Status.of(server)
            if as_json:
                click.echo(json.dumps(now.document()))
            else:
                now.print(before, clear=watch)
            if not watch:
                sys.exit(0 if now.ready else 1)
            before = now
            time.sleep(_WATCH_S)


@click.command()
@click.argument("model")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="[NAME=]VALUE",
    help="Values (1,2,3), JSON, a text, or @FILE: .npy, .json, .txt, an image. Several for several inputs.",
)
@click.option("--output", "outputs", multiple=True, metavar="NAME", help="Only these outputs.")
@click.option(
    "--version", "version", type=click.IntRange(min=0), help="Version of the model; left out: the server chooses."
)
@server_options
def infer(
    model: str,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    version: int | None,
    server: RemoteServer,
    as_json: bool,
) -> None:
    """Ask a model, and print what it answers."""
    from app.cli.client.tensors import from_bytes, read_tensor, show, to_bytes, to_json

    path = f"/v2/models/{quoted(model)}" + (f"/versions/{version}" if version is not None else "")
    wanted = {each["name"]: each for each in server.get(path)["inputs"]}
    if inputs and not wanted:
        raise click.UsageError(f"model '{model}' has no inputs")
    described, content = [], b""
    for name, value in _by_name(inputs, list(wanted)).items():
        if name not in wanted:
            raise click.UsageError(f"model '{model}' has no input '{name}'; it has {', '.join(wanted)}")
        datatype = wanted[name]["datatype"]
        array = read_tensor(name, value, datatype, wanted[name]["shape"])
        part = to_bytes(array, datatype)
        parameters = {"binary_data_size": len(part)}
        described.append({"name": name, "datatype": datatype, "shape": array.shape, "parameters": parameters})
        content += part
    header: dict[str, Any] = {"inputs": described, "parameters": {"binary_data_output": True}}
    if outputs:
        header["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    started_s = time.perf_counter()
    answer, content = server.infer(f"{path}/infer", header, content)
    took_ms = (time.perf_counter() - started_s) * 1e3
    at = 0
    for output in answer["outputs"]:
        size = output.pop("parameters")["binary_data_size"]
        output["data"] = from_bytes(content[at : at + size], output["datatype"], output["shape"])
        at += size
    if as_json:
        for output in answer["outputs"]:
            output["data"] = to_json(output["data"])
        click.echo(json.dumps(answer))
        return
    click.echo(printable(f"{answer['model_name']} version {answer['model_version']}, {took_ms:.1f} ms"))
    for output in answer["outputs"]:
        click.echo(printable(f"{output['name']}  {output['datatype']} {output['shape']}"))
        click.echo(show(output["data"]))


def _by_name(inputs: tuple[str, ...], names: list[str]) -> dict[str, str]:
    """Return the inputs by name; one without a name is that of a model with one input."""
    found: dict[str, str] = {}
    for each in inputs:
        name, equals, value = each.partition("=")
        named_file = value.startswith("@") and os.path.isfile(value[1:])
        if not equals or (name not in names and len(names) == 1 and not named_file):
            if len(names) != 1:
                raise click.UsageError(f"--input {each}: which one of {', '.join(names)}? write NAME=VALUE")
            name, value = names[0], each
        if name in found:
            raise click.UsageError(f"input '{name}' is given twice")
        found[name] = value
    return found


@click.command()
@click.argument("model")
@click.option(
    "--config",
    "config",
    type=click.File(encoding="utf-8-sig"),
    help="File with a configuration (JSON) in place of the model's.",
)
@server_options
def load(model: str, config: Any, server: RemoteServer, as_json: bool) -> None:
    """Load a model, or load it again with what has changed."""
    parameters: dict[str, Any] = {}
    if config is not None:
        try:
            parameters = {"parameters": {"config": config.read()}}
        except UnicodeDecodeError as error:
            raise click.UsageError(f"--config: {error}") from None
    _control(server, model, "load", parameters, as_json)


@click.command()
@click.argument("model")
@server_options
def reload(model: str, server: RemoteServer, as_json: bool) -> None:
    """Load a model again that is loaded; an unknown one is an error."""
    states = {row["state"] for row in _rows_of(server, model) if "state" in row}
    if "READY" not in states:
        raise click.ClickException(f"model '{model}' is not loaded")
    _control(server, model, "load", {}, as_json)


@click.command()
@click.argument("model")
@click.option(
    "--dependents",
    is_flag=True,
    help="Also unload those of an ensemble's models that nobody loaded by name and nothing else needs.",
)
@server_options
def unload(model: str, dependents: bool, server: RemoteServer, as_json: bool) -> None:
    """Unload a model."""
    parameters = {"parameters": {"unload_dependents": dependents}}
    _control(server, model, "unload", parameters, as_json)


def _control(server: RemoteServer, model: str, verb: str, parameters: dict[str, Any], as_json: bool) -> None:
    """Load or unload, and say what became of the model's versions."""
    try:
        server.control(f"/v2/repository/models/{quoted(model)}/{verb}", parameters)
    except KeyboardInterrupt:
        told = f"the server still {verb}s '{model}', for which nobody waits; `eagleray status` says what becomes of it"
        raise click.ClickException(printable(told)) from None
    rows = _rows_of(server, model)
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows or [{"name": model}]:
        reason = f": {row['reason']}" if row.get("reason") else ""
        words = (row["name"], row.get("version", ""), row.get("state", "not loaded"))
        click.echo(printable_lines(" ".join(filter(None, words)) + reason))


def _rows_of(server: RemoteServer, model: str) -> list[dict[str, Any]]:
    return [row for row in server.post("/v2/repository/index", {}, list) if row["name"] == model]
