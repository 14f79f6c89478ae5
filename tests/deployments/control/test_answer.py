"""Calls of a controller that ends, by those who have to go on."""

import asyncio
import weakref
from collections.abc import Generator
from typing import Any

import pytest

from app.ingress.cluster_control import ClusterControl
from deployments.control.answer import answer
from deployments.control.directory import READY, ModelEntry, VersionEntry
from deployments.replica.load_report import LoadReport
from deployments.replica.traffic_report import TrafficReport
from repository_loader.config_json import config_to_json
from tests.app.http.served import FakeFleet
from tests.repository_loader.planned_models import ONNX, model, parameter


class Call:
    """One that ends as cancelled, as long as the controller is ending, or else is never answered."""

    def __init__(self, *, ending: bool = True) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if ending:
            self.future.cancel()

    def __await__(self) -> Generator[Any, None, Any]:
        return self.future.__await__()

    def cancel(self) -> None:
        self.future.cancel()


class EndingController:
    def __init__(self) -> None:
        self.called = 0

    def __getattr__(self, method: str) -> Any:
        class Method:
            @staticmethod
            def remote(*arguments: Any) -> Call:
                self.called += 1
                return Call()

        return Method


def test_an_answer_is_there_for_whom_ray_tells_of_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.control.answer._KEPT_S", 0.05)

    async def run() -> None:
        call = Call(ending=False)
        call.future.set_result("news")
        kept = weakref.ref(call)
        asking = answer(call)
        del call
        assert await asking == "news" and kept() is not None
        async with asyncio.timeout(5):
            while kept() is not None:
                await asyncio.sleep(0.01)

    asyncio.run(run())


def test_a_call_that_was_cancelled_is_an_error_and_one_whose_caller_was_is_cancelled() -> None:
    async def run() -> None:
        with pytest.raises(ConnectionError):
            await answer(Call())
        with pytest.raises(TimeoutError):
            await answer(left := Call(ending=False), 0.01)
        assert left.future.cancelled()
        waiting = asyncio.create_task(answer(left := Call(ending=False)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert left.future.cancelled()

    asyncio.run(run())


async def _calls_again(report: Any, controller: EndingController) -> bool:
    reporting = asyncio.create_task(report.run())
    async with asyncio.timeout(10):
        while controller.called < 2 and not reporting.done():
            await asyncio.sleep(0.01)
    reporting.cancel()
    await asyncio.wait({reporting})
    return controller.called >= 2


def test_reports_of_the_load_go_on() -> None:
    """Else what waits for the first replica of a model would wait in vain."""
    config = model("m", ONNX + parameter("autoscaling.max_replicas", "2")).config
    assert config is not None

    class Busy(FakeFleet):
        def ongoing(self, name: str, version: int) -> int:
            return 1

        def sent(self, name: str, version: int) -> int:
            return 1

        def set_sleepers(self, *sleepers: Any) -> None:
            pass

    async def run() -> None:
        fleet: Any = Busy()
        report = LoadReport(controller := EndingController(), fleet)
        report.follow({"m": ModelEntry(config_to_json(config), "onnxruntime", "", {1: VersionEntry(READY)})})
        assert await _calls_again(report, controller)

    asyncio.run(run())


def test_reports_of_canaries_go_on() -> None:
    async def run() -> None:
        controller: Any = EndingController()
        report = TrafficReport(controller, lambda: {"m": {"step": "id/0", "requests": 1}})
        report.follow({"m": ModelEntry(traffic={"step": "id/0"})})
        assert await _calls_again(report, controller)

    asyncio.run(run())


def test_who_asks_for_the_index_is_answered() -> None:
    async def run() -> None:
        controller: Any = EndingController()
        models: Any = None
        await ClusterControl(controller, models).list_models()

    asyncio.run(run())
