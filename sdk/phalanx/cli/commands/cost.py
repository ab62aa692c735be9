"""gpuctl cost: what was used and what it costs."""

from __future__ import annotations

import click

from phalanx.cli import text
from phalanx.cli.options import Command, Session
from phalanx.cli.target import full_id
from phalanx.core.views import CostView

COLUMNS = ("SUBJECT", "PHASE", "GPU-S", "CHARGED", "COST")


def cost(session: Session, call: str, group_by: str) -> None:
    """Shows the cost of one call, or of everything by function, user or phase."""
    screen = session.screen()
    client = session.client()
    found = client.costs(call_id=full_id(client, call)) if call else client.costs(group_by=group_by)
    if screen.look.json:
        for line in found:
            screen.emit(line)
        return
    screen.table(COLUMNS, [row for line in found for row in _rows(line)], empty="nothing has been used yet")
    prices = {(line.price_per_gpu_hour, line.currency) for line in found if line.price_per_gpu_hour != "0"}
    for price, currency in sorted(prices):
        screen.note(f"price book: {text.money(price, currency)} per GPU-hour; free phases are shown, not charged")


def _rows(line: CostView) -> list[tuple[str, ...]]:
    rows = [
        (
            line.subject,
            phase.phase,
            f"{phase.gpu_ms / 1000:.1f}",
            "yes" if phase.charged else "no",
            text.money(phase.money, line.currency),
        )
        for phase in line.phases
        if phase.gpu_ms
    ]
    total = (line.subject, "all", f"{line.gpu_ms / 1000:.1f}", "", text.money(line.money, line.currency))
    credit = [(line.subject, "credit", "", "", text.money(f"-{line.credit}", line.currency))] if _some(line) else []
    return [*rows, *credit, total]


def _some(line: CostView) -> bool:
    return line.credit.strip("0.") != ""


command = Command(
    "cost",
    callback=cost,
    help="GPU-seconds and money: of one call, or of everything by function, user or phase.",
    params=[
        click.Argument(["call"], default="", required=False, metavar="[CALL]"),
        click.Option(
            ["--by", "group_by"],
            type=click.Choice(["function", "user", "phase"]),
            default="function",
            show_default=True,
            help="How to group.",
        ),
    ],
    examples=("gpuctl cost c-0d5t…", "gpuctl cost --by user --json"),
)
