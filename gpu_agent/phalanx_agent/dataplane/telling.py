"""What keepers and the control plane are told of one call, made from its record, and of a gang's queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phalanx.core.frames import Frame, Kind
from phalanx.core.states import Outcome
from phalanx_agent.dataplane.calls import CallRecord, Origin
from phalanx_agent.dataplane.facts import CallBegan, CallTurnedAway, GangSnapshot
from phalanx_agent.dataplane.loop import now_ns

if TYPE_CHECKING:
    from phalanx_agent.dataplane.lead import LeadGang


def began(record: CallRecord, *, gang_id: str, timeout_ms: int) -> CallBegan:
    """The call runs; a direct one becomes a logged call with this."""
    return CallBegan(
        gang_id=gang_id,
        call_id=record.call_id,
        attempt=record.attempt,
        fence=record.fence,
        direct=record.origin is not Origin.OFFERED,
        user=record.user,
        args_bytes=record.body_bytes,
        timeout_ms=timeout_ms,
    )


def call_meta(gang: LeadGang, record: CallRecord) -> dict[str, Any]:
    """Returns the meta of a CALL to the keepers."""
    meta: dict[str, Any] = {}
    if record.attempt != 1:
        meta["attempt"] = record.attempt
    timeout_ms = gang.timeout_ms(record)
    if timeout_ms:
        meta["timeout_ms"] = timeout_ms
    if record.fds:
        meta["fds"] = record.fds_meta
    if gang.spec.streams and record.client is None:
        meta["held"] = True
    return meta


def turned_away(record: CallRecord, *, gang_id: str, reason: str) -> CallTurnedAway:
    """The gang did not take it, and nothing ran."""
    return CallTurnedAway(
        gang_id=gang_id, call_id=record.call_id, attempt=record.attempt, fence=record.fence, reason=reason
    )


def snapshot(gang: LeadGang) -> GangSnapshot:
    """The fast facts of a gang."""
    waits = sorted(gang.waits_ms)
    idle = 0 if gang.sent or len(gang.queue) else (now_ns() - gang.touched_ns) // 1_000_000
    return GangSnapshot(
        gang_id=gang.spec.gang_id,
        depth=len(gang.queue),
        in_flight=len(gang.sent),
        idle_ms=idle,
        p95_wait_ms=int(waits[int(len(waits) * 0.95)]) if waits else 0,
        step=gang.step,
        debug=bool(gang.debug or gang.held),
        paused_ms=gang.paused_ms,
        stall=gang.held.text or gang.debug or gang.stall or gang.slow,
        busy_ms=gang.keeper.busy_ms,
        call_ids=tuple(r.call_id for r in gang.table.records() if r.logged),
    )


def is_listed(record: CallRecord, outcome: Frame) -> bool:
    """Says whether a call is listed however short it was: one that failed."""
    return outcome.kind is Kind.FAILURE and outcome.meta.get("outcome") == Outcome.FAILED and not record.cancel_reason
