"""Settings of the gRPC server."""

from typing import Final

from qlm.gateway.core.connection_limits import ConnectionLimits

TRANSPORT_FACTOR: Final = 4
"""A message of up to this multiple of the accepted size is still read, and refused with our own error."""

KEEPALIVE_MS: Final = 30_000
"""Silence on a connection after which the server pings its client."""

KEEPALIVE_TIMEOUT_MS: Final = 20_000
"""Time for the client's answer, after which the connection is closed."""

PING_STRIKES_MAX: Final = 2
"""Pings that may come too soon; the connection of a client that sends more is closed."""

CONNECTION_AGE_MS: Final = 300_000
"""Age at which a client is asked to reconnect, so that gateways added later get calls too."""

_MS_PER_S: Final = 1000


def server_options(limits: ConnectionLimits, body_bytes_max: int) -> tuple[tuple[str, int], ...]:
    """Return gRPC's channel arguments.

    Args:
        limits: Limits of connections.
        body_bytes_max: Largest request that the gateway accepts.
    """
    return (
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", TRANSPORT_FACTOR * body_bytes_max),
        ("grpc.max_send_message_length", -1),
        # Above the first, gRPC refuses some calls by chance, above the second all.
        ("grpc.max_metadata_size", limits.header_bytes_max),
        ("grpc.absolute_max_metadata_size", limits.header_bytes_max),
        ("grpc.max_concurrent_streams", limits.streams_max),
        ("grpc.max_allowed_incoming_connections", limits.connections_max),
        ("grpc.server_handshake_timeout_ms", _ms(limits.headers_timeout_s)),
        ("grpc.max_connection_idle_ms", _ms(limits.idle_timeout_s)),
        ("grpc.max_connection_age_ms", CONNECTION_AGE_MS),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 3),
        ("grpc.http2.max_ping_strikes", PING_STRIKES_MAX),
    )


def _ms(seconds: float) -> int:
    return max(1, round(seconds * _MS_PER_S))
