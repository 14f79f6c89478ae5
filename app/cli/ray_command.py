"""`eagleray ray …`: Ray's own command line, for nodes that serve."""

import os

import click

from app.cli.ray_variables import NODE_VARIABLES


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def ray(arguments: tuple[str, ...]) -> None:
    """Run Ray's own command line; `eagleray ray start` starts a node of a cluster as `eagleray serve` does."""
    for name, value in NODE_VARIABLES.items():
        os.environ.setdefault(name, value)
    from ray.scripts.scripts import cli

    from app.cli.ray_internals import forked_workers

    with forked_workers():
        cli.main(arguments, prog_name="ray")
