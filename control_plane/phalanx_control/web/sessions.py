"""Signing in to the page: a link that works once, within five minutes, then a cookie that any replica can check.

The cookie names the API token that asked for the link, and is signed with the cell's secret; it holds no secret of its
own. It dies with that token, after 12 hours without a visit, and after seven days in any case.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from phalanx.core.clock import Clock
from phalanx.core.errors import AuthError
from phalanx_control.certificates import derive
from phalanx_control.service.auth import Identity, identity_of
from phalanx_control.state.model import State

COOKIE = "phalanx_session"
LINK_LIFETIME_MS = 5 * 60_000
IDLE_MS = 12 * 3_600_000
ABSOLUTE_MS = 7 * 86_400_000
REISSUE_AFTER_MS = 3_600_000
MAX_OPEN_LINKS = 1000
_HINT = "run `gpuctl open` for a new link"


@dataclass(frozen=True, slots=True)
class _Session:
    token_id: str
    login_ms: int
    issued_ms: int


class PageSessions:
    """Makes links and cookies, and checks them."""

    def __init__(self, state: Callable[[], State], clock: Clock, cell_secret: bytes, page: str) -> None:
        self._state = state
        self._clock = clock
        self._key = derive(cell_secret, "page", "sessions")
        self._page = page
        self._links: dict[str, tuple[str, int]] = {}

    def new_link(self, identity: Identity) -> str:
        """Returns an address that signs its first opener in as ``identity``."""
        now = self._clock.monotonic_ms()
        self._links = {key: link for key, link in self._links.items() if link[1] > now}
        if len(self._links) >= MAX_OPEN_LINKS:
            raise AuthError(f"{MAX_OPEN_LINKS} login links are open", hint="use one of them, or wait five minutes")
        text = secrets.token_urlsafe(32)
        self._links[_digest(text)] = (identity.owner.token_id, now + LINK_LIFETIME_MS)
        return f"{self._page}/login?token={text}"

    def redeem(self, text: str) -> str:
        """Returns the cookie for a link's token, which works no more after this. Raises AuthError."""
        token_id, expires = self._links.pop(_digest(text), ("", 0))
        if not token_id or expires <= self._clock.monotonic_ms():
            raise AuthError("this link has been used, or is older than five minutes", hint=_HINT)
        now = self._clock.wall_ms()
        session = _Session(token_id, login_ms=now, issued_ms=now)
        self._check(session)
        return self._write(session)

    def identity(self, cookie: str) -> Identity:
        """Returns who is signed in. Raises AuthError when nobody is (any more)."""
        return self._check(self._read(cookie))

    def renewed(self, cookie: str) -> str | None:
        """Returns a fresh cookie for one that is valid and an hour old; None where there is no need."""
        session = self._read(cookie)
        now = self._clock.wall_ms()
        if now - session.issued_ms < REISSUE_AFTER_MS:
            return None
        return self._write(_Session(session.token_id, session.login_ms, now))

    def _check(self, session: _Session) -> Identity:
        now = self._clock.wall_ms()
        if now - session.issued_ms > IDLE_MS or now - session.login_ms > ABSOLUTE_MS:
            raise AuthError("you have been signed out after a while", hint=_HINT)
        token = self._state().tokens.get(session.token_id)
        if token is None:
            raise AuthError("the token that signed you in was revoked", hint=_HINT)
        return identity_of(token, now)

    def _write(self, session: _Session) -> str:
        body = f"{session.token_id}.{session.login_ms}.{session.issued_ms}"
        return f"{body}.{self._mac(body)}"

    def _read(self, cookie: str) -> _Session:
        body, _, mac = cookie.rpartition(".")
        parts = body.split(".")
        if not hmac.compare_digest(mac.encode(), self._mac(body).encode()) or len(parts) != 3:
            raise AuthError("you are not signed in", hint=_HINT)
        return _Session(parts[0], int(parts[1]), int(parts[2]))

    def _mac(self, body: str) -> str:
        mac = hmac.new(self._key, body.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(mac).decode().rstrip("=")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
