"""PhalanxError ⇄ gRPC status: one table, read by the control plane one way and by the SDK the other.

The status alone is enough to raise the right family; trailing metadata carry the exact ``code`` and the ``hint``.
This file also names the metadata keys that both sides use. It decides nothing and retries nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc

from phalanx.core import errors

CODE_KEY = "px-code"
HINT_KEY = "px-hint-bin"
LOG_SEQ_KEY = "log_seq"
"""Trailing metadata: the log entry that the answer reflects."""
MIN_SEQ_KEY = "min-seq"
"""Request metadata: answer only with state at least this new."""

_Status = grpc.StatusCode

STATUS_OF: dict[type[errors.PhalanxError], grpc.StatusCode] = {
    errors.InvalidSpecError: _Status.INVALID_ARGUMENT,
    errors.NotBuiltError: _Status.UNIMPLEMENTED,
    errors.SerializationError: _Status.INVALID_ARGUMENT,
    errors.ConnectionFailedError: _Status.UNAVAILABLE,
    errors.AuthError: _Status.UNAUTHENTICATED,
    errors.NotFoundError: _Status.NOT_FOUND,
    errors.UnschedulableError: _Status.FAILED_PRECONDITION,
    errors.NoBlobStoreError: _Status.FAILED_PRECONDITION,
    errors.VersionError: _Status.FAILED_PRECONDITION,
    errors.GetTimeoutError: _Status.DEADLINE_EXCEEDED,
    errors.CallError: _Status.ABORTED,
    errors.PhalanxError: _Status.INTERNAL,
}
"""Looked up along the class's ancestors, so a subclass needs no row of its own."""

_FAMILY_OF: dict[grpc.StatusCode, type[errors.PhalanxError]] = {
    _Status.INVALID_ARGUMENT: errors.InvalidSpecError,
    _Status.OUT_OF_RANGE: errors.InvalidSpecError,
    _Status.ALREADY_EXISTS: errors.InvalidSpecError,
    _Status.UNIMPLEMENTED: errors.VersionError,
    _Status.UNAVAILABLE: errors.ConnectionFailedError,
    _Status.DEADLINE_EXCEEDED: errors.ConnectionFailedError,
    _Status.UNAUTHENTICATED: errors.AuthError,
    _Status.PERMISSION_DENIED: errors.AuthError,
    _Status.NOT_FOUND: errors.NotFoundError,
}

_CLASS_OF_CODE: dict[str, type[errors.PhalanxError]] = {
    cls.code: cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.PhalanxError)
}


class NotAllowedError(errors.AuthError):
    """A known token asks for more than its role allows; a status of its own, the same family at the client."""

    hint = "ask an admin of the workspace for a token with a higher role"


STATUS_OF[NotAllowedError] = _Status.PERMISSION_DENIED


def status_of(error: errors.PhalanxError) -> grpc.StatusCode:
    """Returns the status that ``error`` travels under."""
    return next(STATUS_OF[cls] for cls in type(error).__mro__ if cls in STATUS_OF)


def metadata_of(error: errors.PhalanxError) -> tuple[tuple[str, str | bytes], ...]:
    """Returns the trailing metadata that carry the error's code and hint."""
    return ((CODE_KEY, error.code), (HINT_KEY, error.hint.encode()))


def to_exception(error: Any) -> errors.PhalanxError:
    """Returns what a failed RPC means: the error of its code, else the family of its status.

    ``error`` is a `grpc.RpcError` that has a status (`grpc.Call` or `grpc.aio.AioRpcError`).
    """
    metadata = metadata_dict(error.trailing_metadata())
    status: grpc.StatusCode = error.code()
    message = error.details() or status.name
    if status is _Status.UNIMPLEMENTED and CODE_KEY not in metadata:
        return errors.VersionError(
            "the control plane is of another version than this client, and does not know what was asked",
            hint="gpuctl doctor shows the control plane's version: install that one here, or upgrade it",
        )
    cls = _CLASS_OF_CODE.get(metadata.get(CODE_KEY, "")) or _FAMILY_OF.get(status, errors.PhalanxError)
    return cls(message, hint=metadata.get(HINT_KEY, ""))


def metadata_dict(metadata: Iterable[tuple[str, str | bytes]] | None) -> dict[str, str]:
    """Returns gRPC metadata as text by key; binary values are read as UTF-8, the last of several wins."""
    out: dict[str, str] = {}
    for key, value in metadata or ():
        out[key] = value.decode(errors="replace") if isinstance(value, bytes) else value
    return out
