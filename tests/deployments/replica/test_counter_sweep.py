"""When a process gives back what it has counted of versions that are gone."""

import asyncio
import threading
from pathlib import Path
from typing import cast

import pytest

from deployments.control.directory import READY, UNAVAILABLE, UNLOADED, Directory, ModelEntry, VersionEntry
from deployments.core.counts import CLIENT, MODEL, ClientCounts, Label, ModelCounts
from deployments.core.request_meter import CANCELLED, INFLIGHT, RequestMeters, give_up
from deployments.replica.counter_sweep import CounterSweep
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder
from tests.deployments.replica.test_model_host import ECHO, host_of, planned

HTTP = 0


def unloaded(*, long_gone: bool) -> ModelEntry:
    return ModelEntry(versions={1: VersionEntry(UNAVAILABLE, UNLOADED, long_gone=long_gone)})


def test_what_is_long_gone_is_given_back_and_counts_from_zero(tmp_path: Path) -> None:
    counters, now_s = NodeCounters(NodeFolder("node", tmp_path)), 0.0
    directory = Directory()
    sweep = CounterSweep(directory, counters.give_back, clock=lambda: now_s)

    def swept() -> set[str]:
        asyncio.run(sweep.sweep())
        return {label.name for label in counters.totals().rows}

    names = ("serves", "left", "absent", "unknown yet", "")
    for name in names:
        cast(ModelCounts, counters.row(Label(MODEL, name, 1))).success_count = 5
    assert swept() == {*names}, "nothing is known of any model"
    directory.epoch = "controller"
    directory.models |= {
        "serves": ModelEntry(versions={1: VersionEntry(READY)}),
        "left": unloaded(long_gone=False),
        "unknown yet": ModelEntry(),
    }
    assert swept() == {*names}
    directory.models["left"] = unloaded(long_gone=True)
    now_s = 3599.0
    assert swept() == {*names} - {"left"}
    now_s = 3600.0
    assert swept() == {*names} - {"left", "absent"}
    assert cast(ModelCounts, counters.row(Label(MODEL, "left", 1))).success_count == 0
    counters.close()


def test_a_version_that_is_back_before_an_hour_is_over_is_not_gone(tmp_path: Path) -> None:
    counters, now_s = NodeCounters(NodeFolder("node", tmp_path)), 0.0
    directory = Directory(epoch="controller")
    sweep = CounterSweep(directory, counters.give_back, clock=lambda: now_s)
    row = counters.row(Label(MODEL, "m", 1)).values()
    for seconds, there in ((0.0, False), (1800.0, True), (3600.0, False), (7000.0, False)):
        now_s = seconds
        directory.models = {"m": ModelEntry(versions={1: VersionEntry(READY)})} if there else {}
        asyncio.run(sweep.sweep())
        assert counters.totals().rows[Label(MODEL, "m", 1)].values() == row
    counters.close()


def test_requests_of_a_version_that_is_back_are_under_way_from_zero_on(tmp_path: Path) -> None:
    counters = NodeCounters(NodeFolder("node", tmp_path))
    directory = Directory(epoch="controller", models={"m": unloaded(long_gone=True)})
    meters = RequestMeters(counters)
    sweep = CounterSweep(directory, counters.give_back, [meters.let_go])

    def row() -> ClientCounts:
        meters.sample()
        return cast(ClientCounts, counters.totals().rows[Label(CLIENT, "m", 1, HTTP)])

    under_way = meters.of("m", 1).begin(HTTP)
    give_up(meters.of("m", 1).begin(HTTP))
    asyncio.run(sweep.sweep())
    assert row().values()[: CANCELLED + 1] == [1, 1], "somebody waits still"
    give_up(under_way)
    counters.give_back(lambda *_: True)
    assert row().values()[: CANCELLED + 1] == [0, 2]
    del under_way
    asyncio.run(sweep.sweep())
    assert not counters.totals().rows
    meters.of("m", 1).begin(HTTP)
    assert row().values()[: CANCELLED + 1] == [1, 0]
    counters.close()


def test_a_meter_that_somebody_has_is_sampled_on(tmp_path: Path) -> None:
    counters = NodeCounters(NodeFolder("node", tmp_path))
    meters = RequestMeters(counters)
    meter = meters.of("m", 1)  # as the target of an ensemble whose step was unloaded, and will be back
    give_up(meter.begin(HTTP))
    meters.let_go(lambda *_: True)
    assert meters.of("m", 1) is meter
    meter.begin(HTTP)
    meters.sample()
    assert counters.row(Label(CLIENT, "m", 1, HTTP)).values()[INFLIGHT] == 1
    counters.close()


def test_a_meter_that_is_made_anew_takes_no_earlier_requests_for_under_way(tmp_path: Path) -> None:
    counters = NodeCounters(NodeFolder("node", tmp_path))
    meters, held = RequestMeters(counters), counters.row(Label(CLIENT, "m", 1, HTTP))
    give_up(meters.of("m", 1).begin(HTTP))
    meters.let_go(lambda *_: True)
    meters.of("m", 1).begin(HTTP)
    meters.sample()
    assert held.values()[INFLIGHT] == 1
    counters.close()


def test_the_rows_of_a_model_that_was_unloaded_are_given_back_while_it_is_still_in_memory(tmp_path: Path) -> None:
    async def run() -> None:
        counters = NodeCounters(NodeFolder("node", tmp_path))
        directory = Directory(epoch="controller", models={"echo": unloaded(long_gone=True)})
        host = await host_of(planned(tmp_path / "models", "echo", ECHO, ""), shared=True, counters=counters)
        sweep = CounterSweep(directory, counters.give_back, [host.let_go])
        still = host.served["echo", 1]
        await sweep.sweep()
        assert {label.name for label in counters.totals().rows} == {"echo"}, "it is served"
        await host.apply([])
        await sweep.sweep()
        assert not counters.totals().rows
        still.model.statistics.record_failure("OTHER", 1)
        assert not counters.totals().rows
        await host.close()
        counters.close()

    asyncio.run(run())


def test_it_is_swept_later_when_there_is_no_thread_for_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse_once(self: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        raise RuntimeError("can't start new thread")

    counters = NodeCounters(NodeFolder("node", tmp_path))
    directory = Directory(epoch="controller", models={"left": unloaded(long_gone=True)})
    sweep = CounterSweep(directory, counters.give_back)
    counters.row(Label(MODEL, "left", 1))
    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    for there in (True, False):
        asyncio.run(sweep.sweep())
        assert (Label(MODEL, "left", 1) in counters.totals().rows) is there
    counters.close()
