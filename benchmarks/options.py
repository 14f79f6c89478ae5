"""Options of the benchmarks whose values are lists, with commas between."""

import click


def numbers(_: click.Context, parameter: click.Parameter, value: str | None) -> list[int] | None:
    """Split an option's value at its commas."""
    if value is None:
        return None
    try:
        return [int(part) for part in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no list of numbers", param=parameter) from error


def words(_: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    """Split an option's value at its commas."""
    return value.split(",")
