"""An ingress that has just started asks all ingresses."""

import asyncio
from typing import Any

import pytest
from ray.serve.exceptions import DeploymentUnavailableError

from app.ingress.all_ingresses import ask_all


class Ingresses:
    """A handle for which Serve has no replicas the first `refusals` times; see `DeploymentHandle.broadcast`."""

    def __init__(self, refusals: int) -> None:
        self._refusals = refusals

    def broadcast(self, method: str, *arguments: Any) -> "Ingresses":
        self._answer = [method, *arguments]
        return self

    async def results_async(self, timeout_s: float, *, return_exceptions: bool) -> list[Any]:
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
