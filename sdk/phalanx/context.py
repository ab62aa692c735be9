"""What a running function knows of its gang: ``phalanx.current()``. Plain data and two callbacks into the worker."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from phalanx.core.errors import InvalidSpecError
from phalanx.core.ids import id_text

if TYPE_CHECKING:
    from phalanx.core.topology.node import NodeTopology
    from phalanx.core.topology.verified import Verified

MAX_STEP = 1 << 53
"""What JSON readers everywhere can hold."""


class CancelledSignal(BaseException):
    """Raised in the user's code, on the main thread, when its call is cancelled or its time limit passes."""


def _never() -> bool:
    return False


def _ignore(step: int, total: int) -> None:
    del step, total


def _unknown() -> NodeTopology | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One rank's place in its gang, for the call that runs now."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    node_rank: int = 0
    device: str = "cpu"
    """``cuda:<n>`` as this process sees it, or ``cpu``."""
    placement: str = ""
    """One sentence: why these GPUs."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the whole gang's GPUs in rank order."""
    attempt: int = 1
    """1 for the first execution; rises with every retry."""
    raw_call_id: bytes = field(default=b"", repr=False)
    function: str = ""
    checkpoint_dir: str = ""
    stop_requested: Callable[[], bool] = field(default=_never, repr=False)
    report_progress: Callable[[int, int], None] = field(default=_ignore, repr=False)
    verified: Verified | None = field(default=None, repr=False)
    """What the ranks found of the links between the gang's GPUs on this node before its first call, where they did."""
    read_topology: Callable[[], NodeTopology | None] = field(default=_unknown, repr=False)

    @property
    def call_id(self) -> str:
        """The running call's id; empty outside a gang."""
        return id_text("c", self.raw_call_id) if self.raw_call_id else ""

    @property
    def topology(self) -> NodeTopology | None:
        """This node's topology with the gang's GPUs alone, in rank order; None where it is not known."""
        return self.read_topology()

    def should_stop(self) -> bool:
        """True once the gang was asked to end: save and return within the function's ``grace``."""
        return self.stop_requested()

    def progress(self, step: int, total: int = 0) -> None:
        """Marks progress: shown to users and counted as a sign of life. ``total`` 0 means unknown.

        Raises InvalidSpecError for what is no number from 0 to 2**53.
        """
        self.report_progress(_whole("step", step), _whole("total", total))


class _OnDemand:
    """One call's context, made when first asked for: most functions never do."""

    __slots__ = ("_context", "_make")

    def __init__(self, make: Callable[[], Context]) -> None:
        self._make = make
        self._context: Context | None = None

    def get(self) -> Context:
        if self._context is None:
            self._context = self._make()
        return self._context


class _Slot:
    """The context of the call that runs in this process. One runs at a time in a rank; its threads all see it."""

    running: _OnDemand | None = None


def current() -> Context:
    """Returns the running call's context; outside a gang, that of a gang of one in this process."""
    running = _Slot.running
    return running.get() if running is not None else Context(device=_local_device())


def is_call_running() -> bool:
    """Says whether this process is a rank with a call under way."""
    return _Slot.running is not None


def running_call_id() -> str:
    """Returns the id of the call that runs in this process; empty outside a gang."""
    running = _Slot.running
    return running.get().call_id if running is not None else ""


def install(make: Callable[[], Context] | None) -> None:
    """Makes what ``make`` returns the context of the call that runs now; None when no call runs. For the worker."""
    _Slot.running = _OnDemand(make) if make is not None else None


def _whole(name: str, value: int) -> int:
    try:
        whole = int(value)
    except (TypeError, ValueError, OverflowError):
        whole = -1
    if not 0 <= whole <= MAX_STEP:
        raise InvalidSpecError(f"progress: {name}={value!r:.40}: give a number from 0 to 2**53")
    return whole


def _local_device() -> str:
    torch = sys.modules.get("torch")
    return "cuda:0" if torch is not None and torch.cuda.is_available() else "cpu"
