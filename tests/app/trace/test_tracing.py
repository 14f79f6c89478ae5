"""From a client's bytes to the trace file, through the ingress's own HTTP."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.service.trace_settings import TraceSettings
from protocol.errors import Unavailable
from tests.app.http.served import Served
from tests.app.http.wire import infer
from tests.serving import wait_until

FLAGS = ("level=TIMESTAMPS", "rate=1")


class Bench(Served):
    """An ingress with some models, whose traces go to a file."""

    def __init__(self, path: Path, *flags: str) -> None:
        self.path = path / "traces.json"
        super().__init__(trace=TraceSettings([*flags, f"triton,file={self.path}"]))

    async def infer(self, model: str = "good") -> Any:
        return await self.request("POST", f"/v2/models/{model}/infer", b"{}")

    async def set(self, settings: dict[str, Any], model: str = "") -> None:
        await self.service.settings.update_trace(settings, model)
        self.context.routes_changed()

    def written(self) -> list[dict[str, Any]]:
        """Return what is in the file, and then in the numbered ones, after the end."""
        self.service.tracing.close(30)
        paths = sorted(self.path.parent.glob(f"{self.path.name}*"))
        return [each for path in paths for each in json.loads(path.read_text())]

    def names(self) -> list[str]:
        """Return the names of the timestamps in these files after the end."""
        return [each["timestamps"][0]["name"] for each in self.written() if "timestamps" in each]


def on_loop(test: Callable[[Path], Any]) -> Callable[..., None]:
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    return run


@on_loop
async def test_a_count_that_is_set_again_begins_anew_and_other_settings_leave_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, *FLAGS)
    for settings in ({"trace_count": "1"}, {"trace_count": "1"}, {"trace_level": ["TIMESTAMPS"]}):
        await bench.set(settings)
        for _ in range(3):
            assert (await bench.infer()).status == 200
    assert sum("model_name" in each for each in bench.written()) == 2
    assert "begun" not in bench.service.settings.trace()


@on_loop
async def test_the_count_tells_how_many_more_are_traced(tmp_path: Path) -> None:
    bench = Bench(tmp_path, *FLAGS)
    settings = bench.service.settings
    assert settings.trace()["trace_count"] == "-1"
    for model, changes, left in (
        ("", {"trace_count": "2"}, ["2", "1", "0", "0"]),
        ("good", {"trace_count": "5", "trace_rate": "2"}, ["5", "5", "4", "4"]),
        ("good", {"trace_count": None, "trace_rate": None}, ["0", "0", "0", "0"]),
        ("", {"trace_count": None}, ["-1", "-1", "-1", "-1"]),
    ):
        told = [(await settings.update_trace(changes, model))["trace_count"]]
        bench.context.routes_changed()
        for _ in left[1:]:
            assert (await bench.infer()).status == 200
            told.append(settings.trace("good")["trace_count"])
        assert told == left


@on_loop
async def test_receiving_and_sending_are_noted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, *FLAGS)
    assert (await bench.infer()).status == 200
    head, *stamps = bench.written()
    assert (head["model_name"], head["model_version"]) == ("echo", 1), "what answers for all models here"
    assert [each["timestamps"][0]["name"] for each in stamps] == [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "INFER_RESPONSE_COMPLETE",
        "HTTP_SEND_START",
        "HTTP_SEND_END",
    ]
    times = [each["timestamps"][0]["ns"] for each in stamps]
    assert times == sorted(times)
    assert {each["id"] for each in stamps} == {head["id"]}


@on_loop
async def test_a_body_in_pieces_is_received_from_the_first_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path, *FLAGS)
    whole = infer(b"{}  ", model="good")
    await bench.send(whole[:-3], whole[-3:-2], whole[-2:])
    await bench.infer()
    stamps = [each["timestamps"][0] for each in bench.written() if "timestamps" in each]
    began, ended = ([each["ns"] for each in stamps if each["name"] == f"HTTP_RECV_{word}"] for word in ("START", "END"))
    assert began[0] < ended[0]
    assert began[1] == ended[1], "which came whole"


@on_loop
async def test_models_are_traced_by_settings_of_their_own(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "level=TIMESTAMPS", "rate=3")
    await bench.set({"trace_rate": "1"}, "half")
    await bench.set({"trace_level": ["OFF"]}, "a/b")
    for _ in range(3):
        for model in ("good", "half", "a%2Fb"):
            assert (await bench.infer(model)).status == 200
    assert bench.names().count("HTTP_RECV_START") == 3 + 1


@on_loop
async def test_turns_go_on_when_other_settings_change(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "level=TIMESTAMPS", "rate=4")
    for _ in range(3):
        await bench.infer()
        await bench.set({"trace_rate": "9"}, "half")
    assert not bench.path.exists()
    await bench.infer()
    assert "HTTP_RECV_START" in bench.names()


@on_loop
async def test_a_model_that_is_not_traced_has_nothing_in_front_of_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    untraced = bench.service.routing.infer_target("good")
    assert untraced is bench.service.routing.target("good")
    await bench.set({"trace_level": ["TIMESTAMPS"]})
    assert bench.service.routing.infer_target("good") is not untraced


@on_loop
async def test_errors_are_traced_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path, *FLAGS)
    bench.target.hold = True
    await bench.send(infer(model="good"))
    bench.target.fail(Unavailable("gone"))
    assert bench.names()[-2:] == ["HTTP_SEND_START", "HTTP_SEND_END"]


@on_loop
async def test_the_trace_of_a_client_that_has_left_ends(tmp_path: Path) -> None:
    bench = Bench(tmp_path, *FLAGS)
    bench.target.hold = True
    await bench.send(infer(model="good"))
    bench.connection.connection_lost(None)
    assert bench.names() == ["HTTP_RECV_START", "HTTP_RECV_END"]
    assert len(bench.target.cancelled) == 1


@pytest.mark.parametrize("count", [0, 2])
def test_no_more_are_traced_than_are_asked_for(tmp_path: Path, count: int) -> None:
    async def run() -> None:
        bench = Bench(tmp_path, *FLAGS, f"count={count}")
        for _ in range(5):
            await bench.infer()
        assert bench.names().count("HTTP_RECV_START") == count

    asyncio.run(run())


@on_loop
async def test_traces_that_wait_for_their_file_to_fill_are_written_when_the_ingress_ends(tmp_path: Path) -> None:
    bench = Bench(tmp_path, *FLAGS, "triton,log-frequency=3")
    for _ in range(4):
        await bench.infer()
    bench.service.tracing.close(30)
    assert [_heads(tmp_path / f"traces.json.{number}") for number in range(2)] == [3, 1]


@on_loop
async def test_traces_are_written_though_settings_changed_while_their_requests_were_under_way(tmp_path: Path) -> None:
    bench = Bench(tmp_path, *FLAGS, "triton,log-frequency=1000")
    for number in range(3):
        bench.target.hold = True
        await bench.send(infer(model="good"))
        await bench.set({"trace_rate": str(number + 2)})
        await bench.set({"trace_rate": "1"})
        bench.target.fail(Unavailable("gone"))
    wait_until(lambda: sum(_heads(path) for path in tmp_path.glob("traces.json.[0-9]")) == 3, "all to be written")
    bench.service.tracing.close(30)


def _heads(path: Path) -> int:
    return sum("model_name" in each for each in json.loads(path.read_text()))
