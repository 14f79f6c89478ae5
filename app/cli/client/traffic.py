"""`eagleray traffic`: how the versions of a model share the requests that name none of them."""

import json
import time
from typing import Any

import click

from app.cli.client.remote_server import RemoteServer, quoted, server_options
from repository_loader.traffic import parse_versions


@click.command()
@click.argument("model")
@click.argument("weights", nargs=-1, metavar="[VERSION=WEIGHT]...")
@click.option(
    "--shadow",
    multiple=True,
    metavar="VERSION=PERCENT",
    help="Copy this share of requests to a version; drop its answers.",
)
@click.option("--no-shadow", is_flag=True, help="End the copies of --shadow.")
@click.option("--canary", type=int, metavar="VERSION", help="Give this version more and more, or all back.")
@click.option("--steps", metavar="PERCENT,...", help="What a canary gets.  [default: 1,5,25,100]")
@click.option("--interval", "interval_s", type=float, help="Seconds that each step lasts at least.  [default: 60]")
@click.option("--max-error-rate", type=float, help="Part of its requests that may fail.  [default: 0.01]")
@click.option("--max-p99-ms", type=float, help="Time within which 99 % of them must be answered.  [default: any]")
@click.option("--min-requests", type=int, help="Requests that a step needs before anything is decided.  [default: 100]")
@click.option("--clear", is_flag=True, help="Go by the model's configuration again.")
@server_options
def traffic(
    model: str,
    weights: tuple[str, ...],
    shadow: tuple[str, ...],
    no_shadow: bool,
    canary: int | None,
    clear: bool,
    server: RemoteServer,
    as_json: bool,
    **rules: Any,
) -> None:
    """Show how a model's versions share the requests that name none of them, or change it.

    `eagleray traffic digits 1=95 2=5` gives version 2 one request of twenty, from the answer on.
    """
    change: dict[str, Any] = {}
    if shadow and no_shadow:
        raise click.UsageError("--shadow does not go with --no-shadow")
    try:
        if weights:
            change["weights"] = _numbers(" ".join(weights))
        if shadow or no_shadow:
            change["shadow"] = _numbers(" ".join(shadow))
        given = {name: value for name, value in rules.items() if value is not None}
        if canary is not None:
            if "steps" in given:
                given["steps"] = [_number(step) for step in given["steps"].split(",")]
            change["canary"] = {"version": canary, **given}
        elif given:
            raise ValueError(f"--{next(iter(given)).removesuffix('_s').replace('_', '-')} needs --canary")
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if clear:
        change["clear"] = True
    path = f"/v2/repository/models/{quoted(model)}/traffic"
    answer = server.post(path, change, dict) if change else server.get(path)
    if as_json:
        click.echo(json.dumps(answer))
    else:
        _print(answer)


def _numbers(text: str) -> dict[str, float]:
    return {version: _number(value) for version, value in parse_versions(text).items()}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a number") from None


def _print(answer: dict[str, Any]) -> None:
    if not answer["shares"]:
        click.echo("no version is ready that requests could go to")
    for version in sorted(answer["shares"].keys() | answer["weights"].keys(), key=int):
        click.echo(f"version {version}: {answer['shares'].get(version, 0) * 100:.4g} % of the requests")
    for version, percent in answer["shadow"].items():
        click.echo(f"version {version}: copies of {percent:g} %")
    canary = answer["canary"]
    if canary is None:
        return
    click.echo(f"canary {canary['version']}: {canary['state']}, {canary['percent']:g} %")
    for event in canary["history"]:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["at_s"]))
        line = f"  {at}  version {event['version']}  {event['percent']:g} %  {event['event']}"
        if event["requests"]:
            line += f" ({event['requests']} requests, {event['error_rate']:.2%} failed, p99 {event['p99_ms']:g} ms)"
        click.echo(line)
