"""What an operator can set of gRPC; each limit has a test on both sides."""

from dataclasses import dataclass, field
from typing import Literal

from app.edge.access import Access
from app.edge.header_forwarding import HeaderForwarding
from app.edge.restricted_api import RestrictedApis
from app.http2.limits import Http2Limits


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """Limits and choices of one port."""

    http2: Http2Limits = field(default_factory=Http2Limits)
    max_message_bytes: int = 64 << 20
    """Largest request message, before and after decompression; 2 GiB - 1 at most, as in Triton."""
    max_total_message_bytes: int = 1 << 30
    """Of requests that have come in part, on all connections together; at least `max_message_bytes`."""
    max_management_message_bytes: int = 1 << 18
    """The same of methods other than inference, which are parsed in the loop."""
    max_decompression_ratio: int = 100
    """How many times larger than its compressed form a message may be, beyond 1 MiB."""
    min_message_bytes_per_s: int = 1 << 20
    """A message gets its length by this rate on top of `http2.body_timeout_s` to arrive."""
    max_stream_inflight_count: int = 1024
    """Requests of one ModelStreamInfer that are under way, or whose answers wait for an earlier one; a client is read
    no further above it."""
    max_stream_inflight_bytes: int = 64 << 20
    """The same, in bytes."""
    max_stream_queued_bytes: int = 64 << 20
    """Responses of one stream that wait for its client: with the next one above it, the stream of a client that takes
    nothing ends with RESOURCE_EXHAUSTED; that of any other above four times as much."""
    max_status_message_bytes: int = 900
    """Of a status message as it travels, percent-encoded; longer ones are cut."""
    infer_response_compression_level: Literal["none", "low", "medium", "high"] = "none"
    access: Access = field(default_factory=Access)
    """The API keys, and whether methods that manage are served."""
    restricted: RestrictedApis = field(default_factory=RestrictedApis)
    """The metadata that categories of methods ask for."""
    forwarding: HeaderForwarding = field(default_factory=lambda: HeaderForwarding(""))
    """The metadata that inference requests get as parameters."""
    reads_parents: bool = False
    """Whether inference requests are traced as part of what their clients have begun (`traceparent`)."""
    reflection: bool = True
