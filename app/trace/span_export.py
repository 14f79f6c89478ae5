"""Traces as OpenTelemetry's spans, exported by OTLP over HTTP.

The spans of a request are Triton's: `InferRequest`, below it one with the name of each model, and below that `compute`;
and `receive`, `send`, `lane`, `queue`, `batch`, `compute_input`, `compute_infer` and `compute_output` besides.
"""

import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from app.trace.collector import Item
from app.trace.trace_parent import TraceParent, read_parent
from deployments.lane.trace_frames import wall_ahead_ns
from protocol.trace import Trace, new_id

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

logger = logging.getLogger(__name__)

DEFAULT_URL: Final = "http://localhost:4318/v1/traces"
DEFAULT_SERVICE: Final = "triton-inference-server"
_PROCESSOR: Final = {
    "bsp_max_queue_size": "max_queue_size",
    "bsp_schedule_delay": "schedule_delay_millis",
    "bsp_max_export_batch_size": "max_export_batch_size",
}
_OF_FRONTS: Final = ("HTTP_", "GRPC_", "INFER_")
_FRONT_SPANS: Final = {
    "receive": ("HTTP_RECV_START", "HTTP_RECV_END", "GRPC_WAITREAD_START", "GRPC_WAITREAD_END"),
    "send": ("HTTP_SEND_START", "HTTP_SEND_END", "GRPC_SEND_START", "GRPC_SEND_END"),
}
_OF_BATCHES: Final = ("batch_rows", "batch_requests", "batch_reason")
_OF_MODELS: Final = ("REQUEST_START", "QUEUE_START", "REQUEST_END")


@dataclass(slots=True)
class Span:
    """A span before it is OpenTelemetry's; times are monotonic nanoseconds, and `parent_id` is 0 without a parent."""

    name: str
    id: int
    parent_id: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any] = field(default_factory=dict)
    events: list[tuple[str, int]] = field(default_factory=list)
    error: str | None = None
    links: list[str] = field(default_factory=list)
    """Spans that it belongs together with, as the W3C's `traceparent`."""
    serves: bool = False
    """Whether it stands for the request as its client sees it."""


def spans(trace: Trace) -> Iterator[Span]:
    """Return the spans of a client's request."""
    own = [(name, at_ns) for name, at_ns in trace.timestamps if name.startswith(_OF_FRONTS)]
    if not trace.timestamps:
        return
    times = [at_ns for _, at_ns in trace.timestamps]
    about = {"triton.model_name": trace.model_name, "triton.model_version": trace.version}
    top = Span("InferRequest", new_id(), trace.parent_id, min(times), max(times), about, own, serves=True)
    top.error = trace.attributes.get("error")
    yield top
    for name, marks in _FRONT_SPANS.items():
        at = [at_ns for each, at_ns in own if each in marks]
        if at:
            yield Span(name, new_id(), top.id, min(at), max(at))
    yield from _model_spans(trace, top.id)


def _model_spans(trace: Trace, parent_id: int) -> Iterator[Span]:
    """Return the spans of a model's part in a request, and of what it asks for."""
    marks: dict[str, list[int]] = {}
    for name, at_ns in trace.timestamps:
        marks.setdefault(name, []).append(at_ns)
    if "LANE_SEND" in marks and "LANE_RECEIVE" in marks:
        known = trace.attributes
        lane = {f"eagleray.{name}": known[name] for name in ("replica", "near", "attempts") if name in known}
        yield Span("lane", new_id(), parent_id, marks["LANE_SEND"][0], marks["LANE_RECEIVE"][-1], lane)
    if "REQUEST_START" in marks and "REQUEST_END" in marks:
        events = [(name, at_ns) for name in _OF_MODELS for at_ns in marks.get(name, ())]
        about = {
            "triton.model_name": trace.model_name,
            "triton.model_version": trace.version,
            "triton.trace_id": trace.id,
            "triton.trace_parent_id": trace.parent_id,
        }
        if trace.request_id:
            about["triton.request_id"] = trace.request_id
        if "cache_hit" in trace.attributes:
            about["eagleray.cache_hit"] = True
        start_ns, end_ns = marks["REQUEST_START"][0], marks["REQUEST_END"][-1]
        name = trace.model_name
        yield Span(name, trace.id, parent_id, start_ns, end_ns, about, events, trace.attributes.get("error"))
        yield from _compute_spans(trace, marks)
    for child in trace.children:
        yield from _model_spans(child, trace.id)


def _compute_spans(trace: Trace, marks: Mapping[str, list[int]]) -> Iterator[Span]:
    """Return the spans of each batch that the request has run in: one, but for iterative sequences."""
    names = ("QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
    known = trace.attributes
    batch = {f"eagleray.{name}": known[name] for name in _OF_BATCHES if name in known}
    forming = marks.get("BATCH_START", ())
    for place, (queued, start, input_end, output_start, end) in enumerate(
        zip(*(marks.get(name, ()) for name in names), strict=False)
    ):
        queue = Span("queue", new_id(), trace.id, queued, start)
        yield queue
        if place < len(forming):
            links = [each for each in known.get("batch_of", ()) if each != trace.traceparent()]
            yield Span("batch", new_id(), queue.id, forming[place], start, batch, links=links)
        times = (start, input_end, output_start, end)
        compute = Span("compute", new_id(), trace.id, start, end, batch, list(zip(names[1:], times, strict=True)))
        yield compute
        yield Span("compute_input", new_id(), compute.id, start, input_end)
        yield Span("compute_infer", new_id(), compute.id, input_end, output_start)
        yield Span("compute_output", new_id(), compute.id, output_start, end)


def _linked(link: str) -> TraceParent | None:
    return read_parent(link.encode("utf-8", "replace"))


class ToldExporter:
    """Sends spans, and says in the log when the collector begins to take none, and when it takes some again."""

    def __init__(self, exporter: "SpanExporter", collector: str) -> None:
        self._exporter = exporter
        self._collector = collector
        self._loses = False

    def export(self, batch: "Sequence[ReadableSpan]") -> "SpanExportResult":
        """Send a batch; blocks."""
        result = self._exporter.export(batch)
        loses = result.name != "SUCCESS"
        if loses and not self._loses:
            logger.warning("traces are lost: the collector at %s does not take them", self._collector)
        elif self._loses and not loses:
            logger.info("the collector at %s takes traces again", self._collector)
        self._loses = loses
        return result

    def shutdown(self) -> None:
        """Give up what is being sent."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return whether nothing waits."""
        return bool(self._exporter.force_flush(timeout_millis))


class SpanExport:
    """Hands spans to OpenTelemetry's batch processor, whose queue is bounded; it sends them on a thread of its own.

    Args:
        options: as `--trace-config opentelemetry,<name>=<value>` has them.
        resource: its attributes, besides those of the environment (`OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SERVICE_NAME`).
    """

    def __init__(self, options: Mapping[str, str], resource: Mapping[str, str]) -> None:
        # Nobody else needs what these bring along.
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._api = trace
        self._event = Event
        self._link = trace.Link
        self._span = ReadableSpan
        self._scope = InstrumentationScope("eagleray", version("eagleray"))
        about = {"host.name": socket.gethostname(), "process.pid": os.getpid(), **resource}
        if "service.name" not in OTELResourceDetector().detect().attributes:
            about.setdefault("service.name", DEFAULT_SERVICE)
        self._resource = Resource.create(about)
        numbers = {name: max(1, int(options[option])) for option, name in _PROCESSOR.items() if option in options}
        url = options.get("url", DEFAULT_URL)
        endpoint = url if "://" in url else f"http://{url}"  # as Triton's exporter takes it
        collector = urlsplit(endpoint).netloc.rpartition("@")[2]
        self._processor = BatchSpanProcessor(ToldExporter(OTLPSpanExporter(endpoint=endpoint), collector), **numbers)

    def export(self, items: Sequence[Item]) -> None:
        """Export the spans of some traces."""
        ahead_ns = wall_ahead_ns()
        for trace, _ in items:
            for span in spans(trace):
                self._export(span, trace.trace_id, ahead_ns)

    def finish(self) -> None:
        """Send what is left; blocks, for half a minute where the collector does not answer."""
        self._processor.shutdown()

    def _export(self, span: Span, trace_id: int, ahead_ns: int) -> None:
        api = self._api
        parent = self._context(trace_id, span.parent_id, remote=span.serves) if span.parent_id else None
        status = api.Status(api.StatusCode.ERROR, span.error) if span.error is not None else api.Status()
        self._processor.on_end(
            self._span(
                span.name,
                context=self._context(trace_id, span.id, remote=False),
                parent=parent,
                resource=self._resource,
                attributes=span.attributes,
                links=[self._link(self._context(*each, remote=True)) for each in map(_linked, span.links) if each],
                events=[self._event(name, timestamp=at_ns + ahead_ns) for name, at_ns in span.events],
                kind=api.SpanKind.SERVER if span.serves else api.SpanKind.INTERNAL,
                status=status,
                start_time=span.start_ns + ahead_ns,
                end_time=max(span.start_ns, span.end_ns) + ahead_ns,
                instrumentation_scope=self._scope,
            )
        )

    def _context(self, trace_id: int, span_id: int, *, remote: bool) -> Any:
        sampled = self._api.TraceFlags(self._api.TraceFlags.SAMPLED)
        return self._api.SpanContext(trace_id, span_id, is_remote=remote, trace_flags=sampled)
