"""Arguments, results and pickled exceptions: between messages, which may hold bytes, and the log, which holds names.

Up to 64 KiB travel with the log entry under a key; larger ones are blobs already, put by their maker. The bytes are
never looked into.
"""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.errors import InvalidSpecError
from phalanx.core.messages import Body, CallFinished, ErrorInfo
from phalanx.core.spec import INLINE_BODY_BYTES
from phalanx_control.blobs import is_content
from phalanx_control.state.commands import AgentSaid
from phalanx_control.state.model import BodyRef

MAX_MESSAGE_CHARS = 16 * 1024
MAX_TRACEBACK_CHARS = 64 * 1024


def args_key(call_id: str) -> str:
    return f"{call_id}/args"


def to_ref(body: Body, key: str) -> tuple[BodyRef, dict[str, bytes]]:
    """Returns what the log keeps of ``body``, and the bytes to append with it.

    Raises InvalidSpecError on inline bytes above 64 KiB and on a blob that is not named by its content.
    """
    if body.blob:
        if not is_content(body.blob):
            raise InvalidSpecError(f"a body's blob is named by its content, not {body.blob[:80]!r}")
        return BodyRef(blob=body.blob, size=body.size), {}
    if len(body.data) > INLINE_BODY_BYTES:
        raise InvalidSpecError(
            f"an inline body has {len(body.data)} bytes: at most {INLINE_BODY_BYTES}", hint="put it as a blob first"
        )
    if not body.data:
        return BodyRef(), {}
    return BodyRef(key=key, size=len(body.data)), {key: body.data}


def split_finished(node_id: str, message: CallFinished) -> tuple[AgentSaid, dict[str, bytes]]:
    """Returns the command for a finished attempt with its bodies taken out, and those bodies by key.

    Keys name the attempt and its fence, so a stale attempt can never overwrite the result of a later one. A pickled
    exception above 64 KiB is left out: its text is always there.
    """
    stem = f"{message.call_id}/{message.attempt}.{message.fence}"
    result, bodies = to_ref(message.result, f"{stem}/result")
    pickled = message.error.pickled if len(message.error.pickled) <= INLINE_BODY_BYTES else b""
    error_body, more = to_ref(Body(data=pickled), f"{stem}/error")
    bare = replace(message, result=Body(size=result.size), error=_for_the_log(message.error))
    return AgentSaid(node_id=node_id, message=bare, result=result, error_body=error_body), {**bodies, **more}


def _for_the_log(error: ErrorInfo) -> ErrorInfo:
    """The beginning of a long message and the end of a long traceback are what people read."""
    message, traceback = error.message[:MAX_MESSAGE_CHARS], error.traceback[-MAX_TRACEBACK_CHARS:]
    return replace(error, pickled=b"", message=message, traceback=traceback)
