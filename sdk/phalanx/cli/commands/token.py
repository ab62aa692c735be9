"""gpuctl token: API tokens."""

from __future__ import annotations

import click

from phalanx.cli import text
from phalanx.cli.options import Command, Session
from phalanx.core.clock import SystemClock
from phalanx.core.errors import InvalidSpecError, NotFoundError

COLUMNS = ("TOKEN", "WORKSPACE", "USER", "ROLE", "CREATED", "EXPIRES")
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def create(session: Session, user: str, workspace: str, role: str, lifetime: str) -> None:
    """Creates a token and prints it; it is shown this once only."""
    screen = session.screen()
    token, token_id = session.client().create_token(
        user=user, workspace=workspace, role=role, lifetime_ms=lifetime_ms(lifetime)
    )
    if screen.look.json:
        screen.emit({"token_id": token_id, "token": token})
        return
    screen.data(token)
    screen.note(f"token {token_id} is shown this once only; `gpuctl token revoke {token_id}` ends it")


def revoke(session: Session, token_id: str) -> None:
    """Ends a token within five seconds. Raises NotFoundError."""
    screen = session.screen()
    try:
        session.client().revoke_token(token_id)
    except NotFoundError as e:
        raise NotFoundError(str(e), hint="gpuctl token list") from e
    if screen.look.json:
        screen.emit({"revoked": token_id})
    else:
        screen.note(f"revoked {token_id}")


def list_tokens(session: Session) -> None:
    """Lists tokens, never their secrets."""
    screen = session.screen()
    tokens = session.client().list_tokens()
    if screen.look.json:
        for token in tokens:
            screen.emit(token)
        return
    now = SystemClock().wall_ms()
    rows = [
        (
            t.token_id,
            t.workspace,
            t.user,
            t.role,
            text.ago(t.created_ms, now),
            f"in {text.duration(t.expires_ms - now)}" if t.expires_ms else "never",
        )
        for t in tokens
    ]
    screen.table(COLUMNS, rows, empty="no tokens")


def lifetime_ms(words: str) -> int:
    """Reads ``90d``, ``12h``, ``30m`` or ``45s``; empty means that it never expires."""
    if not words:
        return 0
    number, unit = words[:-1], words[-1]
    if unit not in _UNITS_MS or not number.isdigit() or int(number) == 0:
        raise InvalidSpecError(f"lifetime {words!r} is not a time: write 90d, 12h, 30m or 45s")
    return int(number) * _UNITS_MS[unit]


command = click.Group(
    "token",
    help="Create, list and revoke API tokens.",
    commands=[
        Command(
            "create",
            callback=create,
            help="Create a token and print it; it is shown this once only.",
            params=[
                click.Option(["--user"], default="", help="Whose token; by default yours."),
                click.Option(["--workspace"], default="", help="By default yours."),
                click.Option(
                    ["--role"],
                    type=click.Choice(["viewer", "member", "admin"]),
                    default="member",
                    show_default=True,
                    help="What it may do.",
                ),
                click.Option(["--lifetime"], default="", metavar="TIME", help="Such as 90d or 12h; for ever without."),
            ],
            examples=("gpuctl token create --user ana --lifetime 90d", "gpuctl token create --role viewer -q"),
        ),
        Command(
            "revoke",
            callback=revoke,
            help="End a token, everywhere, within five seconds.",
            params=[click.Argument(["token_id"], metavar="TOKEN_ID")],
            examples=("gpuctl token revoke 7f3a…", "gpuctl token revoke 7f3a… --json"),
        ),
        Command(
            "list",
            callback=list_tokens,
            help="List tokens with owner, role and age, never their secrets.",
            examples=("gpuctl token list", "gpuctl token list --json"),
        ),
    ],
)
