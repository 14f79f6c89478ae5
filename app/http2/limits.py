"""What one HTTP/2 connection may cost; each limit has a test on both sides."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Limits of the wire, before any message is understood.

    What a connection can make the server hold is at most `max_early_streams` × `initial_window_bytes` of small
    or unfinished messages, and `max_buffered_bytes` of large ones: a message that does not fit the initial window is
    given more only once its whole length is reserved, so that large messages wait for each other and never deadlock.
    """

    max_connections: int = 4096
    max_concurrent_streams: int = 256
    """grpc clients queue what is above it; anyone else gets REFUSED_STREAM."""
    max_early_streams: int = 1024
    """The same until a client has acknowledged the SETTINGS that tell it: Envoy sends all that waits at once."""
    initial_window_bytes: int = 1 << 20
    """Receive window of a new stream; not under 65,535."""
    max_frame_bytes: int = 1 << 20
    """Largest frame that a client may send: fewer frames per tensor."""
    max_buffered_bytes: int = 256 << 20
    """Length of all messages, larger than the initial window, that are on their way in at one time."""
    max_queued_bytes: int = 256 << 20
    """Answers that wait for a client's window: with the next one above it, the connection of a client that takes
    nothing ends; that of any other above four times as much."""
    max_header_list_bytes: int = 64 << 10
    """As RFC 9113 §6.5.2 counts; the stream is refused above it, the connection ends at twice as much."""
    max_header_count: int = 256
    """Fields of a header block; the connection ends above it."""
    max_header_block_bytes: int = 128 << 10
    """Compressed headers, HEADERS and CONTINUATION together."""
    max_continuation_count: int = 16
    max_resets_burst: int = 1024
    """Streams that a client may reset at once (all that it can have open) ..."""
    max_resets_per_s: int = 200
    """... and in the long run."""
    max_control_frames_burst: int = 1024
    """SETTINGS, PRIORITY, empty DATA and unknown frames that a client may send at once ..."""
    max_control_frames_per_s: int = 100
    """... and in the long run."""
    preface_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    """Time in which a message, once begun, must arrive; and headers that CONTINUATION shall complete."""
    write_timeout_s: float = 120.0
    """Time in which a client must take something of what waits for it."""
    keepalive_time_s: float = 7200.0
    """Silence after which the server pings (Triton's --grpc-keepalive-time)."""
    keepalive_timeout_s: float = 20.0
    """Time for the answer to that ping (--grpc-keepalive-timeout)."""
    keepalive_permit_without_calls: bool = False
    min_ping_interval_s: float = 300.0
    """Least time between a client's pings without data from the server in between
    (--grpc-http2-min-recv-ping-interval-without-data); 7200 s without calls, unless those are permitted."""
    max_ping_strikes: int = 2
    """Pings that may come too early; 0 permits any number (--grpc-http2-max-ping-strikes)."""
    max_connection_age_s: float = 0.0
    """Age at which a connection is told to go (--grpc-max-connection-age); 0: none."""
    max_connection_age_grace_s: float = 0.0
    """Time that its calls get then; 0: no end."""
