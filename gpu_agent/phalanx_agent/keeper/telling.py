"""What a keeper says about ends: of calls, of ranks, of the gang. Words and frames; it decides nothing."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.core.collectives import RankState, to_dict
from phalanx.core.errors import TIME_PASSED
from phalanx.core.frames import NO_ID, Frame, Kind
from phalanx.core.messages import ErrorInfo
from phalanx.core.states import Cause, Outcome
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.keeper.calls import CallBook, QueuedCall, Reply, failure_frame
from phalanx_agent.keeper.report import Death, Failure, Verdict, error_from_dict, error_to_dict


@dataclass(slots=True)
class Why:
    """The reason for a gang's end. Without ``error`` it is a clean one; a call that still runs fails with ``cause``.

    ``peer``: the error is a victim's, unless the other nodes have nothing to say either.
    """

    reason: str
    outcome: Outcome = Outcome.FAILED
    error: ErrorInfo | None = None
    pickled: bytes = b""
    cause: Cause = Cause.INFRASTRUCTURE
    peer: bool = False
    hold: bytes = b""
    """The call for whose failure the gang is held, where another node wants that."""


def failure_of_rank(frame: Frame, *, asked: bool) -> Failure:
    """Reads a rank's FAILURE. ``asked``: the keeper has asked the ranks to end."""
    error = error_from_dict(frame.meta["error"])
    if error.cause is Cause.CANCELLED and not asked:
        return terminated(error.rank, "while it ran a call", error.node_id)
    return Failure(error=error, peer=bool(frame.meta.get("peer")), pickled=bytes(frame.body))


def terminated(rank: int, when: str, node_id: str) -> Failure:
    """Returns what a rank's SIGTERM means where nobody asked its keeper for an end."""
    number = signal.SIGTERM
    error = ErrorInfo(
        cause=Cause.INFRASTRUCTURE,
        type_name="RankDiedError",
        message=f"rank {rank} on node {node_id} was sent SIGTERM {when}, by its own code or from outside",
        rank=rank,
        node_id=node_id,
        signal=number,
    )
    return Failure(error=error, peer=False)


def ended_by(outcome: Outcome, when: str, node_id: str, *, timeout_ms: int = 0) -> ErrorInfo:
    """Returns the error of a call that was cancelled or ran out of time."""
    if outcome is Outcome.TIMED_OUT:
        limit = f" (timeout {timeout_ms / 1000:g} s)" if timeout_ms else ""
        return ErrorInfo(
            cause=Cause.TIMEOUT,
            type_name="CallTimeoutError",
            message=f"{TIME_PASSED} {when}{limit}",
            node_id=node_id,
        )
    return ErrorInfo(
        cause=Cause.CANCELLED,
        type_name="CallCancelledError",
        message=f"the call was cancelled {when}",
        node_id=node_id,
    )


def spent(meta: dict[str, Any], replies: list[Reply], *, nodes: int) -> Why | None:
    """Returns why a gang is not used again after a call that succeeded; None where it is, or where other nodes may
    still run the call, whose ranks the lead compares.
    """
    if meta.get("uneven") and nodes == 1:
        text = "the ranks ran different numbers of collectives in the last call: the gang is not used again"
        return Why("uneven collectives", error=ErrorInfo(cause=Cause.USER_EXCEPTION, message=text))
    return next((Why(str(r.meta["leaves"])) for r in replies if r.meta.get("leaves")), None)


def late_start(late: list[int], config: GangConfig) -> Why:
    """Returns the end of a gang of which the ranks ``late`` were not ready in time."""
    seconds = config.function.limits.startup_timeout_s
    text = f"ranks {late} were not ready within startup_timeout={seconds:g} s: raise it, or see the ranks' output"
    error = ErrorInfo(cause=Cause.TIMEOUT, type_name="CallTimeoutError", message=text, node_id=config.node_id)
    return Why("startup timeout", error=error, cause=Cause.TIMEOUT)


def failed(call_id: bytes, verdict: Verdict, busy_ms: int) -> Frame:
    """Returns the FAILURE of a call after which the gang stays."""
    error = error_to_dict(verdict.error)
    return failure_frame(call_id, outcome=Outcome.FAILED, error=error, busy_ms=busy_ms, pickled=verdict.pickled)


def failure_at_end(call_id: bytes, why: Why, config: GangConfig, busy_ms: int, states: Sequence[RankState]) -> Frame:
    """Returns the FAILURE of the call that ran when the gang ended. Over several nodes it says where ranks stood."""
    error = why.error or ErrorInfo(
        cause=why.cause, message=f"the gang was ended while the call ran: {why.reason}", node_id=config.node_id
    )
    frame = failure_frame(
        call_id, outcome=why.outcome, error=error_to_dict(error), busy_ms=busy_ms, pickled=why.pickled
    )
    if why.peer:
        frame.meta["peer"] = True
    if len(config.members) > 1:
        frame.meta["states"] = [to_dict(s) for s in states]
    return frame


def never_began(call_id: bytes, why: Why | None, config: GangConfig) -> Frame:
    """Returns the FAILURE of a call that waited: ``started`` false, so it may run elsewhere at no cost to the user."""
    reason = "" if why is None else f": {why.error.message if why.error else why.reason}"
    error = ErrorInfo(
        cause=Cause.INFRASTRUCTURE, message=f"the gang ended before the call began{reason}", node_id=config.node_id
    )
    frame = failure_frame(call_id, outcome=Outcome.FAILED, error=error_to_dict(error), busy_ms=0)
    frame.meta["started"] = False
    return frame


def may_have_begun(call_id: bytes, config: GangConfig) -> Frame:
    """Returns the FAILURE of a call that the rank may have begun by itself, when another one ended the gang."""
    text = "its gang was ended because of another call, and it may have begun"
    error = ErrorInfo(cause=Cause.INFRASTRUCTURE, message=text, node_id=config.node_id)
    return failure_frame(call_id, outcome=Outcome.FAILED, error=error_to_dict(error), busy_ms=0)


def straight(outcome: Frame, call: QueuedCall) -> Frame:
    """Returns the outcome of a call of which the agent has not been told, for the agent to send where it came from."""
    number = call.lane.number if call.lane is not None else 0
    return Frame(outcome.kind, outcome.id, {**outcome.meta, "lane": number}, outcome.body, fds=outcome.fds)


def known_calls(book: CallBook) -> dict[str, Any]:
    """Returns the calls that the keeper holds, as STATE names them."""
    return {
        "running": book.running.id.hex() if book.running else "",
        "finished": [call_id.hex() for call_id in book.outcomes],
        "queued": [call.id.hex() for call in book.queue],
        "timeouts_ms": {call.id.hex(): call.timeout_ms for call in (*book.queue, book.running) if call is not None},
    }


def dead(died: Death) -> Frame:
    """Returns the RANK event of a death."""
    meta = {"rank": died.rank, "event": "dead", "pid": died.pid, "exit_code": died.exit_code, "signal": died.signal}
    return Frame(Kind.RANK, NO_ID, meta)


def report(why: Why, *, clean: bool, counters: dict[str, int], deaths: list[Death]) -> dict[str, Any]:
    """Returns what ENDED says."""
    return {
        "clean": clean,
        "reason": why.reason,
        "error": error_to_dict(why.error) if why.error else None,
        "counters": counters,
        "deaths": [d.as_dict() for d in deaths],
    }


def write_report(gang_dir: Path, meta: dict[str, Any]) -> None:
    """Writes ended.json whole or not at all. Where the disk is full the report is only told."""
    path = gang_dir / "ended.json"
    part = path.with_suffix(".part")
    try:
        part.write_text(json.dumps(meta))
        part.replace(path)
    except OSError as e:
        sys.stderr.write(f"ended.json could not be written: {e}\n")
