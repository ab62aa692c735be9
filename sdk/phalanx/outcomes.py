"""What came back, as a value or as the exception to raise: from frames of the data plane and from stored calls."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

from phalanx.core.error_meta import error_from_meta
from phalanx.core.errors import CallCancelledError
from phalanx.core.frames import Frame
from phalanx.core.remote_errors import to_exception
from phalanx.core.serialization import Buffer, unpack_first
from phalanx.core.states import CallState, Cause, Outcome
from phalanx.core.views import CallView

_CAUSE_OF_OUTCOME = {Outcome.TIMED_OUT.value: Cause.TIMEOUT, Outcome.CANCELLED.value: Cause.CANCELLED}


def value_of_frame(frame: Frame, returns: str) -> Any:
    """Returns what a RESULT frame holds. Raises SerializationError when it does not load here."""
    return value_of_body(frame.body, returns, parts="parts" in frame.meta)


def value_of_body(body: Buffer, returns: str, *, parts: bool = False) -> Any:
    """Returns rank 0's value, or the list by rank: ranks' envelopes stand one behind the other."""
    body = _writable(body)
    value, at = unpack_first(body)
    if at == len(body) and returns != "all" and not parts:
        return value
    values = [value]
    whole = memoryview(body)
    while at < len(whole):
        value, length = unpack_first(whole[at:])
        values.append(value)
        at += length
    return values


def error_of_frame(frame: Frame, call_id: str) -> BaseException:
    """Returns what a FAILURE frame means."""
    info = error_from_meta(frame.meta.get("error"), otherwise=Cause.USER_EXCEPTION)
    info = replace(info, pickled=bytes(frame.body))
    cause = _CAUSE_OF_OUTCOME.get(str(frame.meta.get("outcome")))
    return to_exception(replace(info, cause=cause) if cause else info, call_id=call_id, attempt=1)


def error_of_view(view: CallView) -> BaseException:
    """Returns what the end of a call that did not succeed means."""
    if view.state == CallState.CANCELLED and not view.error.message:
        return CallCancelledError(view.reason or "the call was cancelled", call_id=view.call_id, attempt=view.attempt)
    info = view.error if view.error.message else replace(view.error, message=view.reason)
    if view.state == CallState.CANCELLED:
        info = replace(info, cause=Cause.CANCELLED)
    elif view.state == CallState.TIMED_OUT:
        info = replace(info, cause=Cause.TIMEOUT)
    return to_exception(info, call_id=view.call_id, attempt=view.attempt)


def _writable(body: Buffer) -> Buffer:
    """Small results that hold arrays are copied, so that the caller may write into them."""
    return bytearray(body) if isinstance(body, bytes) and struct.unpack_from("!I", body, 8)[0] else body
