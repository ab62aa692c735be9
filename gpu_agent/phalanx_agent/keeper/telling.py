"""What a keeper says about ends: of calls, of ranks, of the gang. Words and frames; it decides nothing."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.core.frames import Frame
from phalanx.core.messages import ErrorInfo
from phalanx.core.states import Cause, Outcome
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.keeper.calls import CallBook, failure_frame
from phalanx_agent.keeper.report import Failure, error_from_dict, error_to_dict


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


def failure_of_rank(frame: Frame) -> Failure:
    """Reads a rank's FAILURE."""
    error = error_from_dict(frame.meta["error"])
    return Failure(error=error, peer=bool(frame.meta.get("peer")), pickled=bytes(frame.body))


def ended_by(outcome: Outcome, when: str, node_id: str) -> ErrorInfo:
    """Returns the error of a call that was cancelled or ran out of time."""
    if outcome is Outcome.TIMED_OUT:
        return ErrorInfo(
            cause=Cause.TIMEOUT,
            type_name="CallTimeoutError",
            message=f"the call's time limit passed {when}",
            node_id=node_id,
        )
    return ErrorInfo(
        cause=Cause.CANCELLED,
        type_name="CallCancelledError",
        message=f"the call was cancelled {when}",
        node_id=node_id,
    )


def failure_at_end(call_id: bytes, why: Why, config: GangConfig, busy_ms: int) -> Frame:
    """Returns the FAILURE of the call that ran when the gang ended."""
    error = why.error or ErrorInfo(
        cause=why.cause, message=f"the gang was ended while the call ran: {why.reason}", node_id=config.node_id
    )
    frame = failure_frame(
        call_id, outcome=why.outcome, error=error_to_dict(error), busy_ms=busy_ms, pickled=why.pickled
    )
    if why.peer:
        frame.meta["peer"] = True
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


def known_calls(book: CallBook) -> dict[str, Any]:
    """Returns the calls that the keeper holds, as STATE names them."""
    return {
        "running": book.running.id.hex() if book.running else "",
        "finished": [call_id.hex() for call_id in book.outcomes],
        "queued": [call.id.hex() for call in book.queue],
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
