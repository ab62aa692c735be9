"""The first tokens of a cell: an admin's and one for the agents of this machine, for whoever may read two files.

Replicas of one data directory write the same texts, because they derive them from the cell's secret, so it does not
matter which of them leads first. The log learns of them at each take-over; an admin token that was revoked stays so
while there is another admin.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from phalanx_control.certificates import derive, keep_secret
from phalanx_control.service.auth import NewToken, split_token, token_of
from phalanx_control.service.enrol import hash_join_token
from phalanx_control.service.ports import ControllerPort
from phalanx_control.service.tokens import OPERATORS
from phalanx_control.state.commands import CreateJoinToken, CreateToken
from phalanx_control.state.model import Owner, State

ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """What the two files hold; None and "" where no file was asked for."""

    admin: NewToken | None
    join: str

    def known_to(self, state: State) -> bool:
        """True when the log has them, or has others that serve instead."""
        admin = self.admin is None or _has_operator(state)
        return admin and (not self.join or hash_join_token(self.join) in state.join_tokens)

    async def ensure(self, controller: ControllerPort) -> None:
        """Tells the log of them, where it does not know; only the leader can."""
        if self.admin is not None and not _has_operator(controller.state):
            owner = Owner(workspace=OPERATORS, user=ADMIN)
            await controller.execute(
                CreateToken(token_id=self.admin.id, sha256=self.admin.sha256, owner=owner, role=ADMIN)
            )
        if self.join and hash_join_token(self.join) not in controller.state.join_tokens:
            await controller.execute(CreateJoinToken(sha256=hash_join_token(self.join), expires_wall_ms=0))


def load_first_tokens(secret: bytes, admin_file: Path | None, join_file: Path | None) -> FirstTokens:
    """Reads the files, written now where they are absent. Raises AuthError when the first holds no token."""
    admin = token_of(*split_token(_kept(admin_file, _admin_text(secret)))) if admin_file else None
    return FirstTokens(admin, _kept(join_file, _join_text(secret)) if join_file else "")


def _kept(path: Path, text: str) -> str:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return keep_secret(path, text.encode).decode().strip()


def _admin_text(secret: bytes) -> str:
    token_id = derive(secret, "bootstrap", "id").hex()[:12]
    return token_of(token_id, _text(derive(secret, "bootstrap", "secret"))).text


def _join_text(secret: bytes) -> str:
    return f"pxjoin_{_text(derive(secret, 'bootstrap', 'join'))}"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _has_operator(state: State) -> bool:
    return any(token.role == ADMIN and token.owner.workspace == OPERATORS for token in state.tokens.values())
