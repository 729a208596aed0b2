"""Limits: how much, how long and how often on the wire, and what gRPC is told about it. One machine's choice; nobody else needs to agree."""

from __future__ import annotations

from dataclasses import dataclass

from swarmfree.wire.certificate import SERVER_NAME
from swarmfree.wire.frames import CHUNK_BYTES, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN

Option = tuple[str, int | str]


@dataclass(frozen=True, slots=True)
class WireLimits:
    """Bounds of one peer's network.

    Args:
        progress_s: while a handler runs, a progress frame goes out this often.
        drain_s: how long to wait for a caller's first frame, and for it to close its side after it was answered early.
        chunk_bytes: payload bytes per frame sent.
        payload_bytes_max: larger payloads are refused.
        message_bytes_max: larger protobuf messages and frames are refused.
        calls_max: handlers at work at once, also those whose callers are gone; further calls are refused.
        channels_max: connections kept; the longest unused goes first.
        keepalive_s: an otherwise quiet connection is pinged this often.
        ping_timeout_s: a ping without answer for so long breaks the connection. gRPC's keepalive timeout alone does not see a frozen peer.
        connect_s: a connection must stand after so long.
        reconnect_s_max: a peer that comes back at its address is found after so long at the latest.
    """

    progress_s: float = 0.5
    drain_s: float = 10.0
    chunk_bytes: int = CHUNK_BYTES
    payload_bytes_max: int = 1 << 30
    message_bytes_max: int = 8 << 20
    calls_max: int = 4096
    channels_max: int = 256
    keepalive_s: float = 2.0
    ping_timeout_s: float = 1.5
    connect_s: float = 5.0
    reconnect_s_max: float = 1.0

    def __post_init__(self) -> None:
        assert CHUNK_BYTES_MIN <= self.chunk_bytes <= CHUNK_BYTES_MAX, "chunks lie between the bounds that every receiver holds"
        assert self.message_bytes_max > CHUNK_BYTES_MAX, "a chunk must fit a message"

    def channel_options(self) -> list[Option]:
        """What a channel is made with: own connections, quick failure, quick return, no silent retries."""
        return [
            *self._common_options(),
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", _ms(self.reconnect_s_max)),
            ("grpc.min_reconnect_backoff_ms", _ms(self.connect_s)),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.enable_http_proxy", 0),
            ("grpc.ssl_target_name_override", SERVER_NAME),
        ]

    def server_options(self) -> list[Option]:
        """What the server is made with: its port is its own, and callers may ping."""
        return [
            *self._common_options(),
            ("grpc.so_reuseport", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", _ms(self.keepalive_s) // 4),
            ("grpc.http2.max_ping_strikes", 0),
        ]

    def _common_options(self) -> list[Option]:
        return [
            ("grpc.max_send_message_length", self.message_bytes_max),
            ("grpc.max_receive_message_length", self.message_bytes_max),
            ("grpc.keepalive_time_ms", _ms(self.keepalive_s)),
            ("grpc.keepalive_timeout_ms", _ms(self.ping_timeout_s)),
            ("grpc.http2.ping_timeout_ms", _ms(self.ping_timeout_s)),
            ("grpc.keepalive_permit_without_calls", 1),
        ]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
