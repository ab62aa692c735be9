"""Who asks: bearer tokens of people and programs, checked against the durable state on every request.

A token reads ``px_<id>_<secret>``. The state keeps the SHA-256 of the secret, which is random enough to need no slow
hash. Because each check reads the state of this replica, a revocation counts as soon as the replica has folded it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from phalanx.core.errors import AuthError
from phalanx.wire_errors import NotAllowedError
from phalanx_control.service.permissions import Need, allows
from phalanx_control.state.model import Owner, State, Token

_ID_HEX = 12
_SECRET_BYTES = 32
_NOBODY = hashlib.sha256(b"no such token").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A caller: who owns what it makes, and what it may do; for an agent, the node that its certificate names."""

    owner: Owner
    role: str
    node_id: str = ""

    def need(self, need: Need, what: str) -> None:
        """Raises NotAllowedError when the role is not enough for ``what``."""
        if not allows(need, self.role):
            raise NotAllowedError(f"{what} needs the role {need.name.lower()!r}; this token is a {self.role!r}")


_NO_OWNER = Owner(workspace="", user="", token_id="")
NOBODY = Identity(owner=_NO_OWNER, role="")
"""The caller of what needs no token."""


def agent(node_id: str) -> Identity:
    """Returns the identity of the agent whose certificate names this node."""
    return Identity(owner=_NO_OWNER, role="", node_id=node_id)


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token just made. ``text`` is shown once; only ``sha256`` is kept."""

    id: str
    text: str
    sha256: str


def new_token() -> NewToken:
    """Returns a fresh random token."""
    return token_of(secrets.token_hex(_ID_HEX // 2), secrets.token_urlsafe(_SECRET_BYTES))


def token_of(token_id: str, secret: str) -> NewToken:
    """Returns the token of this id and secret."""
    return NewToken(token_id, f"px_{token_id}_{secret}", hash_secret(secret))


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def split_token(text: str) -> tuple[str, str]:
    """Returns id and secret. Raises AuthError on a text that is no token."""
    prefix, _, rest = text.partition("_")
    token_id, _, secret = rest.partition("_")
    if prefix != "px" or not token_id or not secret:
        raise AuthError("the token is not of the form px_<id>_<secret>")
    return token_id, secret


def authenticate(state: State, text: str, now_wall_ms: int) -> Identity:
    """Returns whose token this is. Raises AuthError, with one text for unknown ids and wrong secrets."""
    token_id, secret = split_token(text)
    token = state.tokens.get(token_id)
    matches = hmac.compare_digest(hash_secret(secret), token.sha256 if token else _NOBODY)
    if token is None or not matches:
        raise AuthError("the token is unknown to this cell, or was revoked")
    return identity_of(token, now_wall_ms)


def identity_of(token: Token, now_wall_ms: int) -> Identity:
    """Returns the identity of a token that is known to be held. Raises AuthError once it has expired."""
    if token.expires_wall_ms and token.expires_wall_ms <= now_wall_ms:
        raise AuthError(f"token {token.id} has expired", hint="ask an admin of the workspace for a new one")
    owner = Owner(workspace=token.owner.workspace, user=token.owner.user, token_id=token.id)
    return Identity(owner=owner, role=token.role)


def bearer(header: str | None) -> str:
    """Returns the token in an Authorization header. Raises AuthError when there is none."""
    scheme, _, text = (header or "").strip().partition(" ")
    if scheme.lower() != "bearer" or not text:
        raise AuthError("no token was sent")
    return text.strip()
