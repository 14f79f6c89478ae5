"""Traces as a collector gets them."""

import asyncio
import logging
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from app.service.trace_settings import TraceSettings
from app.trace.collector import MAX_WAITING
from app.trace.sampler import Sampler, Sampling
from protocol.trace import CONTEXT, TIMESTAMPS, Trace

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from app.trace.span_export import SpanExport, ToldExporter
from tests.app.http.served import Served
from tests.otlp_collector import Collector, Span, collector
from tests.rotel import forwarding, needs_rotel

SAMPLER = Sampler(Sampling(TIMESTAMPS | CONTEXT, 1))
MS = 1_000_000


@pytest.fixture
def collected() -> Iterator[Collector]:
    with collector() as started:
        yield started


def marked(trace: Trace, start_ns: int, *names: str) -> Trace:
    for number, name in enumerate(names):
        trace.mark(name, start_ns + number * MS)
    return trace


MODEL = (
    "REQUEST_START",
    "QUEUE_START",
    "BATCH_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
)
FRONT = ("HTTP_RECV_START", "HTTP_RECV_END", "LANE_SEND", *MODEL, "LANE_RECEIVE", "INFER_RESPONSE_COMPLETE")
SENT = ("HTTP_SEND_START", "HTTP_SEND_END")


def export_to(url: str, *traces: Trace, resource: dict[str, str] | None = None) -> None:
    export = SpanExport({"url": url, "bsp_schedule_delay": "10"}, resource or {})
    export.export([(trace, SAMPLER) for trace in traces])
    export.finish()


def exported(collected: Collector, *traces: Trace, resource: dict[str, str] | None = None) -> dict[str, Span]:
    export_to(collected.url, *traces, resource=resource)
    return {span.name: span for span in collected.spans}


def test_an_address_without_a_scheme_is_one_of_http(collected: Collector) -> None:
    trace = Trace(TIMESTAMPS | CONTEXT, 0xABC, 0xDEF, 0x123, "m", 3)
    marked(trace, time.monotonic_ns(), *FRONT, *SENT)
    export_to(collected.url.removeprefix("http://"), trace)
    assert {"InferRequest", "m"} <= {span.name for span in collected.spans}


def test_the_spans_are_tritons_and_more(collected: Collector) -> None:
    trace = Trace(TIMESTAMPS | CONTEXT, 0xABC, 0xDEF, 0x123, "m", 3, "r7")
    other = "00-" + "b" * 32 + "-" + "c" * 16 + "-01"
    trace.attributes |= {"batch_of": [trace.traceparent(), other]}
    trace.attributes |= {"batch_rows": 4, "batch_reason": "full", "replica": "m#1", "near": True}
    began_ns = time.time_ns()
    marked(trace, time.monotonic_ns(), *FRONT, *SENT)
    spans = exported(collected, trace)
    top, model, compute = spans["InferRequest"], spans["m"], spans["compute"]
    parents = {name: span.parent_id for name, span in spans.items()}
    assert parents == {
        "InferRequest": f"{0x123:016x}",
        "receive": top.id,
        "send": top.id,
        "lane": top.id,
        "m": top.id,
        "queue": model.id,
        "batch": spans["queue"].id,
        "compute": model.id,
        "compute_input": compute.id,
        "compute_infer": compute.id,
        "compute_output": compute.id,
    }
    assert {span.trace_id for span in spans.values()} == {f"{0xABC:032x}"}
    assert model.id == f"{0xDEF:016x}"
    assert (top.kind, model.kind) == (2, 1), "server, internal"
    assert model.attributes == {
        "triton.model_name": "m",
        "triton.model_version": 3,
        "triton.request_id": "r7",
        "triton.trace_id": 0xDEF,
        "triton.trace_parent_id": 0x123,
    }
    assert compute.attributes == {"eagleray.batch_rows": 4, "eagleray.batch_reason": "full"}
    assert spans["batch"].attributes == compute.attributes
    assert {name: span.links for name, span in spans.items() if span.links} == {"batch": [("b" * 32, "c" * 16)]}
    assert spans["lane"].attributes == {"eagleray.replica": "m#1", "eagleray.near": True}
    assert list(model.events) == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert list(compute.events) == ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
    assert abs(top.start_ns - began_ns) < 10_000 * MS, "wall time"
    lengths = {name: (span.end_ns - span.start_ns) // MS for name, span in spans.items()}
    assert lengths == {
        "InferRequest": 14,
        "receive": 1,
        "send": 1,
        "lane": 9,
        "m": 7,
        "queue": 2,
        "batch": 1,
        "compute": 3,
        "compute_input": 1,
        "compute_infer": 1,
        "compute_output": 1,
    }
    for name, span in spans.items():
        assert span.start_ns >= top.start_ns and span.end_ns <= top.end_ns, name


@needs_rotel
def test_a_real_collector_sends_on_what_it_got(collected: Collector, tmp_path: Path) -> None:
    other = "00-" + "b" * 32 + "-" + "c" * 16 + "-01"
    trace = marked(Trace(TIMESTAMPS | CONTEXT, 0xABC, 0xDEF, 0x123, "m", 3, "r7"), time.monotonic_ns(), *FRONT, *SENT)
    trace.attributes |= {"batch_of": [trace.traceparent(), other], "batch_rows": 4, "error": "brök\nen"}
    exported(collected, trace)
    sent, collected.spans, collected.senders = collected.spans, [], set()
    with forwarding(tmp_path / "rotel", collected) as url:
        export_to(url, trace)
        got = collected.wait_for(len(sent))
    assert len(sent) == 11 and [anonymous(span) for span in got] == [anonymous(span) for span in sent]
    assert {sender.split()[0] for sender in collected.senders} == {"Rotel"}


def anonymous(span: Span) -> dict[str, Any]:
    """Return what is the same when a trace is exported twice."""
    about = asdict(span)
    length_ns = about.pop("end_ns") - about.pop("start_ns")
    for name in ("id", "parent_id", "events"):
        about.pop(name)
    about["resource"].pop("service.instance.id", None)
    return about | {"length_ns": length_ns, "events": list(span.events)}


def test_steps_are_below_their_ensemble(collected: Collector) -> None:
    trace = marked(Trace(TIMESTAMPS | CONTEXT, 1, 2, 0, "e", 1), 1_000 * MS, "HTTP_RECV_START", "REQUEST_START")
    for name in ("first", "second"):
        marked(trace.child(name, 1), 1_002 * MS, *MODEL)
    marked(trace, 1_010 * MS, "REQUEST_END")
    exported(collected, trace)
    (ensemble,) = [span for span in collected.spans if span.name == "e"]
    assert [span.parent_id for span in collected.spans if span.name in ("first", "second")] == [ensemble.id] * 2
    assert [span.name for span in collected.spans].count("compute") == 2


def test_a_model_without_a_batcher_has_no_batch(collected: Collector) -> None:
    marks = [name for name in MODEL if name != "BATCH_START"]
    spans = exported(collected, marked(Trace(TIMESTAMPS | CONTEXT, 1, 2, 0, "m", 1), 0, *marks))
    assert spans.keys() == {
        "InferRequest",
        "m",
        "queue",
        "compute",
        "compute_input",
        "compute_infer",
        "compute_output",
    }


def test_a_failed_request_says_why(collected: Collector) -> None:
    trace = marked(Trace(TIMESTAMPS | CONTEXT, 1, 2, 0, "m", 1), 0, "HTTP_RECV_START", "REQUEST_START", "REQUEST_END")
    trace.attributes["error"] = "broken"
    spans = exported(collected, trace)
    assert spans["InferRequest"].error == spans["m"].error == "broken"
    unsent = marked(Trace(TIMESTAMPS | CONTEXT, 3, 4, 0, "m", 1), 0, "GRPC_WAITREAD_START", "GRPC_WAITREAD_END")
    unsent.attributes["error"] = "no replica"
    exported(collected, unsent)
    assert {span.name for span in collected.of(f"{3:032x}")} == {"InferRequest", "receive"}


def test_an_answer_of_the_cache_has_not_run(collected: Collector) -> None:
    trace = marked(Trace(TIMESTAMPS | CONTEXT, 1, 2, 0, "m", 1), 0, "REQUEST_START", "QUEUE_START", "REQUEST_END")
    trace.attributes["cache_hit"] = True
    spans = exported(collected, trace)
    assert spans.keys() == {"InferRequest", "m"}
    assert spans["m"].attributes["eagleray.cache_hit"] is True


def test_the_resource_is_as_given(collected: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,service.version=1")
    trace = marked(Trace(TIMESTAMPS | CONTEXT, 1, 2, 0, "m", 1), 0, "HTTP_RECV_START")
    given = exported(collected, trace, resource={"service.version": "2"})["InferRequest"].resource
    expected = {"deployment.environment": "test", "service.version": "2", "service.name": "triton-inference-server"}
    assert given.items() >= expected.items()


@pytest.mark.parametrize(
    ("variables", "given", "name"),
    [
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=vision"}, {}, "vision"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=vision", "OTEL_SERVICE_NAME": "sound"}, {}, "sound"),
        ({"OTEL_SERVICE_NAME": "sound"}, {"service.name": "text"}, "text"),
        ({"OTEL_SERVICE_NAME": ""}, {}, "triton-inference-server"),
    ],
)
def test_the_service_has_the_name_that_the_user_gives_it(
    variables: dict[str, str],
    given: dict[str, str],
    name: str,
    collected: Collector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    trace = marked(Trace(TIMESTAMPS | CONTEXT, 1, 2, 0, "m", 1), 0, "HTTP_RECV_START")
    assert exported(collected, trace, resource=given)["InferRequest"].resource["service.name"] == name


class Bench(Served):
    """An ingress whose traces go to a collector."""

    def __init__(self, collected: Collector, *flags: str) -> None:
        self.collected = collected
        given = ["mode=opentelemetry", f"opentelemetry,url={collected.url}", "level=TIMESTAMPS", *flags]
        super().__init__(trace=TraceSettings(given))
        self.context.reads_parents = self.service.tracing.reads_parents

    async def infer(self, **headers: str) -> Any:
        answer = await self.request("POST", "/v2/models/good/infer", b"{}", **headers)
        assert answer.status == 200
        return answer

    def tops(self) -> list[Span]:
        self.service.tracing.close(30)
        return [span for span in self.collected.spans if span.name == "InferRequest"]


def parent(number: int, flags: str = "01") -> str:
    return f"00-{number:032x}-{number + 1:016x}-{flags}"


def test_a_sampled_parent_is_always_traced(collected: Collector) -> None:
    async def run() -> Bench:
        bench = Bench(collected, "rate=0")
        for number in (10, 20, 20):
            await bench.infer(traceparent=parent(number))
        await bench.infer()
        await bench.infer(traceparent=parent(30, "00"))
        await bench.infer(traceparent="junk")
        return bench

    tops = asyncio.run(run()).tops()
    assert [(int(top.trace_id, 16), int(top.parent_id, 16)) for top in tops] == [(10, 11), (20, 21), (20, 21)]


def test_without_one_the_rate_decides(collected: Collector) -> None:
    async def run() -> Bench:
        bench = Bench(collected, "rate=2")
        for _ in range(4):
            await bench.infer()
        for _ in range(2):
            await bench.infer(traceparent=parent(40, "00"))
        return bench

    tops = asyncio.run(run()).tops()
    assert len(tops) == 3
    assert len({top.trace_id for top in tops}) == 3 and {top.parent_id for top in tops} == {""}


def test_a_model_that_is_off_is_not_traced_for_anybody(collected: Collector) -> None:
    async def run() -> Bench:
        bench = Bench(collected)
        await bench.service.settings.update_trace({"trace_level": ["OFF"]}, "good")
        bench.context.routes_changed()
        await bench.infer(traceparent=parent(50))
        return bench

    assert asyncio.run(run()).tops() == []


def test_a_collector_that_does_not_answer_holds_up_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()

        async def run() -> Bench:
            bench = Bench(
                Collector(f"http://127.0.0.1:{silent.getsockname()[1]}"), "opentelemetry,bsp_schedule_delay=1"
            )
            began_s = time.thread_time()
            for _ in range(2 * MAX_WAITING):  # more than wait anywhere
                await bench.infer(traceparent=parent(60))
            assert time.thread_time() - began_s < 30
            # It is the loop's thread that this would have kept.
            await asyncio.to_thread(bench.service.tracing.close, 0.1)
            return bench

        bench = asyncio.run(run())
    # Its thread draws random numbers between tries, which disturbs the strategies of other tests.
    bench.service.tracing.close(60)


def test_the_log_says_once_that_the_collector_takes_nothing_and_once_that_it_does_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    caplog.set_level(logging.INFO, "app.trace.span_export")
    with socket.socket() as taken:  # and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        export = SpanExport({"url": f"http://user:secret@{address}/v1/traces", "bsp_max_export_batch_size": "1"}, {})
        trace = marked(Trace(TIMESTAMPS | CONTEXT, 1, 2, 0, "m", 1), time.monotonic_ns(), *FRONT, *SENT)
        export.export([(trace, SAMPLER)])
        export.finish()
    told = [record.getMessage() for record in caplog.records if record.name == "app.trace.span_export"]
    assert told == [f"traces are lost: the collector at {address} does not take them"]
    caplog.clear()

    results = [SpanExportResult[name] for name in ("SUCCESS", "FAILURE", "FAILURE", "SUCCESS", "SUCCESS")]

    class Collecting(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return results.pop(0)

    exporter = ToldExporter(Collecting(), "there")
    while results:
        exporter.export([])
    told = [record.getMessage() for record in caplog.records if record.name == "app.trace.span_export"]
    assert told == [
        "traces are lost: the collector at there does not take them",
        "the collector at there takes traces again",
    ]


def test_heads_that_differ_in_their_parent_are_not_read_anew(collected: Collector) -> None:
    async def run() -> None:
        bench = Bench(collected)
        for number in range(1, 20):
            await bench.infer(traceparent=parent(number))
        heads = list(bench.context.heads.by_bytes.values())
        assert len(heads) == 19 and len({id(head.headers) for head in heads}) == 1, "copies of one"
        bench.service.tracing.close(30)

    asyncio.run(run())
