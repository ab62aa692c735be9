"""The limits of every gRPC server and channel of the control plane: sizes, streams, keepalive."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 4 << 20
BLOB_CHUNK_BYTES = 1 << 20

_SIZES = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_SIZES,
    ("grpc.max_concurrent_streams", 1000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.so_reuseport", 0),
    ("grpc.max_metadata_size", 16 * 1024),
)
CHANNEL_OPTIONS: tuple[tuple[str, str | int], ...] = (
    *_SIZES,
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
