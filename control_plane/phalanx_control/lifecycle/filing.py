"""What leaves the state for the archive, and when: ended calls, closed lines of the ledger, months that are over.

Only what is in durable files already may leave: whoever asks has written them. Files may hold more than has left (a
leader that ended between the two), never less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from phalanx_control.lifecycle.draft import Draft
from phalanx_control.state import events, ordered
from phalanx_control.state.commands import ArchiveCalls, DropLedgerMonth, FileLines
from phalanx_control.state.model import Call, LedgerLine, State

AT_ONCE = 500
FILING_SCHEMA = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What stays in the state: the newest ``calls`` that have ended, those within the last ``ms`` up to
    ``calls_at_most``; closed lines for ``ms``.
    """

    calls: int = 2_000
    calls_at_most: int = 20_000
    ms: int = 3_600_000


KEEP = Keep()


def calls_to_archive(state: State, log_ms: int, keep: Keep = KEEP) -> tuple[str, ...]:
    """Returns ended calls that may go, the oldest first: at most 500, and those that somebody is still to be told of
    hold up nothing."""
    held = ordered.size(state.ended_line)
    return tuple(islice(_may_go(state, log_ms, keep, held - keep.calls, held - keep.calls_at_most), AT_ONCE))


def _may_go(state: State, log_ms: int, keep: Keep, old: int, surplus: int) -> Iterator[str]:
    """Yields of the ``old`` oldest those that are beyond the time, or among the ``surplus``."""
    for place, (ended_ms, call_id) in enumerate(islice(ordered.in_order(state.ended_line), max(0, old))):
        if place >= surplus and log_ms - ended_ms <= keep.ms:
            return
        if place < surplus or not _is_untold(state.calls[call_id]):
            yield call_id


def _is_untold(call: Call) -> bool:
    """Somebody is still to be told of its end. Where there are too many of these, the oldest go nevertheless."""
    return call.delivery is not None and not call.delivery.over


def lines_to_file(state: State, wall_ms: int, keep: Keep = KEEP) -> tuple[str, ...]:
    """Returns the keys of closed lines of one month that may go: nothing in the state speaks of them any more.
    At most 500, the oldest first.
    """
    before_ms = wall_ms - keep.ms
    closed = ((line.closed_wall_ms, key) for key, line in state.ledger.items() if _is_over(state, line))
    over = [each for each in closed if each[0] < before_ms]
    if not over:
        return ()
    held = {gang for call in state.calls.values() for gang in (*call.made_gangs, call.gang_id)}
    free = sorted(each for each in over if state.ledger[each[1]].gang_id not in held)
    months = [month_of(ms) for ms, _ in free]
    return tuple(key for (_, key), month in zip(free, months, strict=True) if month == months[0])[:AT_ONCE]


def month_of(wall_ms: int) -> str:
    """Returns ``"2025-11"``, UTC."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m")


def _is_over(state: State, line: LedgerLine) -> bool:
    """A gang that was written off may still speak while the state holds it."""
    return bool(line.closed_wall_ms) and line.gang_id not in state.gangs


def archive_calls(draft: Draft, command: ArchiveCalls) -> None:
    """Lets go of those that are still here and ended."""
    leaving = tuple(call_id for call_id in command.call_ids if call_id in draft.state.ended)
    if leaving:
        draft.add(events.CallsArchived(call_ids=leaving))


def file_lines(draft: Draft, command: FileLines) -> None:
    """Moves the lines into their sums, all or none: where one has gone already, the asker looks again."""
    lines = [draft.state.ledger.get(key) for key in command.keys]
    ready = all(line is not None and _is_over(draft.state, line) for line in lines)
    if command.keys and ready and draft.now.schema >= FILING_SCHEMA:
        draft.add(events.LinesFiled(keys=command.keys, sums=command.sums))


def drop_month(draft: Draft, command: DropLedgerMonth) -> None:
    """Forgets the sums of one month."""
    known = any(each.month == command.month for each in draft.state.filed.values())
    if known and draft.now.schema >= FILING_SCHEMA:
        draft.add(events.LedgerMonthDropped(month=command.month))
