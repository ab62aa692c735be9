"""For programs that receive webhooks: whether a request really comes from this cell, and what it says.

call = phalanx.webhooks.verify(request.headers, request.body, secret)    # secret: gpuctl webhook secret
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from typing import Any

from phalanx.core.clock import Clock, SystemClock
from phalanx.core.errors import AuthError
from phalanx.core.webhooks import (
    ID_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    TOLERANCE_S,
    VERSION,
    secret_bytes,
    signature,
)

__all__ = ["WebhookError", "verify"]


class WebhookError(AuthError):
    """The request is not one of this cell's webhooks, or an old one that is sent again. Answer 400 and do nothing."""


def verify(
    headers: Mapping[str, str],
    body: bytes | str,
    secret: str,
    *,
    tolerance_s: int = TOLERANCE_S,
    clock: Clock | None = None,
) -> dict[str, Any]:
    """Returns what the webhook says: id, function, state, attempt, cause, started, ended, charge and map.

    ``body`` is the request's body as it came, byte by byte. The same ``webhook-id`` may come more than once: remember
    it where that matters. Raises WebhookError for what is not signed with ``secret`` or is older, or newer, than
    ``tolerance_s`` seconds, and ValueError for a secret that is none.
    """
    key = secret_bytes(secret)
    data = body.encode() if isinstance(body, str) else bytes(body)
    found = {str(name).lower(): str(value) for name, value in headers.items()}
    missing = [name for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER) if not found.get(name)]
    if missing:
        raise WebhookError(f"no webhook: the request has no {' and no '.join(missing)} header")
    timestamp = _fresh(found[TIMESTAMP_HEADER], tolerance_s, clock or SystemClock())
    expected = signature(key, found[ID_HEADER], timestamp, data).encode()
    given = [each for each in found[SIGNATURE_HEADER].split(" ") if each.startswith(f"{VERSION},")]
    if not given:
        raise WebhookError(f"the request has no {VERSION} signature")
    matches = [hmac.compare_digest(each.encode(), expected) for each in given]
    if not any(matches):
        raise WebhookError(
            "the signature does not match: another secret, or the body is not the one that was sent",
            hint="pass the body as it came, before any parsing, and compare the secret with `gpuctl webhook secret`",
        )
    return json.loads(data)


def _fresh(text: str, tolerance_s: int, clock: Clock) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise WebhookError(f"{TIMESTAMP_HEADER}: {text[:20]!r} is no number of seconds since 1970")
    age_s = clock.wall_ms() // 1000 - int(text)
    if abs(age_s) > tolerance_s:
        when = f"{age_s} s ago" if age_s > 0 else f"in {-age_s} s"
        raise WebhookError(
            f"the webhook was sent {when}: up to {tolerance_s} s are allowed", hint="look at this machine's clock"
        )
    return int(text)
