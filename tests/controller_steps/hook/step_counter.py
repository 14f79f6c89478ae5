"""In the controller's process: counts what it does that others see, or that outlives it, and dies before or after it.

The test says in `armed`, a file of the folder, when: `{"id": "…", "kills": [[3, "before"], …]}`, a place for each
controller in turn. What was done is a line of the file `steps`: id, number, name, and how it ended.
"""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ray import serve
from ray.exceptions import RayActorError
from ray.serve._private.client import ServeControllerClient
from ray.serve.handle import DeploymentHandle

import deployments.control.gpu_cards
import deployments.control.growth_request
import deployments.control.reconciler
from deployments.control.publisher import Publisher
from deployments.control.repository_controller import RepositoryController
from deployments.control.scaler import Scaler
from deployments.replica.override_files import OverrideFiles
from deployments.serve_internals import ClusterTable

FOLDER = Path(os.environ["CONTROLLER_STEPS"])
SENT_S = 0.05
"""An answer has left by then."""


class _Steps:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._id = ""
        self._count = 0

    def next(self, name: str) -> str:
        """Count a step; returns when this process shall die of it: "before", "after", or "" for not at all."""
        with self._lock:
            try:
                armed = json.loads((FOLDER / "armed").read_text())
            except FileNotFoundError:
                return ""
            if armed["id"] != self._id:
                self._id, self._count = armed["id"], 0
            self._count += 1
            number, when = armed["kills"][0] if armed["kills"] else (0, "")
            dies = when if number == self._count else ""
            if dies:
                armed["kills"].pop(0)
                write_whole(FOLDER / "armed", json.dumps(armed))
            with (FOLDER / "steps").open("a") as file:
                file.write(f"{self._id} {self._count} {name} {dies}\n")
            return dies


def write_whole(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def count_steps() -> None:
    """Begin; once in a process."""
    steps = _Steps()

    def watch(owner: Any, function: str, name: str, counts: Callable[..., bool] = _always) -> None:
        done = getattr(owner, function)

        def step(*arguments: Any, **named: Any) -> Any:
            dies = steps.next(name) if counts(*arguments, **named) else ""
            if dies == "before":
                die()
            result = done(*arguments, **named)
            if dies:
                die()
            return result

        setattr(owner, function, step)

    def watch_given(owner: Any, function: str, name: str) -> None:
        """Watch a function that each instance is given."""
        began = owner.__init__

        def begin(self: Any, *arguments: Any, **named: Any) -> None:
            began(self, *arguments, **named)
            watch(self, function, name)

        owner.__init__ = begin

    def watch_answers(name: str, *functions: str) -> None:
        for function in functions:
            watch_answer(name, function)

    def watch_answer(name: str, function: str) -> None:
        asked = getattr(RepositoryController, function)

        async def step(*arguments: Any) -> Any:
            answer = await asked(*arguments)
            dies = steps.next(name) if answer is not None else ""
            if dies == "before":
                die()
            if dies:
                asyncio.get_running_loop().call_later(SENT_S, die)
            return answer

        setattr(RepositoryController, function, step)

    def may_fail(owner: Any, function: str, what: str, fails: Callable[..., bool]) -> None:
        done = getattr(owner, function)

        def fail_if_told(*arguments: Any, **named: Any) -> Any:
            if fails(*arguments, **named) and (FOLDER / f"fail-{what}").exists():
                with (FOLDER / f"failed-{what}").open("a") as file:
                    file.write(".")
                raise RayActorError(error_msg="made up by a test")
            return done(*arguments, **named)

        setattr(owner, function, fail_if_told)

    may_fail(ServeControllerClient, "list_serve_statuses", "status", _always)
    may_fail(DeploymentHandle, "broadcast", "describe", lambda _, method, *__: method == "describe")
    watch(ClusterTable, "put", "stores")
    watch(ClusterTable, "forget", "forgets")
    watch(OverrideFiles, "_unpack", "unpacks")
    watch(OverrideFiles, "keep", "tidies")
    watch(serve, "run_many", "deploys")
    watch(deployments.control.reconciler, "delete_applications", "deletes", _any_named)
    watch_given(Scaler, "_set_target", "scales")
    watch(deployments.control.growth_request, "request_resources", "asks_for_nodes")
    watch(deployments.control.gpu_cards, "placement_group", "reserves_a_card")
    watch(Publisher, "publish", "publishes", _differs)
    watch_answers("tells", "watch")
    watch_answers("answers", "load", "unload", "change_traffic", "set_client_state")
    watch_answers("answers", "register_repository", "unregister_repository")


def _always(*_: Any, **__: Any) -> bool:
    return True


def _any_named(names: Iterable[str]) -> bool:
    return bool(list(names))


def _differs(publisher: Publisher, *, settled: bool | None = None, **tables: Mapping[str, Any]) -> bool:
    changed = settled is not None and settled != publisher.settled
    return changed or any(dict(rows) != dict(publisher.rows(name)) for name, rows in tables.items())
