"""An ingress that has just started asks all ingresses."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from ray import serve
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentBroadcastResponse

from app.ingress.all_ingresses import all_ingresses, ask_all, ask_each


class Ingresses:
    """A handle for which Serve has no replicas the first `refusals` times; see `DeploymentHandle.broadcast`."""

    def __init__(self, refusals: int) -> None:
        self._refusals = refusals

    def broadcast(self, method: str, *arguments: Any) -> "Ingresses":
        self._answer = [method, *arguments]
        return self

    async def results_async(self, *, return_exceptions: bool) -> list[Any]:
        self._refusals -= 1
        if self._refusals >= 0:
            ingress: Any = "Ingress"
            raise DeploymentUnavailableError(ingress)
        return self._answer


def ask(refusals: int, timeout_s: float) -> list[Any]:
    ingresses: Any = Ingresses(refusals)
    return asyncio.run(ask_all(ingresses, "has_followed", "epoch", 7, timeout_s=timeout_s))


def test_it_asks_again_until_serve_names_them() -> None:
    assert ask(3, timeout_s=30) == ["has_followed", "epoch", 7]


def test_it_gives_up_when_serve_names_none() -> None:
    with pytest.raises(TimeoutError):
        ask(1000, timeout_s=0.2)


class Answered:
    """The answer of one ingress."""

    async def get_async(self) -> str:
        return "here"


class Hanging(DeploymentBroadcastResponse):
    """Serve's own collection of the answers of three ingresses, two of which do not answer."""

    def __init__(self) -> None:
        pass

    def broadcast(self, method: str) -> "Hanging":
        return self

    async def _fetch_replica_results_async(self) -> list[Any]:
        return [self, Answered(), self]

    async def get_async(self) -> None:
        await asyncio.sleep(60)


def test_who_asks_each_has_the_answers_of_those_that_answer_in_time() -> None:
    ingresses: Any = Hanging()
    one, answer, other = asyncio.run(ask_each(ingresses, "counts_of_node", timeout_s=0.05))
    assert answer == "here"
    assert isinstance(one, TimeoutError) and isinstance(other, TimeoutError)


def test_who_asks_each_gives_up_when_serve_names_none() -> None:
    class Unnamed(Hanging):
        async def _fetch_replica_results_async(self) -> list[Any]:
            ingress: Any = "Ingress"
            raise DeploymentUnavailableError(ingress)

    ingresses: Any = Unnamed()
    with pytest.raises(TimeoutError):
        asyncio.run(ask_each(ingresses, "counts_of_node", timeout_s=0.2))


def test_nothing_is_left_of_those_that_do_not_answer() -> None:
    async def run() -> list[str]:
        said: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["message"]))
        ingresses: Any = Hanging()
        with pytest.raises(TimeoutError):
            await ask_all(ingresses, "drain", timeout_s=0.05)
        gc.collect()
        await asyncio.sleep(0)
        return said

    assert asyncio.run(run()) == []


def test_the_handle_is_made_once_without_asking_the_controller_of_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that stands still would have the whole ingress stand still that asks it for the first time."""
    made = []

    class Handle:
        is_initialized = False

        def _init(self) -> None:
            self.is_initialized, self._router = True, SimpleNamespace(_asyncio_router=SimpleNamespace())

    def get_deployment_handle(deployment: str, app: str, _check_exists: bool = True) -> Handle:
        made.append((deployment, app, _check_exists))
        return Handle()

    monkeypatch.setattr(serve, "get_deployment_handle", get_deployment_handle)
    context = SimpleNamespace(deployment="Ingress", app_name="eagleray")
    monkeypatch.setattr(serve, "get_replica_context", lambda: context)
    all_ingresses.cache_clear()
    try:
        first = all_ingresses()
        assert first.is_initialized, "Ray's head is asked for it, which may not answer later"
        assert all_ingresses() is first
    finally:
        all_ingresses.cache_clear()
    assert made == [("Ingress", "eagleray", False)]
