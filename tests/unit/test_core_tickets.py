"""Tickets: only what was signed with the right key, for this purpose, within its minute, is let in."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import AuthError
from phalanx.core.tickets import LIFETIME_MS, Ticket, sign, verify

KEY = b"k" * 32
NOW = 1_700_000_000_000
TICKET = Ticket(kind="call", node_id="n1", gang_id="g-1", workspace="w", user="ana", expires_wall_ms=NOW + LIFETIME_MS)
texts = st.text(max_size=20)


@given(texts, texts, texts, st.integers(NOW, NOW + LIFETIME_MS))
def test_a_signed_ticket_reads_back(gang: str, user: str, fingerprint: str, expires: int) -> None:
    ticket = replace(TICKET, gang_id=gang, user=user, fingerprint=fingerprint, expires_wall_ms=expires)
    assert verify(sign(ticket, KEY), KEY, kind="call", now_wall_ms=NOW) == ticket


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_one_changed_byte_is_refused(at: int, change: int) -> None:
    text = bytearray(sign(TICKET, KEY).encode())
    text[at % len(text)] ^= change
    with pytest.raises(AuthError):
        verify(text.decode("latin-1"), KEY, kind="call", now_wall_ms=NOW)


@given(st.text(st.characters(), max_size=200))
def test_any_text_is_refused_with_auth_error(text: str) -> None:
    with pytest.raises(AuthError):
        verify(text, KEY, kind="call", now_wall_ms=NOW)


@pytest.mark.parametrize(
    ("kind", "key", "now", "words"),
    [
        ("logs", KEY, NOW, "does not open 'logs'"),
        ("call", b"x" * 32, NOW, "not this cluster's"),
        ("call", b"", NOW, "not this cluster's"),
        ("call", KEY, NOW + LIFETIME_MS + 1, "expired"),
    ],
)
def test_a_ticket_is_refused_with_the_reason(kind: str, key: bytes, now: int, words: str) -> None:
    with pytest.raises(AuthError, match=words):
        verify(sign(TICKET, KEY), key, kind=kind, now_wall_ms=now)


def test_a_ticket_signed_with_no_key_opens_nothing() -> None:
    with pytest.raises(AuthError, match="not this cluster's"):
        verify(sign(TICKET, b""), b"", kind="call", now_wall_ms=NOW)
