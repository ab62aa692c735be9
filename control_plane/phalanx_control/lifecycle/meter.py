"""From reported counters to ledger events. Counters are cumulative, so losing or doubling reports changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.core.messages import Counter
from phalanx.core.states import Phase
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.lifecycle.failures import is_platforms
from phalanx_control.state import events, schemas
from phalanx_control.state.model import Gang, LedgerLine

_DRIFT_PER_MILLE = 5
_DRIFT_MS = 1_000


def count(draft: Draft, gang: Gang, node_id: str, counters: Iterable[Counter]) -> None:
    """Counts what grew on a lease that is open. No GPU is counted for longer than its lease has lasted.

    A lost node that comes back with more than it had reported before its lease was closed does not open it again.
    """
    line = draft.state.ledger[f"{gang.id}/{node_id}"]
    if line.closed_wall_ms:
        return
    grown = _grown(line, counters)
    for gpu in {name.partition("/")[0] for name in grown}:
        _cap(line, grown, gpu, _longest_ms(draft, gang))
    grown = {name: ms for name, ms in sorted(grown.items()) if ms > line.counters.get(name, 0)}
    if grown:
        draft.add(events.MeterCounted(gang_id=gang.id, node_id=node_id, counters=grown))


def _grown(line: LedgerLine, counters: Iterable[Counter]) -> dict[str, int]:
    grown: dict[str, int] = {}
    for counter in counters:
        name = f"{counter.gpu}/{counter.phase.value}"
        if counter.ms > max(line.counters.get(name, 0), grown.get(name, 0)):
            grown[name] = counter.ms
    return grown


def _longest_ms(draft: Draft, gang: Gang) -> int:
    """The log's clock stands still while nobody leads, so wall time counts where it says more."""
    elapsed = max(draft.now.log_ms - gang.created_ms, draft.now.wall_ms - gang.created_wall_ms)
    return elapsed + elapsed * _DRIFT_PER_MILLE // 1000 + _DRIFT_MS


def _cap(line: LedgerLine, grown: dict[str, int], gpu: str, longest_ms: int) -> None:
    """Takes what is too much off the phases that grew."""
    merged = {**line.counters, **grown}
    excess = sum(ms for name, ms in merged.items() if name.partition("/")[0] == gpu) - longest_ms
    for name in sorted(name for name in grown if name.partition("/")[0] == gpu):
        cut = min(max(0, excess), grown[name] - line.counters.get(name, 0))
        grown[name] -= cut
        excess -= cut


def opened(draft: Draft, gang: Gang) -> None:
    """Opens the lease's line on every node of a gang just reserved."""
    for member in gang.members:
        draft.add(events.MeterOpened(gang_id=gang.id, node_id=member.member.node_id, wall_ms=draft.now.wall_ms))


def close(draft: Draft, gang: Gang) -> None:
    """Closes every line of a gang. Credited as a whole: never started and not by the user's fault, or lost with the
    only call that it ever ran; of others what the lost attempt took is credited already.
    """
    cause = gang.error.cause if gang.error is not None else None
    never_started = not all(m.ready for m in gang.members)
    users_fault = cause is not None and cause.eats_user_retries
    lost = gang.error is not None and is_platforms(gang.error)
    old = draft.now.schema < schemas.SPENT_SCHEMA
    for member in gang.members:
        line = draft.state.ledger[f"{gang.id}/{member.member.node_id}"]
        all_lost = lost and (old or _busy_ms(line) <= line.credited_ms + _DRIFT_MS)
        draft.add(
            events.MeterClosed(
                gang_id=gang.id,
                node_id=member.member.node_id,
                wall_ms=draft.now.wall_ms,
                credited=all_lost or (never_started and not users_fault),
            )
        )


def _busy_ms(line: LedgerLine) -> int:
    return max((ms for name, ms in line.counters.items() if name.endswith(f"/{Phase.BUSY.value}")), default=0)
