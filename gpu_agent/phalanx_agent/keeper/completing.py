"""Every local rank has answered the call that ran: its outcome, and what the gang does next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.core.frames import Frame, Kind
from phalanx_agent.keeper import bodies, telling
from phalanx_agent.keeper.calls import Outcome, QueuedCall, Reply, failure_frame, result_meta
from phalanx_agent.keeper.report import error_to_dict

if TYPE_CHECKING:
    from phalanx_agent.keeper.gang import Gang

_SPENT_GRACE_MS = 1000


def complete(gang: Gang) -> None:
    """One rank's exception leaves a gang of that rank warm; any other failure ends the gang."""
    alone = gang.config.world_size == 1
    if not gang.book.failures():
        _succeed(gang)
    elif alone and not any(r.exits for r in gang.ranks) and not gang.holding.wanted_ms:
        _fail_and_stay(gang)
    else:
        gang.judge()


def _succeed(gang: Gang) -> None:
    call, replies, now = _answered(gang)
    goes_on = gang.ahead.goes_on(call)
    outcome = _result(gang, call, replies, now)
    gang.book.finish(Outcome(outcome))
    gang.idle(now)
    gang.spool.end()
    if gang.config.world_size == 1 and not goes_on:
        gang.leftovers.after_success(gang.ranks[0], gang.ready_ms, others=gang.terminals.of_shells)
    spent = telling.spent(outcome.meta, replies, nodes=len(gang.config.members))
    if spent is None:
        gang.hand_over()  # first: while the ranks run the next call, this one's outcome is delivered
    gang.outbox.deliver(call, outcome)
    if spent is not None:
        gang.end(spent, _SPENT_GRACE_MS)


def _result(gang: Gang, call: QueuedCall, replies: list[Reply], now: int) -> Frame:
    all_parts = gang.config.function.returns == "all"
    busy_ms = gang.busy_ms(now)
    meta = result_meta(replies, busy_ms=busy_ms, all_parts=all_parts, nodes=len(gang.config.members))
    body, fds, slots = bodies.result_of(replies, meta, all_parts=all_parts)
    released = [gang.memory.back(bytes.fromhex(c)) for r in replies for c in r.meta.get("released", ())]
    if any(slot is not None for slot in released):
        meta["released"] = [slot for slot in released if slot is not None]
    for rank in gang.ranks:
        if rank.rank in slots:
            rank.loaned_slots[call.id] = slots[rank.rank]
    gang.straight.took(busy_ms)
    return Frame(Kind.RESULT, call.id, meta, body, fds=fds)


def _fail_and_stay(gang: Gang) -> None:
    call, replies, now = _answered(gang)
    gang.ahead.read_output(call)
    verdict = gang.evidence.verdict(during="")
    gang.evidence.forget()
    gang.leftovers.after_failure(gang.ranks[0], gang.book.started_ms, others=gang.terminals.of_shells)
    gang.finished(call.id, telling.failed(call.id, verdict, gang.busy_ms(now)))
    gang.idle(now)
    gang.memory.forget(call.id, replies)
    gang.spool.end()
    gang.ahead.take_back()
    gang.hand_over()


def pass_over(gang: Gang) -> None:
    """The rank had the running call and has not begun it."""
    call, _, now = _answered(gang)
    outcome = gang.ahead.withdrawn(call)
    error = error_to_dict(telling.ended_by(outcome, "while it waited", gang.config.node_id))
    gang.finished(call.id, failure_frame(call.id, outcome=outcome, error=error, busy_ms=0))
    gang.idle(now)
    gang.spool.end()
    gang.hand_over()


def _answered(gang: Gang) -> tuple[QueuedCall, list[Reply], int]:
    """Returns the call, its replies by rank, and the time."""
    assert gang.book.running is not None
    replies = sorted(gang.book.replies.values(), key=lambda r: r.rank)
    return gang.book.running, replies, gang.clock.monotonic_ms()
