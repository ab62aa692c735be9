"""Accounts as a table: what each holds, and what it may have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from phalanx.core.views import AccountView

if TYPE_CHECKING:
    from phalanx.cli.render import Screen

COLUMNS = ("ACCOUNT", "GPUS", "GUARANTEED", "LIMIT", "WEIGHT", "SHARE NOW", "BEFORE")


def accounts_table(screen: Screen, accounts: Iterable[AccountView]) -> None:
    """Teams and users stand below their workspace."""
    screen.table(COLUMNS, [_row(each) for each in accounts], empty="nobody holds anything")


def _row(each: AccountView) -> tuple[str, ...]:
    *above, name = each.account.split("/")
    return (
        "  " * len(above) + name,
        f"{each.gpus:g}",
        f"{each.guaranteed:g}" if each.guaranteed else "-",
        f"{each.limit:g}" if each.limit else "-",
        f"{each.weight:g}",
        f"{each.share:.1%}",
        f"{each.share_before:.1%}",
    )
