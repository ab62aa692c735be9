"""Signed webhooks as the Standard Webhooks specification has them: what is signed and how, and legal addresses. Pure.

The signature is the base64 of HMAC-SHA256 over ``<webhook-id>.<webhook-timestamp>.<body>`` with the secret's bytes,
written ``v1,<base64>``; several stand side by side, separated by spaces, while a secret is being replaced. A secret is
written ``whsec_`` and the base64 of its bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from urllib.parse import urlsplit

from phalanx.core.errors import InvalidSpecError

SECRET_PREFIX = "whsec_"  # noqa: S105
VERSION = "v1"
TOLERANCE_S = 300
MAX_URL_CHARS = 2048
PORTS = {"http": 80, "https": 443}
ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER = "webhook-id", "webhook-timestamp", "webhook-signature"


def secret_text(secret: bytes) -> str:
    """Returns a secret as people keep it."""
    return SECRET_PREFIX + base64.b64encode(secret).decode()


def secret_bytes(text: str) -> bytes:
    """Reads what `secret_text` wrote, with or without the prefix. Raises ValueError on anything else."""
    try:
        secret = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as e:
        raise ValueError(f"a webhook secret is {SECRET_PREFIX} and base64: {e}") from e
    if not secret:
        raise ValueError("the webhook secret is empty")
    return secret


def signature(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Returns ``v1,<base64>``. ``timestamp``: seconds since 1970."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return f"{VERSION}," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()


def receiver_of(url: str) -> str:
    """Returns who is told at ``url``, as ``host:port``: the same however its name is written. Never raises."""
    try:
        parts = urlsplit(url)
        return receiver(parts.hostname or "", parts.port or PORTS.get(parts.scheme, 0))
    except ValueError:
        return url


def receiver(host: str, port: int) -> str:
    """Returns ``host:port``. A name and the same name with the dot of the root are one receiver."""
    return f"{host.lower().removesuffix('.')}:{port}"


def check_url(url: str) -> None:
    """Raises InvalidSpecError for what is no URL that a webhook may go to."""
    shown = f"webhook={url!r:.120}"
    if len(url) > MAX_URL_CHARS or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidSpecError(f"{shown}: give a URL of up to {MAX_URL_CHARS} ASCII characters without spaces")
    try:
        parts = urlsplit(url)
        host, port, scheme = parts.hostname, parts.port, parts.scheme
    except ValueError as e:
        raise InvalidSpecError(f"{shown}: {e}") from e
    if scheme not in ("http", "https") or not host or port == 0:
        raise InvalidSpecError(f"{shown}: give an address such as 'https://example.com/hooks/phalanx'")
    if parts.username is not None or parts.password is not None:
        raise InvalidSpecError(
            f"webhook={scheme}://…@{host}: no user and password in the address, which everybody sees who sees the call",
            hint="receivers know a call's end by its signature: phalanx.webhooks.verify",
        )
    if parts.fragment:
        raise InvalidSpecError(f"{shown}: leave out what follows '#': no server is told of it")
