"""An ingress follows a controller that is far away, slow, or another one than before."""

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Any

import pytest

from app.ingress import directory_follower
from app.ingress.directory_follower import DirectoryFollower
from app.service.client_settings import ClientSettings
from app.service.health import Health
from app.service.log_settings import LogSettings
from app.service.models import Models
from app.service.routing import Routing
from app.service.trace_settings import TraceSettings
from app.trace.tracing import Tracing
from deployments.control.directory import LOADING, READY, ModelEntry, VersionEntry
from deployments.control.publisher import Publisher
from deployments.core.counts import Totals
from deployments.core.refusals import Refusals
from repository_loader.config_json import config_to_json
from repository_loader.repository import load_repositories
from repository_loader.snapshot import LoaderOptions
from tests.app.http.served import FakeFleet, FakeHost
from tests.serving import ROOT

LONGEST_TURN_S = 0.005


class Call:
    """One call by a handle."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __await__(self) -> Any:
        return self._answer.__await__()

    def cancel(self) -> None:
        pass


class Method:
    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def remote(self, *arguments: Any) -> Call:
        return Call(self._method(*arguments))


class Controller:
    """A controller in this process; it may be replaced, or fail for a while."""

    def __init__(self) -> None:
        self.publisher = Publisher()
        self.reports: list[list[list[Any]]] = []
        self.failures: list[BaseException] = []
        self.unread = ""
        self.watch = Method(self._watch)
        self.report_embedded = Method(self._report)
        self.restore_client_state = Method(self._restore)

    async def _watch(self, epoch: str, generation: int) -> dict[str, Any]:
        if self.failures:
            raise self.failures.pop()
        if unread := self.unread:
            await asyncio.sleep(0)
            return {"unread": unread}
        return await self.publisher.news(epoch, generation)

    async def _report(self, rows: list[list[Any]], node: str, ingress: str) -> None:
        if self.failures:
            raise self.failures.pop()
        self.reports.append(rows)

    async def _restore(self, state: dict[str, Any]) -> None:
        self.publisher.publish(client_state=state)


class EmbeddingHost(FakeHost):
    """Loads whatever it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[Any]] = []
        self.slow: dict[str, asyncio.Event] = {}
        self.errors: list[Exception] = []
        self._wanted: list[str] = []

    async def apply(self, models: list[dict[str, Any]], copies: Collection[tuple[str, int]] = ()) -> None:
        self.copies = copies
        if self.errors:
            raise self.errors.pop()
        before, self._wanted = self._wanted, [model["package"]["name"] for model in models]
        for name in self._wanted:
            if name not in before:
                if name in self.slow:
                    await self.slow[name].wait()
                self.rows.append([name, 1, "", 0.1])
        self.rows = [row for row in self.rows if row[0] in self._wanted]

    def report(self) -> list[list[Any]]:
        return list(self.rows)

    async def try_again(self, keys: Collection[tuple[str, int]]) -> bool:
        again = [row for row in self.rows if row[2] and (row[0], row[1]) in keys]
        for row in again:
            row[2] = ""
        return bool(again)


class Followed:
    """A follower and what it knows."""

    def __init__(self) -> None:
        self.controller = Controller()
        self.host = EmbeddingHost()
        fleet: Any = FakeFleet()
        host: Any = self.host
        controller: Any = self.controller
        self.models = Models(host, fleet)
        self._woken = self.models._changed
        self.followed_when_told: list[bool] = []
        loop = asyncio.get_running_loop()
        health = Health(self.models, Routing(self.models, Refusals(Totals())), strict_readiness=True)
        trace = TraceSettings()
        self.settings = ClientSettings(trace, LogSettings(), health, Tracing(trace))
        self.follower = DirectoryFollower(
            controller, self.models, self.settings, host, fleet, loop, self._told, "node", "ingress"
        )
        self.task = loop.create_task(self.follower.run())

    def _told(self) -> None:
        """Note whether somebody who waits for the directory may have been woken before."""
        self.followed_when_told.append(self._woken.is_set())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                assert not self.task.done(), "the follower has ended"
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def rows(config: str, state: str, count: int = 1) -> dict[str, Any]:
    entry = ModelEntry(config, "onnxruntime", "", {1: VersionEntry(state)})
    return {f"model{number}": entry.to_dict() for number in range(count)}


def test_news_of_300_models_never_hold_the_loop_for_long() -> None:
    repository = ROOT / "examples" / "model_repository"
    model = load_repositories([str(repository)], LoaderOptions(), None).models["digits_pipeline"]
    assert model.config is not None
    config = config_to_json(model.config)

    async def run() -> float:
        followed = Followed()
        publisher = followed.controller.publisher
        longest_s = 0.0
        for state in (LOADING, READY):
            publisher.publish(settled=True, models=rows(config, state, 300))
            while (known := followed.models.directory).generation != publisher.generation:
                started_s = time.thread_time()
                await asyncio.sleep(0)
                longest_s = max(longest_s, time.thread_time() - started_s)
            assert len(known.models) == 300
        await followed.end()
        return longest_s

    assert min(asyncio.run(run()) for _ in range(3)) < LONGEST_TURN_S


def test_why_a_repository_cannot_be_read_is_followed_by_news(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        followed = Followed()
        followed.controller.unread = "not a model repository"
        directory = followed.models.directory
        await followed.until(lambda: directory.unread == "not a model repository")
        assert not directory.known
        followed.controller.publisher.publish(settled=True, models=rows("", READY))
        followed.controller.unread = ""
        await followed.until(lambda: directory.known)
        assert (directory.unread, list(directory.models)) == ("", ["model0"])
        await followed.end()

    asyncio.run(run())
    assert not caplog.records


def test_errors_of_the_controller_do_not_end_the_follower() -> None:
    async def run() -> None:
        followed = Followed()
        controller, known = followed.controller, followed.models.directory
        controller.publisher.publish(settled=True, models=rows("", READY))
        await followed.until(lambda: known.known)
        controller.failures += [RuntimeError("the replica died"), asyncio.CancelledError(), TimeoutError()]
        controller.publisher.publish(models=rows("", LOADING))
        await followed.until(lambda: not controller.failures)
        controller.publisher.publish(models=rows("", READY))
        await followed.until(lambda: known.generation == controller.publisher.generation)
        assert known.models["model0"].versions[1].state == READY
        await followed.end()

    asyncio.run(run())


def test_a_model_that_comes_later_makes_no_server_unready_that_need_not_have_every_model() -> None:
    async def run() -> None:
        followed = Followed()
        controller, models = followed.controller, followed.models
        health = Health(models, Routing(models, Refusals(Totals())), strict_readiness=False)
        controller.publisher.publish(settled=False, models=rows("", LOADING))
        await followed.until(lambda: models.directory.known)
        assert not health.server_ready()
        for settled, state in ((True, READY), (False, LOADING)):
            controller.publisher.publish(settled=settled, models=rows("", state))
            await followed.until(lambda: models.directory.generation == controller.publisher.generation)
            assert health.server_ready()
        await followed.end()

    asyncio.run(run())


def test_what_has_loaded_is_reached_once_it_is_known_and_has_a_target() -> None:
    async def run() -> None:
        followed = Followed()
        controller, models = followed.controller, followed.models
        assert not models.reached()
        controller.publisher.publish(settled=False, models=rows("", LOADING))
        await followed.until(lambda: models.directory.known)
        assert models.reached() and not models.settled()
        controller.publisher.publish(models=rows("", READY))
        await followed.until(lambda: models.directory.generation == controller.publisher.generation)
        assert not models.reached()
        await followed.end()

    asyncio.run(run())


def test_new_controller_is_told_what_is_embedded_before_its_directory_is_taken() -> None:
    async def run() -> None:
        followed = Followed()
        controller, known = followed.controller, followed.models.directory
        embedded = {"model0/1": {"package": {"name": "model0", "model_path": "/r/model0"}, "label_files": {}}}
        controller.publisher.publish(settled=True, models=rows("", READY), embedded=embedded)
        await followed.until(lambda: bool(controller.reports))
        old, controller.publisher = controller.publisher, Publisher()
        controller.publisher.publish(settled=True, models=rows("", READY), embedded=embedded)
        controller.failures = [RuntimeError("reports fail at first")]
        old.publish(models={})  # ends the long poll at the old controller
        await followed.until(lambda: known.epoch == controller.publisher.epoch)
        assert len(controller.reports) >= 2 and controller.reports[-1] == [["model0", 1, "", 0.1]]
        await followed.end()

    asyncio.run(run())


def test_the_successor_of_a_controller_that_dies_as_it_is_told_what_is_embedded_is_told_too() -> None:
    async def run() -> None:
        followed = Followed()
        controller, known = followed.controller, followed.models.directory
        embedded = {"model0/1": {"package": {"name": "model0", "model_path": "/r/model0"}, "label_files": {}}}
        controller.publisher.publish(settled=True, models=rows("", READY), embedded=embedded)
        await followed.until(lambda: bool(controller.reports))
        old, dying, successor = controller.publisher, Publisher(), Publisher()
        for each in (dying, successor):
            each.publish(settled=True, models=rows("", LOADING), embedded=embedded)
        told: list[str] = []

        async def report(*_: Any) -> None:
            told.append(controller.publisher.epoch)
            controller.publisher = successor

        controller.report_embedded = Method(report)
        controller.publisher = dying
        old.publish(models={})
        await followed.until(lambda: known.epoch == successor.epoch)
        assert told == [dying.epoch, successor.epoch]
        await followed.end()

    asyncio.run(run())


def test_an_ingress_hosts_and_tells_of_other_models_while_it_loads_one() -> None:
    async def run() -> None:
        followed = Followed()
        controller, host = followed.controller, followed.host
        host.slow["model0"] = asyncio.Event()
        first, second = (
            {f"model{number}/1": {"package": {"name": f"model{number}", "version": 1}, "label_files": {}}}
            for number in range(2)
        )
        controller.publisher.publish(settled=True, models=rows("", LOADING), embedded=first)
        await followed.until(lambda: bool(followed.models.directory.embedded))
        controller.publisher.publish(models=rows("", LOADING, 2), embedded=first | second)
        await followed.until(lambda: bool(controller.reports))
        host.slow["model0"].set()
        await followed.until(lambda: len(controller.reports) == 2)
        assert [[row[0] for row in report] for report in controller.reports] == [["model1"], ["model1", "model0"]]
        await followed.end()

    asyncio.run(run())


def test_what_could_not_be_hosted_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_follower, "_RETRY_S", 0.2)

    async def run() -> None:
        followed = Followed()
        controller, host = followed.controller, followed.host
        host.errors = [RuntimeError("nobody expects it")]
        rows_of = {name: {"package": {"name": name, "version": 1}, "label_files": {}} for name in ("model0", "model1")}
        controller.publisher.publish(settled=True, models=rows("", READY, 2), embedded={"model0/1": rows_of["model0"]})
        await followed.until(lambda: not host.errors)
        controller.publisher.publish(embedded={"model1/1": rows_of["model1"]})
        await followed.until(lambda: len(controller.reports) == 2)
        assert [[row[0] for row in report] for report in controller.reports] == [["model1"]] * 2
        await followed.end()

    asyncio.run(run())


def test_a_report_of_what_is_embedded_that_fails_is_made_again() -> None:
    """The controller may be the same as before, and have a client wait for it."""

    async def run() -> None:
        followed = Followed()
        controller, known = followed.controller, followed.models.directory
        controller.publisher.publish(settled=True, models=rows("", READY))
        await followed.until(lambda: known.known)
        failed: list[list[list[Any]]] = []

        async def fail(rows: list[list[Any]], node: str, ingress: str) -> None:
            failed.append(rows)
            controller.report_embedded = Method(controller._report)
            raise TimeoutError

        controller.report_embedded = Method(fail)
        embedded = {"model0/1": {"package": {"name": "model0", "model_path": "/r/model0"}, "label_files": {}}}
        controller.publisher.publish(embedded=embedded)
        await followed.until(lambda: bool(controller.reports))
        assert controller.reports == failed
        await followed.end()

    asyncio.run(run())


def test_controller_hears_what_came_of_a_second_try() -> None:
    async def run() -> None:
        followed = Followed()
        controller, host = followed.controller, followed.host
        embedded = {"model0/1": {"package": {"name": "model0", "model_path": "/r/model0"}, "label_files": {}}}
        controller.publisher.publish(settled=True, models=rows("", READY), embedded=embedded)
        await followed.until(lambda: len(controller.reports) == 1)
        await followed.follower.try_again([("model0", 1)])
        host.rows = [["model0", 1, "no disk", 0.0]]
        controller.failures.append(TimeoutError())
        await followed.follower.try_again([("model0", 1)])
        await followed.until(lambda: len(controller.reports) == 2)  # nothing had failed the first time
        assert controller.reports[-1] == [["model0", 1, "", 0.0]] and not controller.failures
        await followed.end()

    asyncio.run(run())


def test_follower_ends_when_it_is_told_to() -> None:
    async def run() -> None:
        followed = Followed()
        await asyncio.sleep(0.05)
        followed.task.cancel()
        async with asyncio.timeout(1):
            await asyncio.gather(followed.task, return_exceptions=True)
        assert followed.task.cancelled()

    asyncio.run(run())


def test_new_controller_is_told_what_clients_have_set() -> None:
    async def run() -> None:
        followed = Followed()
        controller, known = followed.controller, followed.models.directory
        controller.publisher.publish(
            settled=True, client_state={"log:log_format": "ISO8601", "trace:trace_rate:m": "5"}
        )
        await followed.models.until_followed(controller.publisher.epoch, controller.publisher.generation)
        assert (followed.settings.log()["log_format"], known.client_state["trace:trace_rate:m"]) == ("ISO8601", "5")
        before = controller.publisher
        controller.publisher = Publisher()
        controller.publisher.publish(settled=True)
        before.publish(settled=False)  # the follower's call ends, and it asks the next controller
        await followed.until(lambda: known.epoch == controller.publisher.epoch)
        assert followed.settings.log()["log_format"] == "ISO8601"
        assert controller.publisher.rows("client_state") == known.client_state
        await followed.end()

    asyncio.run(run())


def test_copies_are_hosted_and_not_reported_and_void_before_anybody_hears_of_a_change() -> None:
    async def run() -> None:
        followed = Followed()
        controller, host = followed.controller, followed.host
        copies = {
            "model0/1": {
                "package": {"name": "model0", "version": 1, "model_path": "/r/model0"},
                "label_files": {},
                "digest": "one",
            }
        }
        controller.publisher.publish(settled=True, models=rows("", READY), copies=copies)
        await followed.until(lambda: bool(host.rows))
        assert host.copies == [("model0", 1)]
        assert followed.followed_when_told[0] is False
        await asyncio.sleep(0.05)
        assert controller.reports == []
        controller.publisher.publish(copies={})
        await followed.until(lambda: not host.rows)
        assert list(host.copies) == []
        await followed.end()

    asyncio.run(run())
