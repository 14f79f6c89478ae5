"""What clients have set outlives the controller, whatever ingresses that have missed it hand back."""

import asyncio
from pathlib import Path
from typing import Any

from deployments.control.client_settings import MAX_UNLOADED, ClientSettings
from deployments.control.current_state import CurrentState
from deployments.control.first_state import read_desired_state
from deployments.control.state_store import StateStore
from tests.deployments.control.test_repository_watch import write
from tests.deployments.control.test_state_store import FACTS, Table, options_of


def shown(state: CurrentState) -> dict[str, Any]:
    assert state.desired is not None
    return dict(state.desired.client_settings)


def test_a_successor_knows_what_was_set_though_no_ingress_has_heard_of_it(tmp_path: Path) -> None:
    options, table = options_of(tmp_path), Table()

    async def scenario() -> None:
        state = CurrentState(StateStore(table, "test", options), lambda desired: None)
        await state.change(read_desired_state(options, FACTS))
        settings = ClientSettings(state)
        await settings.change({"log": 1, "trace": 2})
        await settings.change({"log": 3, "trace": None})
        assert shown(state) == {"log": 3}

        successor = CurrentState(StateStore(table, "test", options), lambda desired: None)
        await successor.restore()
        assert shown(successor) == {"log": 3}
        await ClientSettings(successor).restore({"log": 1, "trace": 2})  # of an ingress that has missed the last change
        assert shown(successor) == {"log": 3}

    asyncio.run(scenario())


def test_a_controller_that_is_deployed_anew_takes_it_from_the_ingresses(tmp_path: Path) -> None:
    options = options_of(tmp_path)

    async def scenario() -> None:
        state = CurrentState(StateStore(Table(), "test", options), lambda desired: None)
        await state.change(read_desired_state(options, FACTS))
        settings = ClientSettings(state)
        await settings.change({"log": 3})
        await settings.restore({"log": 1, "trace": 2})
        assert shown(state) == {"log": 3, "trace": 2}

    asyncio.run(scenario())


def test_a_change_that_comes_before_the_repositories_are_read_keeps_nobody_from_reading_them(tmp_path: Path) -> None:
    options = options_of(tmp_path)

    async def scenario() -> None:
        state = CurrentState(StateStore(Table(), "test", options), lambda desired: None)
        changing = asyncio.create_task(ClientSettings(state).change({"log": 3}))
        await asyncio.sleep(0)
        async with asyncio.timeout(10), state.lock:
            await state.change(read_desired_state(options, FACTS))
        await changing
        assert shown(state) == {"log": 3}

    asyncio.run(scenario())


def test_settings_of_models_by_ever_new_names_do_not_grow_without_end(tmp_path: Path) -> None:
    write(tmp_path, "a")
    options = options_of(tmp_path)

    async def scenario() -> None:
        state = CurrentState(StateStore(Table(), "test", options), lambda desired: None)
        await state.change(read_desired_state(options, FACTS))
        settings = ClientSettings(state)
        always = {"log:log_info:": False, "trace:trace_rate:a": "1", "trace:trace_rate:old:1": "2"}
        await settings.change(always)
        for number in range(MAX_UNLOADED - 1):
            await settings.change({f"trace:trace_rate:new{number}": "3", f"trace:trace_level:new{number}": ["OFF"]})
        assert shown(state).items() >= always.items(), "they outlive the model, which may be loaded again"
        await settings.change({"log:log_info:one more": True})
        kept = shown(state)
        assert "trace:trace_rate:old:1" not in kept and kept["trace:trace_rate:a"] == "1"
        assert (kept["log:log_info:"], kept["log:log_info:one more"]) == (False, True)
        await settings.change({"trace:trace_level:new0": ["TIMESTAMPS"]})
        await settings.change({"log:log_info:another": True})
        assert {"trace:trace_rate:new0", "trace:trace_level:new0"} <= shown(state).keys()
        assert "trace:trace_rate:new1" not in shown(state)
        assert len(shown(state)) == 2 + 2 * (MAX_UNLOADED - 2) + 2

    asyncio.run(scenario())
