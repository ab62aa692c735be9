"""Between the control plane's words about calls and the data plane: offers in, starts and outcomes out.

Bodies up to 64 KiB ride inside messages, larger ones are blobs. An outcome is acknowledged to the data plane only when
the control plane has stored it, so that no end of this agent can lose it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace

import grpc.aio

from phalanx.core.ids import id_raw
from phalanx.core.messages import (
    Body,
    CallFinished,
    CallRefused,
    CallStarted,
    CancelCall,
    DirectCalls,
    DirectReport,
    ErrorInfo,
    Offer,
)
from phalanx.core.spec import INLINE_BODY_BYTES
from phalanx.core.states import Cause, Outcome
from phalanx_agent.dataplane.calls import CallRecord, Origin
from phalanx_agent.dataplane.facts import CallBegan, CallEnded, CallTurnedAway, DirectEnded
from phalanx_agent.dataplane.server import DataPlane
from phalanx_agent.session import Session

log = logging.getLogger(__name__)

_MAX_TEXT_CHARS = 32 * 1024


class Calls:
    """``owe(gang_id, job)`` runs a job that must be over before the gang's end is told."""

    def __init__(self, plane: DataPlane, session: Session, owe: Callable[..., None]) -> None:
        self._plane = plane
        self._session = session
        self._owe = owe
        self._fetching: set[tuple[str, int]] = set()

    # ---- in ----

    def offer(self, offer: Offer) -> None:
        """Puts a durable call into its gang's queue, fetching large arguments first."""
        key = (offer.call_id, offer.attempt)
        if key not in self._fetching:
            self._fetching.add(key)
            self._owe(offer.gang_id, self._offer(offer))

    def cancel(self, cancel: CancelCall) -> None:
        self._owe(cancel.gang_id, self._cancel(cancel))

    async def _offer(self, offer: Offer) -> None:
        try:
            body = await self._session.get_blob(offer.args.blob) if offer.args.blob else offer.args.data
        except grpc.aio.AioRpcError as e:
            self._refuse(offer, f"its arguments could not be fetched: {e.details()}")
            return
        finally:
            self._fetching.discard((offer.call_id, offer.attempt))
        record = CallRecord(
            id=id_raw(offer.call_id),
            origin=Origin.OFFERED,
            queue_key=f"user {offer.user}",
            user=offer.user,
            attempt=offer.attempt,
            fence=offer.fence,
            timeout_ms=offer.timeout_ms,
            body=body,
        )
        try:
            led_here = await asyncio.wrap_future(self._plane.offer(offer.gang_id, record))
        except Exception as e:
            log.exception("an offered call was not taken in", extra={"call": offer.call_id, "gang": offer.gang_id})
            self._refuse(offer, f"the data plane failed on it: {type(e).__name__}: {e}")
            return
        if not led_here:
            self._refuse(offer, "the gang is not led by this node")

    async def _cancel(self, cancel: CancelCall) -> None:
        here = await asyncio.wrap_future(
            self._plane.cancel(cancel.gang_id, cancel.call_id, cancel.grace_ms, fence=cancel.fence)
        )
        if not here:
            self._session.say(
                CallRefused(
                    call_id=cancel.call_id,
                    attempt=cancel.attempt,
                    fence=cancel.fence,
                    gang_id=cancel.gang_id,
                    reason="it is not on this node",
                )
            )

    def _refuse(self, offer: Offer, reason: str) -> None:
        self._session.say(
            CallRefused(
                call_id=offer.call_id,
                attempt=offer.attempt,
                fence=offer.fence,
                gang_id=offer.gang_id,
                reason=reason,
            )
        )

    # ---- out ----

    def began(self, event: CallBegan) -> None:
        self._session.say(
            CallStarted(
                call_id=event.call_id,
                attempt=event.attempt,
                fence=event.fence,
                gang_id=event.gang_id,
                direct=event.direct,
                user=event.user,
                args_bytes=event.args_bytes,
                timeout_ms=event.timeout_ms,
            )
        )

    def turned_away(self, event: CallTurnedAway) -> None:
        self._session.say(
            CallRefused(
                call_id=event.call_id,
                attempt=event.attempt,
                fence=event.fence,
                gang_id=event.gang_id,
                reason=event.reason,
            )
        )

    def ended(self, event: CallEnded) -> None:
        """Says how a call ended; a large result is stored first."""
        if len(event.body) <= INLINE_BODY_BYTES:
            self._say_ended(event, Body(data=bytes(event.body), size=len(event.body)))
        else:
            self._owe(event.gang_id, self._store_and_say(event))

    async def _store_and_say(self, event: CallEnded) -> None:
        digest = await asyncio.to_thread(lambda: hashlib.sha256(event.body).hexdigest())
        name = f"sha256:{digest}"
        try:
            await self._session.put_blob(name, event.body)
        except grpc.aio.AioRpcError as e:
            error = ErrorInfo(
                cause=Cause.USER_EXCEPTION,
                type_name="NoBlobStoreError",
                message=f"the result of {len(event.body):,} bytes could not be stored: {e.details()}",
            )
            self._say_ended(replace(event, outcome=Outcome.FAILED, error=error), Body())
            return
        self._say_ended(event, Body(blob=name, size=len(event.body)))

    def _say_ended(self, event: CallEnded, result: Body) -> None:
        finished = CallFinished(
            call_id=event.call_id,
            attempt=event.attempt,
            fence=event.fence,
            gang_id=event.gang_id,
            outcome=event.outcome,
            result=result,
            error=_bounded(event.error),
            busy_ms=event.busy_ms,
            debug_ms=event.debug_ms,
            delivered=event.delivered,
        )
        self._session.say(finished, lambda: self._plane.acknowledge(event.gang_id, event.call_id, event.attempt))


def direct_report(ended: list[DirectEnded]) -> DirectReport:
    """Returns the message about short direct calls."""
    return DirectReport(
        calls=tuple(
            DirectCalls(
                gang_id=d.gang_id,
                fence=d.fence,
                function_id=d.function_id,
                user=d.user,
                succeeded=d.succeeded,
                failed=d.failed,
                busy_ms=d.busy_ms,
                call_ids=d.call_ids,
            )
            for d in ended
        )
    )


def _bounded(error: ErrorInfo) -> ErrorInfo:
    """Keeps a message far below the limit of one gRPC message; tracebacks keep their end."""
    return replace(
        error,
        message=error.message[:_MAX_TEXT_CHARS],
        traceback=error.traceback[-_MAX_TEXT_CHARS:],
        ranks=tuple(
            replace(
                r,
                message=r.message[:2000],
                traceback=r.traceback[-8000:],
                last_lines=r.last_lines[-4096:],
            )
            for r in error.ranks
        ),
    )
