"""Tokens of people and programs, join tokens of agents, login links of the page: made, listed, revoked.

An admin makes tokens for its own workspace. Admins of the operators' workspace also make them for others, and are the
only ones who let machines join: a node runs every workspace's code.
"""

from __future__ import annotations

import secrets
from typing import Protocol

from phalanx.core.clock import Clock
from phalanx.core.errors import InvalidSpecError, NotFoundError
from phalanx.core.spec import check_name
from phalanx.wire_errors import NotAllowedError
from phalanx_control.service.auth import Identity, NewToken, new_token
from phalanx_control.service.caller import caller
from phalanx_control.service.enrol import JOIN_TOKEN_LIFETIME_MS, hash_join_token
from phalanx_control.service.permissions import ROLES
from phalanx_control.service.ports import ControllerPort
from phalanx_control.state.commands import CreateJoinToken, CreateToken, RevokeToken
from phalanx_control.state.model import Owner, Token
from phalanx_proto.v1 import control_pb2

OPERATORS = "default"
"""The workspace whose admins run the cell."""
MAX_LIFETIME_MS = 5 * 365 * 86_400_000


class LoginLinks(Protocol):
    """Makes links that sign their opener in, once."""

    def new_link(self, identity: Identity) -> str: ...


class TokenDesk:
    """Serves the token RPCs for the present caller."""

    def __init__(self, controller: ControllerPort, links: LoginLinks, clock: Clock) -> None:
        self._controller = controller
        self._links = links
        self._clock = clock

    async def create(self, workspace: str, user: str, role: str, lifetime_ms: int) -> NewToken:
        """Returns a new token; its text is not kept anywhere. ``lifetime_ms`` 0 = it does not expire."""
        mine = caller().owner.workspace
        workspace = workspace or mine
        if workspace != mine and not is_operator():
            raise NotAllowedError(f"only admins of {OPERATORS!r} make tokens for other workspaces")
        self._check(workspace, user, role, lifetime_ms)
        token = new_token()
        command = CreateToken(
            token_id=token.id,
            sha256=token.sha256,
            owner=Owner(workspace=workspace, user=user or caller().owner.user),
            role=role,
            expires_wall_ms=self._clock.wall_ms() + lifetime_ms if lifetime_ms else 0,
        )
        await self._controller.execute(command)
        return token

    async def revoke(self, token_id: str) -> None:
        """Ends a token of the caller's workspace; for operators, of any."""
        token = self._controller.state.tokens.get(token_id)
        if token is None or not _sees(token):
            raise NotFoundError(f"no token {token_id[:80]!r}")
        await self._controller.execute(RevokeToken(token_id=token_id, owner=token.owner))

    def infos(self) -> list[control_pb2.TokenInfo]:
        """Returns the tokens that the caller may revoke, oldest first."""
        seen = (token for token in self._controller.state.tokens.values() if _sees(token))
        return [
            control_pb2.TokenInfo(
                token_id=token.id,
                workspace=token.owner.workspace,
                user=token.owner.user,
                role=token.role,
                created_ms=token.created_wall_ms,
                expires_ms=token.expires_wall_ms,
            )
            for token in sorted(seen, key=lambda token: (token.created_wall_ms, token.id))
        ]

    def login_link(self) -> str:
        return self._links.new_link(caller())

    async def create_join_token(self) -> tuple[str, int]:
        """Returns a one-time join token and the wall milliseconds at which it expires."""
        if not is_operator():
            raise NotAllowedError(f"only admins of {OPERATORS!r} let machines join")
        text = f"pxjoin_{secrets.token_urlsafe(32)}"
        expires = self._clock.wall_ms() + JOIN_TOKEN_LIFETIME_MS
        await self._controller.execute(CreateJoinToken(sha256=hash_join_token(text), expires_wall_ms=expires))
        return text, expires

    def _check(self, workspace: str, user: str, role: str, lifetime_ms: int) -> None:
        check_name("workspace", workspace)
        if user:
            check_name("user", user)
        if role not in ROLES:
            raise InvalidSpecError(f"role {role[:40]!r}: use one of {', '.join(map(repr, ROLES))}")
        if not 0 <= lifetime_ms <= MAX_LIFETIME_MS:
            raise InvalidSpecError(f"lifetime of {lifetime_ms} ms: use 0 for none, or up to five years")


def is_operator() -> bool:
    """Says whether the present caller belongs to those who run the cell."""
    return caller().owner.workspace == OPERATORS


def _sees(token: Token) -> bool:
    return is_operator() or token.owner.workspace == caller().owner.workspace
