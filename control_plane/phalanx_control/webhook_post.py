"""One POST to one address. Reads the status and nothing more, and follows no redirect."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from functools import cache

from phalanx_control.webhook_targets import Target

_LINE_BYTES = 8192
_AGENT = "phalanx-webhooks/1"


class BadAnswerError(Exception):
    """What came back is no answer of an HTTP server."""


async def post(target: Target, headers: Mapping[str, str], body: bytes) -> int:
    """Returns the status of the answer. Raises BadAnswerError, or OSError (TLS too)."""
    return await _ask(target, _request(target, headers, body))


@cache
def _trusted() -> ssl.SSLContext:
    return ssl.create_default_context()


async def _ask(target: Target, request: bytes) -> int:
    context = _trusted() if target.tls else None
    reader, writer = await asyncio.open_connection(
        target.address,
        target.port,
        ssl=context,
        server_hostname=target.host if target.tls else None,
        limit=_LINE_BYTES,
    )
    try:
        writer.write(request)
        await writer.drain()
        return _status(await reader.readline())
    except ValueError as e:
        raise BadAnswerError("the answer's first line does not end") from e
    finally:
        writer.transport.abort()


def _request(target: Target, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [
        f"POST {target.path} HTTP/1.1",
        f"Host: {target.host_header}",
        f"User-Agent: {_AGENT}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _status(line: bytes) -> int:
    version, _, rest = line.partition(b" ")
    code = rest[:3]
    if not version.startswith(b"HTTP/1.") or len(code) != 3 or not code.isdigit():
        raise BadAnswerError(
            f"no HTTP answer: {line[:40]!r}" if line else "the connection was closed without an answer"
        )
    return int(code)
