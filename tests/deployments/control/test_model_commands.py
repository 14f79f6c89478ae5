"""Who may have models loaded, whoever asks."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from deployments.control.controller_options import ControllerOptions, ControlMode
from deployments.control.model_commands import ModelCommands
from protocol.errors import Unavailable
from protocol.limits import Limits
from repository_loader.plan import PlanSettings
from repository_loader.repository import LoaderOptions


@pytest.mark.parametrize("mode", ["none", "poll"])
@pytest.mark.parametrize(
    "command",
    [lambda commands: commands.load("id", "m", None, {}), lambda commands: commands.unload("id", "m", False)],
    ids=["load", "unload"],
)
def test_models_are_loaded_in_explicit_mode_only(
    mode: ControlMode, command: Callable[[ModelCommands], Awaitable[None]]
) -> None:
    options = ControllerOptions((), LoaderOptions(), PlanSettings(), Limits(), control_mode=mode)
    nothing: Any = None  # which a refused command does not touch
    with pytest.raises(Unavailable, match=r"^explicit model load / unload is not allowed if polling is enabled$"):
        asyncio.run(command(ModelCommands(options, nothing, nothing)))  # type: ignore[arg-type]
