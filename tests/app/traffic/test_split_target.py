"""Copies never touch the request that they are made of, and are bounded; what is measured is what the client got."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from app.traffic import shadow as shadow_module
from app.traffic.model_traffic import ModelTraffic
from app.traffic.split_target import SplitTarget
from deployments.core.counts import SHADOW, Label, Totals
from deployments.lane.wire import HTTP
from deployments.replica.version_meter import VersionMeter
from protocol.errors import InvalidArgument, ServingError, Unavailable

BODY = b'{"inputs":[{"name":"X","shape":[1],"datatype":"INT32","parameters":{"shared_memory_region":"r"}}]}'


class Version:
    """A target whose answers the test gives."""

    model_name = "m"
    ready = True
    shared = False

    def __init__(self, version: int) -> None:
        self.version = version
        self.sinks: list[Any] = []
        self.parts: list[Sequence[Any]] = []
        self.cancelled: list[Any] = []
        self.held: list[Any] = []
        self.others: list[list[int]] = []
        self.ended: list[Any] = []
        self.copies: list[bool] = []

    def holds(self, sequence_id: Any) -> bool:
        return sequence_id in self.held

    def may_be_elsewhere(self, token: Any, others: Sequence[Any]) -> None:
        self.others.append([other.version for other in others])

    def end_sequence(self, sequence_id: Any) -> None:
        self.ended.append(sequence_id)

    def submit(
        self,
        parts: Sequence[Any],
        json_length: int | None,
        sink: Any,
        wire: int = HTTP,
        trace: Any = None,
        *,
        copied: bool = False,
    ) -> int:
        self.copies.append(copied)
        self.sinks.append(sink)
        self.parts.append(parts)
        return len(self.sinks)

    def cancel(self, token: Any) -> None:
        self.cancelled.append(token)


class Client:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_response(self, json_length: int | None, parts: Sequence[Any], final: bool) -> None:
        self.heard.append(parts)

    def on_error(self, error: ServingError) -> None:
        self.heard.append(error)


class Regions:
    registered = False


class Split:
    """Version 1 gets everything, version 3 copies of all, or whatever the row says."""

    def __init__(self, **row: Any) -> None:
        self.totals = Totals()
        self.regions = Regions()
        self.versions = {number: Version(number) for number in (1, 2, 3)}
        self.traffic = ModelTraffic("m", ModelConfig(name="m"), self.totals, self.regions)  # type: ignore[arg-type]
        self.take(**(row or {"weights": {"1": 1}, "shadow": {"3": 100}}))
        self.client = Client()

    def take(self, **row: Any) -> None:
        self.traffic.take(row)

    @property
    def target(self) -> SplitTarget:
        target = self.traffic.target(self.versions)  # type: ignore[arg-type]
        assert isinstance(target, SplitTarget)
        return target

    def ask(self, count: int = 1, body: bytes | memoryview = BODY) -> None:
        for _ in range(count):
            self.target.submit((body,), None, self.client)

    @property
    def counts(self) -> list[int]:
        return self.totals.row(Label(SHADOW, "m", 3)).values()


def test_a_copy_leaves_after_the_request_and_its_outcome_is_only_counted() -> None:
    async def run() -> None:
        split = Split()
        split.ask(2)
        assert (len(split.versions[1].sinks), len(split.versions[3].sinks)) == (2, 0)
        await asyncio.sleep(0)
        answered, failed = split.versions[3].sinks
        answered.on_response(None, (b"copy",), False)
        answered.on_response(None, (b"copy",), True)
        failed.on_error(Unavailable("no"))
        assert split.client.heard == []
        assert split.counts == [1, 1, 0]
        split.versions[1].sinks[0].on_response(None, (b"answer",), True)
        assert split.client.heard == [(b"answer",)]

    asyncio.run(run())


def test_neither_the_request_nor_its_copy_can_be_written_to() -> None:
    """Both are the same memory, and a large body can be written to otherwise."""

    async def run() -> None:
        split = Split()
        split.ask(body=memoryview(bytearray(BODY)))
        await asyncio.sleep(0)
        for version in (1, 3):
            ((part,),) = split.versions[version].parts
            assert part.readonly
            assert bytes(part) == BODY

    asyncio.run(run())


def test_copies_are_bounded_by_number_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        split = Split()
        split.ask(300)
        await asyncio.sleep(0)
        assert (len(split.versions[1].sinks), len(split.versions[3].sinks)) == (300, 256)
        for sink in split.versions[3].sinks:
            sink.on_response(None, (b"",), True)
        assert split.counts == [256, 0, 44]
        monkeypatch.setattr(shadow_module, "MAX_INFLIGHT_BYTES", 2 * len(BODY))
        split.ask(3)
        await asyncio.sleep(0)
        assert len(split.versions[3].sinks) == 258

    asyncio.run(run())


def test_what_names_shared_memory_is_not_copied() -> None:
    async def run() -> None:
        split = Split()
        split.regions.registered = True
        split.ask()
        await asyncio.sleep(0)
        assert (len(split.versions[1].sinks), split.versions[3].sinks) == (1, [])
        assert split.counts == [0, 0, 1]

    asyncio.run(run())


def test_a_version_that_is_not_ready_gets_no_copies() -> None:
    async def run() -> None:
        split = Split(weights={"1": 1}, shadow={"2": 100, "3": 100})
        del split.versions[3]
        split.ask()
        await asyncio.sleep(0)
        assert len(split.versions[2].sinks) == 1

    asyncio.run(run())


def test_a_request_is_given_up_at_the_version_that_has_it() -> None:
    split = Split(weights={"1": 1, "2": 1})
    target = split.target
    tokens = [target.submit((BODY,), None, split.client) for _ in range(10)]
    for token in tokens:
        target.cancel(token)
    target.cancel(None)
    for version in (1, 2):
        assert split.versions[version].cancelled == list(range(1, len(split.versions[version].sinks) + 1))


def test_a_sequence_that_goes_on_may_be_at_other_versions_and_one_that_starts_ends_there() -> None:
    split = Split(weights={"1": 1}, shadow={"3": 100})
    config = ModelConfig(name="m")
    config.sequence_batching.SetInParent()
    split.traffic = ModelTraffic("m", config, split.totals, None)
    split.take(weights={"1": 1}, shadow={"3": 100})

    async def run() -> None:
        split.ask(body=b'{"parameters":{"sequence_id":7,"sequence_start":true}}')
        split.ask(body=b'{"parameters":{"sequence_id":8}}')

    asyncio.run(run())
    assert [split.versions[number].ended for number in (1, 2, 3)] == [[], [7], [7]]
    assert [split.versions[number].others for number in (1, 2, 3)] == [[[2, 3]], [], []]


def test_a_sequence_in_a_version_that_becomes_a_shadow_goes_on_there_and_is_not_copied_to_it() -> None:
    split, config = Split(), ModelConfig(name="m")
    config.sequence_batching.SetInParent()
    split.traffic = ModelTraffic("m", config, split.totals, split.regions)  # type: ignore[arg-type]

    async def run() -> None:
        split.take(weights={"1": 1})
        split.ask(body=b'{"parameters":{"sequence_id":7,"sequence_start":true}}')
        split.take(weights={"2": 1}, shadow={"1": 100})
        split.ask(body=b'{"parameters":{"sequence_id":7}}')
        split.ask(body=b'{"parameters":{"sequence_id":8,"sequence_start":true}}')
        await asyncio.sleep(0)

    asyncio.run(run())
    assert [split.versions[number].copies for number in (1, 2)] == [[False, False, True], [False]]


@pytest.mark.parametrize("kind", ["sequence_batching", "ensemble_scheduling"])
def test_all_requests_of_a_sequence_go_to_one_version(kind: str) -> None:
    split, config = Split(), ModelConfig(name="m")
    getattr(config, kind).SetInParent()
    split.traffic = ModelTraffic("m", config, split.totals, split.regions)  # type: ignore[arg-type]
    split.take(weights={"1": 1, "2": 1})
    for number in range(1, 21):
        before = [len(split.versions[version].sinks) for version in (1, 2)]
        for starts in (b"true", b"false", b"false", b"false"):
            split.ask(body=b'{"parameters":{"sequence_id":%d,"sequence_start":%s}}' % (number, starts))
        came = [len(split.versions[version].sinks) - had for version, had in zip((1, 2), before, strict=True)]
        assert sorted(came) == [0, 4]
    assert all(split.versions[version].sinks for version in (1, 2))


@pytest.mark.parametrize("refused", [True, False])
def test_a_sequence_whose_end_is_refused_stays_at_its_version(refused: bool) -> None:
    split, config = Split(), ModelConfig(name="m")
    config.sequence_batching.SetInParent()
    split.traffic = ModelTraffic("m", config, split.totals, split.regions)  # type: ignore[arg-type]
    first, second = split.versions[1], split.versions[2]

    def ask(flag: bytes) -> None:
        for number in range(1, 21):
            split.ask(body=b'{"parameters":{"sequence_id":%d,"sequence_%s":true}}' % (number, flag))

    split.take(weights={"1": 1})
    ask(b"start")
    split.take(weights={"1": 1, "2": 1})
    ask(b"end")
    assert len(first.sinks) == 40
    for sink in first.sinks[20:]:
        error = Unavailable("the queue is full")
        error.refused = refused
        sink.on_error(error)
    ask(b"end")
    assert (len(second.sinks) == 0) == refused
    assert all(split.client.heard)


def test_a_sequence_from_before_there_were_weights_stays_at_its_version() -> None:
    split, config = Split(), ModelConfig(name="m")
    config.sequence_batching.SetInParent()
    split.traffic = ModelTraffic("m", config, split.totals, split.regions)  # type: ignore[arg-type]
    split.versions[2].held.append(7)
    split.take(weights={"1": 1})
    for flags in (b"", b',"sequence_end":true', b',"sequence_start":true'):
        split.ask(body=b'{"parameters":{"sequence_id":7%s}}' % flags)
    assert [len(split.versions[version].sinks) for version in (1, 2)] == [1, 2]


def test_turns_go_on_when_targets_are_found_anew() -> None:
    split = Split(weights={"1": 1, "2": 1})
    split.ask(100)
    assert len(split.versions[2].sinks) == pytest.approx(50, abs=3)


def test_a_model_without_weights_or_copies_has_its_versions_own_target() -> None:
    split = Split(weights={"2": 1})
    assert split.traffic.target(split.versions) is split.versions[2]  # type: ignore[arg-type]
    split.take(weights={}, shadow={})
    assert split.traffic.target(split.versions) is split.versions[3]  # type: ignore[arg-type]
    split.take(weights={"4": 1})
    assert split.traffic.target(split.versions) is None  # type: ignore[arg-type]


def test_what_a_canary_got_is_measured_anew_in_each_step() -> None:
    split = Split(weights={"2": 1}, step="c/0", canary_version=2)
    split.ask(4)
    one, other, wrong, _ = split.versions[2].sinks
    one.on_response(None, (b"",), True)
    other.on_error(Unavailable("no"))
    wrong.on_error(InvalidArgument("the client's own mistake"))
    (meter,) = split.traffic.meters.values()
    report = meter.to_dict()
    assert (report["step"], report["requests"], report["errors"], sum(report["buckets"].values())) == ("c/0", 3, 1, 1)
    assert len(split.client.heard) == 3
    split.take(weights={"2": 1}, step="c/1", canary_version=2)
    (meter,) = split.traffic.meters.values()
    assert (meter.step, meter.request_count) == ("c/1", 0)
    split.take(weights={"2": 1}, step="", canary_version=2)
    assert not split.traffic.meters


def test_a_latency_is_known_to_9_percent() -> None:
    meter = VersionMeter("s")
    for took_us in (1, 37, 1000, 250_000):
        meter.answered(took_us * 1000)
        bucket = max(meter.buckets)
        assert took_us <= 2 ** (bucket / 8) <= took_us * 1.1
