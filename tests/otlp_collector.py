"""A collector of OpenTelemetry's spans: takes OTLP over HTTP, in the official messages, and keeps what comes."""

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.serving import wait_until


@dataclass(frozen=True)
class Span:
    """A span as it came; ids are in hexadecimal, times are nanoseconds since 1970."""

    name: str
    trace_id: str
    id: str
    parent_id: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: dict[str, int]
    links: list[tuple[str, str]]
    error: str
    resource: dict[str, Any]


class Collector:
    """Spans by their traces, in the order in which they came, and the names that programs gave which sent them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Span] = []
        self.senders: set[str] = set()

    def of(self, trace_id: str) -> list[Span]:
        return [span for span in self.spans if span.trace_id == trace_id]

    def wait_for(self, count: int, of: Callable[[], list[Span]] | None = None) -> list[Span]:
        """Wait for so many spans, of one trace or of all."""
        find = of or (lambda: list(self.spans))

        def found() -> list[Span]:
            spans = find()
            return spans if len(spans) >= count else []

        return wait_until(found, f"{count} spans")

    def take(self, message: bytes) -> None:
        for group in ExportTraceServiceRequest.FromString(message).resource_spans:
            resource = _values(group.resource.attributes)
            for scope in group.scope_spans:
                assert scope.scope.name == "eagleray"
                self.spans.extend([_read(span, resource) for span in scope.spans])


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def _read(span: Any, resource: dict[str, Any]) -> Span:
    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
    times = (span.start_time_unix_nano, span.end_time_unix_nano)
    events = {event.name: event.time_unix_nano for event in span.events}
    error = span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else ""
    links = [(link.trace_id.hex(), link.span_id.hex()) for link in span.links]
    return Span(span.name, *ids, span.kind, *times, _values(span.attributes), events, links, error, resource)


@contextmanager
def collector() -> Iterator[Collector]:
    """Collect spans at a port of the system's."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            assert (self.path, self.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
            taken.senders.add(str(self.headers["user-agent"]))
            body = self.rfile.read(int(self.headers["content-length"]))
            taken.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    taken = Collector(f"http://127.0.0.1:{server.server_port}/v1/traces")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
