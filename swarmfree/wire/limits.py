"""Limits: how much, how long and how often on the wire, and what gRPC is told about it. One
machine's choice; nobody else needs to agree.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from swarmfree.protocol.manifest import Manifest
from swarmfree.protocol.message_bounds import MessageBounds
from swarmfree.protocol.peer_limits import DEFAULT_LIMITS, PeerLimits
from swarmfree.wire.certificate import SERVER_NAME
from swarmfree.wire.frames import CHUNK_BYTES, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN

Option = tuple[str, int | str]
UNREAD_BYTES = 8 << 20
"""What the server takes in of a stream that nobody reads, and of all of a connection in one round
trip: 210 to 250 Mbit/s were measured over 200 ms.
"""
UNCOMPRESSED = 1
"""Of gRPC's algorithms that one alone: eight kilobytes unpack to eight megabytes, before anybody
could look at them.
"""
SMALL = frozenset(
    {
        "Claim",
        "Loss",
        "Pull",
        "Reduce",
        "GetAverage",
        "GetAccount",
        "GetContribution",
        "GetState",
        "GetShadow",
        "GetRecord",
        "GetPlan",
        "GetManifest",
        "Goodbye",
    }
)
TENSORS_OF_A_CALLER = 64
"""Microbatches that one caller may have under way here."""


@dataclass(frozen=True, slots=True)
class WireLimits(PeerLimits):
    """Bounds of one peer's network, besides what other peers may use.

    Args:
        progress_s: while a handler runs, a progress frame goes out this often.
        chunk_bytes: payload bytes per frame sent.
        bounds: what a message of the run can say.
        message_bytes_max: larger protobuf messages and frames are refused.
        channels_max: connections kept; the longest unused goes first.
        keepalive_s: an otherwise quiet connection is pinged this often.
        ping_timeout_s: a ping without answer for so long breaks the connection. gRPC's keepalive
            timeout alone does not see a frozen peer.
        connect_s: a connection must stand after so long, at either end.
        reconnect_s_max: a peer that comes back at its address is found after so long at the latest.
    """

    progress_s: float = 0.5
    chunk_bytes: int = CHUNK_BYTES
    bounds: MessageBounds = field(default_factory=MessageBounds)
    message_bytes_max: int = 8 << 20
    channels_max: int = 256
    keepalive_s: float = 2.0
    ping_timeout_s: float = 1.5
    connect_s: float = 5.0
    reconnect_s_max: float = 1.0

    def __post_init__(self) -> None:
        PeerLimits.__post_init__(self)
        assert CHUNK_BYTES_MIN <= self.chunk_bytes <= CHUNK_BYTES_MAX, "chunks lie between the bounds that every receiver holds"
        assert self.message_bytes_max > CHUNK_BYTES_MAX, "a chunk must fit a message"

    @classmethod
    def of(cls, manifest: Manifest, chosen: PeerLimits = DEFAULT_LIMITS) -> WireLimits:
        """For a peer of one run, whose messages are no larger than it needs, with this machine's
        choices.
        """
        bounds = MessageBounds.of(manifest)
        needed_bytes = max(64 << 20, TENSORS_OF_A_CALLER * bounds.tensor_bytes)
        return cls(
            **asdict(chosen) | {"caller_held_bytes_max": min(chosen.caller_held_bytes_max, needed_bytes)},
            bounds=bounds,
            message_bytes_max=max(CHUNK_BYTES_MAX + bounds.message_bytes, 2 * CHUNK_BYTES_MAX),
        )

    def request_bytes_max(self, rpc_name: str) -> int:
        """How large a request of this RPC may be, without payload."""
        return self.small_bytes_max if rpc_name in SMALL else self.message_bytes_max

    def channel_options(self, server_name: str = SERVER_NAME) -> list[Option]:
        """What a channel is made with: own connections, quick failure, quick return, no silent
        retries; `server_name` is asked for.
        """
        return [
            *self._common_options(),
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", _ms(self.reconnect_s_max)),
            ("grpc.min_reconnect_backoff_ms", _ms(self.connect_s)),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.enable_http_proxy", 0),
            ("grpc.ssl_target_name_override", server_name),
        ]

    def server_options(self) -> list[Option]:
        """What the server is made with: its port is its own, and callers may ping."""
        return [
            *self._common_options(),
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", self.streams_max),
            ("grpc.server_handshake_timeout_ms", _ms(self.connect_s)),
            ("grpc.http2.min_ping_interval_without_data_ms", _ms(self.keepalive_s) // 4),
            ("grpc.http2.max_ping_strikes", 0),
            # Else the window of a stream that nobody reads grows with the link's speed
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", UNREAD_BYTES),
        ]

    def _common_options(self) -> list[Option]:
        return [
            ("grpc.max_send_message_length", self.message_bytes_max),
            ("grpc.max_receive_message_length", self.message_bytes_max),
            ("grpc.max_metadata_size", self.metadata_bytes_max),
            ("grpc.absolute_max_metadata_size", 2 * self.metadata_bytes_max),
            ("grpc.compression_enabled_algorithms_bitset", UNCOMPRESSED),
            ("grpc.keepalive_time_ms", _ms(self.keepalive_s)),
            ("grpc.keepalive_timeout_ms", _ms(self.ping_timeout_s)),
            ("grpc.http2.ping_timeout_ms", _ms(self.ping_timeout_s)),
            ("grpc.keepalive_permit_without_calls", 1),
        ]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
