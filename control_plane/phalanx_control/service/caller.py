"""Who is asking, for the code that answers: set by the gate around each RPC, read by the handlers. Decides nothing."""

from __future__ import annotations

from contextvars import ContextVar

from phalanx_control.service.auth import NOBODY, Identity

_caller: ContextVar[Identity] = ContextVar("phalanx_caller", default=NOBODY)


def caller() -> Identity:
    """Returns who asks; NOBODY where no token was needed."""
    return _caller.get()


def set_caller(identity: Identity) -> None:
    """Says who asks, for the rest of this RPC's task."""
    _caller.set(identity)
