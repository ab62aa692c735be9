"""A user's exception as plain data on the worker, and as an exception again at the caller.

The caller gets the user's own type wherever it loads; what the platform knows (call, attempt, rank, remote traceback)
is added as attributes and as a note. Text always travels, so that no failure turns into a decode error.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from phalanx.core.errors import CallError, RemoteError
from phalanx.core.exceptions import MAX_MESSAGE_CHARS, pack_exception, shorten, unpack_exception
from phalanx.core.kinds import kinds_of, platform_class
from phalanx.core.messages import ErrorInfo, RankFailure
from phalanx.core.states import Cause

MAX_TRACEBACK_CHARS = 32_000

_PLATFORM_PACKAGES = ("phalanx", "phalanx_agent", "phalanx_proto")
_PLATFORM_DIR = str(Path(__file__).resolve().parents[1])
_OF_THE_USER = (Cause.USER_EXCEPTION, Cause.OUT_OF_MEMORY)


def describe(exc: BaseException, *, rank: int, node_id: str, cause: Cause = Cause.USER_EXCEPTION) -> ErrorInfo:
    """Returns all that can travel of ``exc``. Never raises, whatever the exception's own methods do."""
    exit_code = _exit_code(exc) if isinstance(exc, SystemExit) else 0
    where = f"rank {rank} on node {node_id}" if node_id else f"rank {rank}"
    return ErrorInfo(
        cause=cause,
        type_name=_clean(type_name(type(exc))),
        message=_clean(_message(exc, exit_code, where)),
        traceback=_clean(shorten(format_traceback(exc), MAX_TRACEBACK_CHARS)),
        rank=rank,
        node_id=node_id,
        exit_code=exit_code,
        pickled=pack_exception(exc),
        kinds=tuple(map(_clean, kinds_of(exc))),
    )


def to_exception(info: ErrorInfo, *, call_id: str, attempt: int) -> BaseException:
    """Returns what the caller of the failed call gets raised."""
    loaded = unpack_exception(info.pickled)
    if loaded is not None and info.cause in _OF_THE_USER:
        _set_missing(loaded, call_id=call_id, attempt=attempt, rank=info.rank, remote_traceback=info.traceback)
        exc = loaded
    else:
        exc = _platform_error(info, call_id, attempt)
        exc.__cause__ = loaded
    exc.add_note(_note(info, call_id, attempt))
    return exc


def replay_command(call_id: str) -> str:
    """Returns the command line that runs a call again on this machine."""
    return f"gpuctl replay {call_id} --local"


def type_name(cls: type[BaseException]) -> str:
    """Returns the name as a traceback prints it."""
    return cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"


def format_traceback(exc: BaseException) -> str:
    """Returns the traceback with its cause chain, as Python prints it, without the platform's own frames."""
    try:
        told = traceback.TracebackException.from_exception(exc, compact=True)
        _drop_platform_frames(told, set())
        return "".join(told.format())
    except Exception as e:  # noqa: BLE001  a user's exception may break any of this; its type still travels
        return f"{type_name(type(exc))}: <traceback could not be formatted: {type(e).__name__}>\n"


def _drop_platform_frames(told: traceback.TracebackException, seen: set[int]) -> None:
    if id(told) in seen:
        return
    seen.add(id(told))
    kept = [frame for frame in told.stack if not is_platform_frame(frame.filename)]
    told.stack = traceback.StackSummary.from_list(kept)
    for under in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if under is not None:
            _drop_platform_frames(under, seen)


def is_platform_frame(filename: str) -> bool:
    """Says whether code of that file is the platform's own."""
    if filename.startswith(_PLATFORM_DIR):
        return True
    parent = Path(filename).parts
    return any(f"{name}/" in filename and name in parent for name in _PLATFORM_PACKAGES[1:])


def _message(exc: BaseException, exit_code: int, where: str) -> str:
    if isinstance(exc, SystemExit):
        said = f": {shorten(exc.code, MAX_MESSAGE_CHARS)}" if isinstance(exc.code, str) else ""
        return f"{where}: the function called sys.exit, code {exit_code}, before returning a result{said}"
    try:
        return shorten(str(exc), MAX_MESSAGE_CHARS)
    except Exception as e:  # noqa: BLE001  a user's __str__ may raise anything
        return f"<str() of this {type_name(type(exc))} failed: {type(e).__name__}>"


def _exit_code(exc: SystemExit) -> int:
    if exc.code is None:
        return 0
    return exc.code if isinstance(exc.code, int) else 1


def _clean(text: str) -> str:
    """Returns text that every encoding step on the way takes: lone surrogates as their escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _set_missing(exc: BaseException, **values: object) -> None:
    for name, value in values.items():
        if not hasattr(exc, name):
            try:
                setattr(exc, name, value)
            except (AttributeError, TypeError):
                continue


def _platform_error(info: ErrorInfo, call_id: str, attempt: int) -> CallError:
    cls = platform_class(info)
    message = info.message or f"the call ended: {info.cause}"
    if cls is RemoteError and info.type_name:
        message = f"{info.type_name}: {message}"
    exc = cls(message, call_id=call_id, attempt=attempt, rank=info.rank, remote_traceback=info.traceback)
    if isinstance(exc, RemoteError):
        exc.type_name = info.type_name
    return exc


def _note(info: ErrorInfo, call_id: str, attempt: int) -> str:
    where = f"rank {info.rank}" if info.rank >= 0 else "the gang"
    node = f" on node {info.node_id}" if info.node_id else ""
    lines = [f"call {call_id}, attempt {attempt}, {where}{node}"]
    if info.traceback:
        lines += ["remote traceback:", info.traceback.rstrip()]
    lines += [_other(r) for r in info.ranks if r.rank != info.rank]
    if call_id and info.ranks:
        lines.append(f"what is known of its end: gpuctl report {call_id}")
    if call_id and info.cause in _OF_THE_USER:
        lines.append(f"to run it again on this machine: {replay_command(call_id)}")
    return "\n".join(lines)


def _other(failure: RankFailure) -> str:
    role = " (culprit)" if failure.culprit else ""
    how = f"signal {failure.signal}" if failure.signal else f"exit code {failure.exit_code}"
    said = f"{failure.type_name}: {failure.message}".strip(": ")
    return f"rank {failure.rank}{role}: {said or how}"
