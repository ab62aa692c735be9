"""What the control plane is told of one call, made from its record."""

from __future__ import annotations

from phalanx_agent.dataplane.calls import CallRecord, Origin
from phalanx_agent.dataplane.facts import CallBegan, CallTurnedAway


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


def turned_away(record: CallRecord, *, gang_id: str, reason: str) -> CallTurnedAway:
    """The gang did not take it, and nothing ran."""
    return CallTurnedAway(
        gang_id=gang_id, call_id=record.call_id, attempt=record.attempt, fence=record.fence, reason=reason
    )
