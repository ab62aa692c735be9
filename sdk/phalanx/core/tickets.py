"""Data-plane tickets: signed by the control plane, checked by the agent, good for a minute.

A ticket is ``base64(json) . base64(HMAC-SHA256)`` under a key that only the control plane and that one agent hold.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import asdict, dataclass

from phalanx.core.errors import AuthError

LIFETIME_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """``kind``: "call" opens a gang's admission queue, "logs" one call's output, "debug" terminals at its
    ranks, "peer" a gang's other nodes."""

    kind: str
    node_id: str
    gang_id: str = ""
    function_id: str = ""
    call_id: str = ""
    workspace: str = ""
    user: str = ""
    token_id: str = ""
    fingerprint: str = ""
    expires_wall_ms: int = 0


def sign(ticket: Ticket, key: bytes) -> str:
    body = base64.urlsafe_b64encode(json.dumps(asdict(ticket), separators=(",", ":")).encode())
    mac = hmac.new(key, body, hashlib.sha256).digest()
    return body.decode() + "." + base64.urlsafe_b64encode(mac).decode()


def verify(text: str, key: bytes, *, kind: str, now_wall_ms: int) -> Ticket:
    """Returns the ticket, or raises AuthError saying what is wrong with it."""
    body, _, mac = text.partition(".")
    want = base64.urlsafe_b64encode(hmac.new(key, _bytes(body), hashlib.sha256).digest())
    if not key or not hmac.compare_digest(_bytes(mac), want):
        raise AuthError("the ticket's signature is not this cluster's", hint="ask for a new ticket")
    try:
        ticket = Ticket(**json.loads(base64.urlsafe_b64decode(body)))
    except (TypeError, ValueError) as e:
        raise AuthError(f"the ticket does not parse: {e}") from e
    if ticket.kind != kind:
        raise AuthError(f"a ticket of kind {ticket.kind!r} does not open {kind!r}")
    if ticket.expires_wall_ms < now_wall_ms:
        raise AuthError("the ticket has expired", hint="ask for a new ticket")
    return ticket


def _bytes(text: str) -> bytes:
    """A stranger may send any text, lone surrogates included."""
    return text.encode("utf-8", "surrogatepass")
