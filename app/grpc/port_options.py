"""The options of the gRPC port that the settings stand for, in the listener's units."""

from app.edge.access import Access
from app.edge.header_forwarding import HeaderForwarding
from app.edge.restricted_api import RestrictedApis
from app.grpc.options import GrpcOptions
from app.http2.limits import Http2Limits
from app.settings import Settings

_MS_PER_S = 1000


def port_options(settings: Settings, access: Access | None = None, *, reads_parents: bool = False) -> GrpcOptions:
    """Return the options of the port; `reads_parents` says that clients' `traceparent` counts."""
    http2 = Http2Limits(
        max_connections=settings.max_connections,
        keepalive_time_s=settings.grpc_keepalive_time / _MS_PER_S,
        keepalive_timeout_s=settings.grpc_keepalive_timeout / _MS_PER_S,
        keepalive_permit_without_calls=settings.grpc_keepalive_permit_without_calls,
        min_ping_interval_s=settings.grpc_http2_min_recv_ping_interval_without_data / _MS_PER_S,
        max_ping_strikes=settings.grpc_http2_max_ping_strikes,
        max_connection_age_s=settings.grpc_max_connection_age / _MS_PER_S,
        max_connection_age_grace_s=settings.grpc_max_connection_age_grace / _MS_PER_S,
    )
    return GrpcOptions(
        http2=http2,
        max_message_bytes=settings.grpc_max_message_size,
        max_total_message_bytes=settings.grpc_max_total_message_bytes,
        max_decompression_ratio=settings.grpc_max_decompression_ratio,
        infer_response_compression_level=settings.grpc_infer_response_compression_level,
        access=access or Access(),
        forwarding=HeaderForwarding(settings.grpc_header_forward_pattern),
        restricted=RestrictedApis.of_grpc(settings.grpc_restricted_protocol),
        reads_parents=reads_parents,
    )
