import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from deployments.core import model_version
from deployments.core.clock import LoopClock
from deployments.core.core import Core
from deployments.core.counts import Totals
from deployments.core.instance_pool import InstancePool
from deployments.core.model_version import ModelVersion
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.default import DefaultScheduler
from protocol.errors import ServingError
from protocol.signature import Signature
from repository_loader.package import ModelPackage
from tests.deployments.fakes import Answers, FakeClock, FakeInstance, config_of


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def core(clock):
    return Core(clock)


def version_of(clock, name="m", version=1):
    config = config_of(f'name: "{name}" max_batch_size: 4')
    pool = InstancePool([FakeInstance(clock)], clock)
    statistics = ModelStatistics(name, version, Totals())
    scheduler = DefaultScheduler(pool, statistics, clock)
    package = ModelPackage(name, version, config, "", "", "")
    return ModelVersion(package, Signature.from_config(config), statistics, scheduler, pool, clock)


def test_latest_is_the_highest_ready_version(core, clock):
    for version in (1, 10, 2):
        core.add(version_of(clock, version=version))
    assert core.resolve("m").version == 10
    core.remove("m", 10)
    assert core.resolve("m").version == 2 and core.resolve("m", 1).version == 1


def test_latest_is_the_highest_version_that_takes_requests_where_one_is_known_to(core, clock):
    for version in (1, 2):
        core.add(version_of(clock, version=version))
    core.expect({("m", 2), ("other", 3)})
    core.add(version_of(clock, version=3))
    assert core.resolve("m").version == 2 and core.resolve("m", 3).version == 3
    core.expect({("m", 1), ("m", 3)})
    assert core.resolve("m").version == 3
    core.expect({("m", 4)})
    assert core.resolve("m").version == 3


REFUSED = {
    "unknown model": ("x", -1, "NotFound: Request for unknown model: 'x' is not found"),
    "unknown version": ("m", 3, "NotFound: Request for unknown model: 'm' version 3 is not found"),
    "no version ready": ("failed", -1, "NotFound: Request for unknown model: 'failed' has no available versions"),
    "only version failed": (
        "failed",
        1,
        "Unavailable: Request for unknown model: 'failed' version 1 is not at ready state",
    ),
    "version failed": ("m", 2, "Unavailable: Request for unknown model: 'm' version 2 is not at ready state"),
    "version removed": ("m", 9, "Unavailable: Request for unknown model: 'm' version 9 is not at ready state"),
}


@pytest.mark.parametrize(("name", "version", "text"), REFUSED.values(), ids=REFUSED)
def test_request_for_what_is_not_ready_is_refused(core, clock, name, version, text):
    core.add(version_of(clock, version=1))
    core.add(version_of(clock, version=9))
    core.remove("m", 9)
    core.note_failed("m", 2)
    core.note_failed("failed", 1)
    with pytest.raises(ServingError) as caught:
        core.resolve(name, version)
    assert f"{type(caught.value).__name__}: {caught.value}" == text

    answers = Answers()
    core.infer(name, version, answers.request("r"))
    assert not answers.order, "no reply before infer returns"
    clock.run()
    assert answers.error("r") == text


def test_version_takes_the_place_of_its_predecessor(core, clock):
    old, new = version_of(clock), version_of(clock)
    assert core.add(old) is None
    assert core.add(new) is old
    assert core.resolve("m") is new


def test_request_reaches_the_model_and_is_counted(core, clock):
    answers = Answers()
    model_version = version_of(clock)
    core.add(model_version)
    core.infer("m", -1, answers.request("r"))
    clock.run()
    clock.wait_for_thread()
    assert answers.results["r"].outputs["Y"].tolist() == [[2, 2]]
    assert model_version.statistics.counts.inference_count == 1
    model_version.pool.close()


def test_instances_are_freed_later_where_no_thread_has_time_for_them(monkeypatch):
    monkeypatch.setattr(model_version, "GRACE_S", 0.01)
    busy = threading.Event()

    async def close():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        load = loop.run_in_executor(None, busy.wait, 20)
        version = version_of(LoopClock(loop))
        (instance,) = version.pool.instances
        await version.close(0.01)
        assert not instance.closed
        busy.set()
        await load
        await asyncio.to_thread(lambda: None)
        assert instance.closed == 1

    asyncio.run(close())
