"""What HTTP connections may cost; each limit has a test on both sides."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of the wire, before any model is involved."""

    max_body_bytes: int = 64 << 20
    max_total_body_bytes: int = 1 << 30
    max_header_bytes: int = 64 << 10
    max_header_count: int = 100
    max_url_bytes: int = 16 << 10
    max_chunk_count: int = 65_536
    max_connections: int = 4096
    max_decompression_ratio: int = 100
    max_stream_buffer_bytes: int = 16 << 20
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    write_timeout_s: float = 60.0
    idle_timeout_s: float = 620.0
    linger_timeout_s: float = 10.0
