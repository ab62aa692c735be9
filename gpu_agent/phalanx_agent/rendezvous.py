"""The socket at which a gang's ranks meet: bound by the lead's agent before any rank exists, tried by the others'.

TCPStore, which listens on it later, authenticates nobody: it is bound to the one interface that the node advertises.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

_BACKLOG = 2048
CONNECT_TIMEOUT_S = 5.0


def bind(host: str) -> tuple[socket.socket, str]:
    """Returns a listening socket on any free port of ``host``, and its "host:port". Raises OSError.

    It stays open until rank 0 inherits it, so nobody else can take the port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.bind((host, 0))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    port = sock.getsockname()[1]
    return sock, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """Returns host and port of "host:port". Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"{address!r} is not host:port")
    return host.strip("[]"), int(port)


async def check(address: str) -> None:
    """Connects once and closes. Raises OSError saying what stood in the way."""
    host, port = split(address)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _reader, writer = await asyncio.open_connection(host, port)
    except TimeoutError as e:
        raise OSError(f"the lead's address {address} did not answer within {CONNECT_TIMEOUT_S:g} s") from e
    except OSError as e:
        raise OSError(f"the lead's address {address} cannot be reached: {e}") from e
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
