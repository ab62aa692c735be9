"""Tokens of users and of joining agents: made, used, revoked. Only hashes of their secrets come here."""

from __future__ import annotations

import string

from phalanx.core.errors import AuthError, InvalidSpecError, NotFoundError
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.state import events
from phalanx_control.state.commands import CreateJoinToken, CreateToken, RevokeToken, UseJoinToken
from phalanx_control.state.model import Token


def create(draft: Draft, command: CreateToken) -> None:
    """Adds a token. The same one again changes nothing. Raises InvalidSpecError where it makes no sense."""
    _check_hash(command.sha256)
    if not command.token_id or not command.role or not command.owner.workspace:
        raise InvalidSpecError("a token needs an id, a role and a workspace")
    _check_future(draft, command.expires_wall_ms)
    known = draft.state.tokens.get(command.token_id)
    if known is not None:
        if known.sha256 != command.sha256:
            raise InvalidSpecError(f"token id {command.token_id} is taken: make a new one")
        return
    token = Token(
        id=command.token_id,
        sha256=command.sha256,
        owner=command.owner,
        role=command.role,
        created_wall_ms=draft.now.wall_ms,
        expires_wall_ms=command.expires_wall_ms,
    )
    draft.add(events.TokenCreated(token=token))


def revoke(draft: Draft, command: RevokeToken) -> None:
    """Removes a token. Raises NotFoundError when the workspace has none of this id."""
    token = draft.state.tokens.get(command.token_id)
    if token is None or token.owner.workspace != command.owner.workspace:
        raise NotFoundError(f"no token {command.token_id} in workspace {command.owner.workspace}")
    draft.add(events.TokenRevoked(token_id=command.token_id))


def create_join(draft: Draft, command: CreateJoinToken) -> None:
    """Adds a join token: for one use, or without end and limit where it never expires (0)."""
    _check_hash(command.sha256)
    _check_future(draft, command.expires_wall_ms)
    if draft.state.join_tokens.get(command.sha256) != command.expires_wall_ms:
        draft.add(events.JoinTokenCreated(sha256=command.sha256, expires_wall_ms=command.expires_wall_ms))


def use_join(draft: Draft, command: UseJoinToken) -> None:
    """Lets a node enrol. Raises AuthError for a token that is unknown, used or expired."""
    expires = draft.state.join_tokens.get(command.sha256)
    if expires is None or (expires and expires <= draft.now.wall_ms):
        raise AuthError(
            f"the join token of {command.node_id} is unknown, used or expired",
            hint="make a new one with `gpuctl nodes join-token`",
        )
    draft.add(events.JoinTokenUsed(sha256=command.sha256, node_id=command.node_id))


def _check_hash(sha256: str) -> None:
    if len(sha256) != 64 or any(c not in string.hexdigits for c in sha256):
        raise InvalidSpecError("a token is stored as the SHA-256 of its secret, 64 hexadecimal digits")


def _check_future(draft: Draft, expires_wall_ms: int) -> None:
    if expires_wall_ms and expires_wall_ms <= draft.now.wall_ms:
        raise InvalidSpecError("a token's expiry lies in the past: give a later one, or 0 for none")
