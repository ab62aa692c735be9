"""What leaves the state for the archive, and when: ended calls, closed lines of the ledger, months that are over.

Only what is in durable files already may leave: whoever asks has written them. Files may hold more than has left (a
leader that ended between the two), never less.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

from phalanx_control.lifecycle.draft import Draft
from phalanx_control.state import events, ordered
from phalanx_control.state.commands import ArchiveCalls, DropLedgerMonth, FileLines
from phalanx_control.state.model import LedgerLine, State

KEEP_CALLS = 2_000
KEEP_CALLS_AT_MOST = 20_000
KEEP_MS = 3_600_000
"""Of ended calls and of closed lines alike."""
AT_ONCE = 500
FILING_SCHEMA = 2


def calls_to_archive(state: State, log_ms: int) -> tuple[str, ...]:
    """Returns the oldest ended calls that may go: all but the newest 2,000, those within the last hour staying up to
    20,000. At most 500.
    """
    held = ordered.size(state.ended_line)
    limit = min(held - KEEP_CALLS, AT_ONCE)
    if limit <= 0:
        return ()
    surplus = held - KEEP_CALLS_AT_MOST
    return tuple(
        call_id
        for place, (ended_ms, call_id) in enumerate(islice(ordered.in_order(state.ended_line), limit))
        if place < surplus or log_ms - ended_ms > KEEP_MS
    )


def lines_to_file(state: State, wall_ms: int) -> tuple[str, ...]:
    """Returns the keys of closed lines of one month that may go: nothing in the state speaks of them any more, and
    their leases ended more than an hour ago. At most 500, the oldest first.
    """
    over = [(line.closed_wall_ms, key) for key, line in state.ledger.items() if _is_over(state, line, wall_ms)]
    if not over:
        return ()
    held = {gang for call in state.calls.values() for gang in (*call.made_gangs, call.gang_id)}
    free = sorted(each for each in over if state.ledger[each[1]].gang_id not in held)
    months = [month_of(ms) for ms, _ in free]
    return tuple(key for (_, key), month in zip(free, months, strict=True) if month == months[0])[:AT_ONCE]


def month_of(wall_ms: int) -> str:
    """Returns ``"2025-11"``, UTC."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m")


def _is_over(state: State, line: LedgerLine, wall_ms: int) -> bool:
    """A gang that was written off may still speak while the state holds it."""
    closed = line.closed_wall_ms
    return bool(closed) and wall_ms - closed > KEEP_MS and line.gang_id not in state.gangs


def archive_calls(draft: Draft, command: ArchiveCalls) -> None:
    """Lets go of those that are still here and ended."""
    leaving = tuple(call_id for call_id in command.call_ids if call_id in draft.state.ended)
    if leaving:
        draft.add(events.CallsArchived(call_ids=leaving))


def file_lines(draft: Draft, command: FileLines) -> None:
    """Moves the lines into their sums, all or none: where one has gone already, the asker looks again."""
    lines = [draft.state.ledger.get(key) for key in command.keys]
    ready = all(line is not None and _is_over(draft.state, line, draft.now.wall_ms) for line in lines)
    if command.keys and ready and draft.now.schema >= FILING_SCHEMA:
        draft.add(events.LinesFiled(keys=command.keys, sums=command.sums))


def drop_month(draft: Draft, command: DropLedgerMonth) -> None:
    """Forgets the sums of one month."""
    known = any(each.month == command.month for each in draft.state.filed.values())
    if known and draft.now.schema >= FILING_SCHEMA:
        draft.add(events.LedgerMonthDropped(month=command.month))
