"""Runs every part over one history, in order, and compares the fold with the product's state where it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.history_checker.calls import Calls
from tests.support.history_checker.gangs import Gangs
from tests.support.history_checker.leadership import Leadership
from tests.support.history_checker.ledger import Ledger
from tests.support.history_checker.marks import Marks
from tests.support.history_checker.records import Batch, Findings, Marker, Violation, read_history, read_markers


def check(
    history: Path, markers: Path | None = None, *, state: dict[str, Any] | None = None, still_open: bool = False
) -> list[Violation]:
    """Reads the files and returns what is broken. Raises OSError or ValueError when they cannot be read."""
    return check_batches(
        read_history(history), read_markers(markers) if markers else None, state=state, still_open=still_open
    )


def check_batches(
    batches: list[Batch],
    markers: list[Marker] | None = None,
    *,
    state: dict[str, Any] | None = None,
    still_open: bool = False,
) -> list[Violation]:
    """Returns every violation, in the order in which it was met. ``still_open``: live calls and leases are no fault."""
    findings = Findings()
    leadership, calls, gangs = Leadership(findings), Calls(findings), Gangs(findings)
    ledger = Ledger(findings, gangs)
    for batch in batches:
        leadership.see_batch(batch)
        for event in batch.events:
            for part in (leadership, calls, gangs, ledger):
                part.see(batch, event)
    calls.end(still_open=still_open)
    gangs.end(still_open=still_open)
    ledger.end()
    if markers is not None:
        Marks(findings, calls, gangs).check(markers)
    if state is not None:
        _compare(findings, calls, gangs, ledger, state)
    return findings.found


def _compare(findings: Findings, calls: Calls, gangs: Gangs, ledger: Ledger, state: dict[str, Any]) -> None:
    """I22: the product's own state says the same as this fold, as far as both know the thing."""
    held = state.get("calls", {})
    for call in calls.facts.values():
        known = held.get(call.id)
        if known is None and not call.archived:
            findings.add("I22", None, f"{call.id} is {call.state} by the history, and not in the state")
        elif known is not None and known.get("state", "queued") != call.state:
            findings.add("I22", None, f"{call.id} is {call.state} by the history, {known.get('state')} in the state")
    findings.found += [
        Violation("I22", 0, f"{i} is in the state and not in the history") for i in held if i not in calls.facts
    ]
    live = {gang.id for gang in gangs.facts.values() if gang.released is None}
    in_state = {i for i, gang in state.get("gangs", {}).items() if gang.get("state") not in ("released", "lost")}
    for gang_id in sorted(live ^ in_state):
        where = "history" if gang_id in live else "state"
        findings.add("I22", None, f"{gang_id} holds a lease by the {where} alone")
    for name, line in state.get("ledger", {}).items():
        mine = ledger.lines.get(name)
        if mine is None or mine.counters != line.get("counters", {}):
            findings.add("I22", None, f"the ledger line {name} differs from the fold of its events")
