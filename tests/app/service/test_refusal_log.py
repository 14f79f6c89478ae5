"""What clients were refused is in the log, and cannot fill it."""

import asyncio
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from app.service.refusal_log import RefusalLog
from app.trace.sampler import Sampler, Sampling
from app.trace.traced_target import TracedTarget
from deployments.log.log_options import LogOptions
from deployments.log.process_log import ProcessLog
from protocol.errors import Internal, InvalidArgument, ServingError, Unavailable
from protocol.trace import TIMESTAMPS, Trace
from tests.app.grpc.server import serving
from tests.app.http.wire import EchoTarget, Wire, infer


class Timers:
    """A loop's `call_later`, whose time is up when the test says so."""

    def __init__(self) -> None:
        self._due: list[tuple[Callable[[Any], None], Any]] = []

    def __call__(self, delay_s: float, callback: Callable[[Any], None], argument: Any) -> None:
        assert delay_s == 1.0
        self._due.append((callback, argument))

    def pass_a_second(self) -> None:
        due, self._due = self._due, []
        for callback, argument in due:
            callback(argument)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO)

    def since() -> list[str]:
        found = [f"{each.levelname} {each.getMessage()}" for each in caplog.records if "refusal_log" in each.name]
        caplog.clear()
        return found

    return since


def test_a_kind_has_one_line_a_second_and_what_is_left_out_is_counted(said: Callable[[], list[str]]) -> None:
    timers = Timers()
    log = RefusalLog(timers)
    for number in range(1000):
        log.note("HTTP 404", f"no model {number}", None)
        log.note("HTTP 503", f"full {number}", None, fault=True)
    assert said() == ["INFO HTTP 404 for a local client: no model 0", "WARNING HTTP 503 for a local client: full 0"]
    timers.pass_a_second()
    assert said() == [
        "INFO HTTP 404 999 times more, at last: no model 999",
        "WARNING HTTP 503 999 times more, at last: full 999",
    ]
    log.note("HTTP 404", "one more", None)
    assert said() == []
    timers.pass_a_second()
    assert said() == ["INFO HTTP 404 1 times more, at last: one more"]
    timers.pass_a_second()
    timers.pass_a_second()
    log.note("HTTP 404", "after a while", None)
    assert said() == ["INFO HTTP 404 for a local client: after a while"]


def test_a_line_is_short_and_names_model_and_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    message = "[request id: seven] " + "x" * 100_000
    timers = Timers()
    log = RefusalLog(timers)
    for _ in range(2):
        log.note("HTTP 400", message, None, EchoTarget())
    timers.pass_a_second()
    record, last = caplog.records
    for each in (record, last):
        assert "x" * 480 in each.getMessage() and len(each.getMessage()) < 512 + 50
    assert (vars(record)["model"], vars(record)["version"], vars(record)["request_id"]) == ("echo", 1, "seven")


@pytest.mark.parametrize("form", ["default", "json"])
def test_the_line_of_a_traced_request_names_its_trace(serve_log: Path, form: str) -> None:
    ProcessLog(LogOptions(log_format=form))

    class Sink:
        def on_error(self, error: ServingError) -> None:
            log.note("HTTP 500", error.message, None)

    class Target(EchoTarget):
        def submit(self, parts: Any, json_length: Any, sink: Any, wire: int = 0, trace: Trace | None = None) -> None:
            sink.on_error(Internal("it failed"))

    timers = Timers()
    log = RefusalLog(timers)
    ended: list[Trace] = []
    target = TracedTarget(Target(), Sampler(Sampling(TIMESTAMPS, 1)), lambda trace, _: ended.append(trace))
    for _ in range(3):
        target.submit((), None, Sink())  # type: ignore[arg-type]
    RefusalLog(Timers()).note("HTTP 400", "of another request", None)
    timers.pass_a_second()
    first, other, last = serve_log.read_text().splitlines()
    for line, trace in ((first, ended[0]), (last, ended[2])):
        if form == "json":
            assert trace.log_fields().items() <= json.loads(line).items()
        else:
            assert line.endswith(f'it failed trace_id={trace.trace_id:032x} span_id={trace.id:016x}"')
    assert "trace_id" not in other


def test_what_is_refused_by_http_is_one_escaped_line_of_each_kind(serve_log: Path) -> None:
    ProcessLog(LogOptions())

    async def run() -> None:
        for _ in range(20):
            wire = Wire()
            wire.transport.get_extra_info = lambda name, default=None: ("10.0.0.7", 5)  # type: ignore[method-assign]
            await wire.send(infer(b"{}").replace(b"/echo/", b"/a%0AI1122%1b[2J/"))
            await wire.send(b"GET / HTTP/9.9\r\n\r\n")

    asyncio.run(run())
    lines = [line for line in serve_log.read_text().splitlines() if " refusal_log.py:" in line]
    assert len(lines) == 40  # a connection has a context of its own here
    assert re.search(r'^I\d{4} .*\] "HTTP 404 for 10\.0\.0\.7:5: Request for unknown model: \'[^\n]*I1122', lines[0])
    assert not re.search("[\x00-\x1f\x7f]", "".join(lines))
    assert any("HTTP 400 for 10.0.0.7:5: malformed HTTP request" in line for line in lines)


def test_faults_of_the_server_are_warnings_and_others_information(said: Callable[[], list[str]]) -> None:
    async def run() -> None:
        for error in (Internal("it failed"), Unavailable("not now"), InvalidArgument("what is this")):
            wire = Wire()
            wire.target.hold = True
            await wire.send(infer())
            wire.target.fail(error)

    asyncio.run(run())
    assert [line.partition(" for ")[0] for line in said()] == [
        "WARNING HTTP 500",
        "WARNING HTTP 503",
        "INFO HTTP 400",
    ]


def test_what_is_refused_by_grpc_is_in_the_log(said: Callable[[], list[str]]) -> None:
    with serving() as server, grpc.insecure_channel(server.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for name, request_id in (("identity", "fail"), ("identity", "fail"), ("nothing", "")):
            with pytest.raises(grpc.RpcError):
                stub.ModelInfer(pb.ModelInferRequest(model_name=name, id=request_id), timeout=60)
        with pytest.raises(grpc.RpcError):
            stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="identity"), timeout=60)
    first, second, third = said()
    assert third.startswith("WARNING gRPC UNAVAILABLE for ")
    assert re.fullmatch(r"INFO gRPC INVALID_ARGUMENT for 127\.0\.0\.1:\d+: räksmörgås: 100 % wrong", first)
    assert second.startswith("INFO gRPC NOT_FOUND for ")
