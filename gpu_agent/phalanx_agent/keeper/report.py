"""Who was guilty: from deaths and failures, in the order in which they came, to one error. Pure.

A rank whose peer went away reports an error of the collective library: a victim, whoever spoke first. Where no rank
died and none failed otherwise, there is no such peer, and the first of these errors is the user's own.
"""

from __future__ import annotations

import signal
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from phalanx.core.messages import ErrorInfo, RankFailure
from phalanx.core.states import Cause

_LAST_WORDS = 200
_MISMATCH = "Is there a distributed collective mismatch in your code?"
"""What gloo says before it aborts a rank that was sent more than it waits for."""
_CRASHES = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The end of one rank's process. ``pid`` is the one that the agent sees; ``at_ms`` is wall time."""

    rank: int
    pid: int
    exit_code: int
    signal: int
    at_ms: int
    last_lines: str
    out_of_memory: bool = False
    """The kernel's own count of out-of-memory kills rose while it ran."""
    in_collective: bool = False
    """Its main thread was in torch's own code when it crashed."""

    @property
    def is_mismatch(self) -> bool:
        """The collective library ended it for what another rank, or it itself, did in a collective."""
        if self.signal == signal.SIGABRT:
            return _MISMATCH in self.last_lines
        return self.signal in _CRASHES and self.in_collective

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception that a rank reported. ``peer`` marks one that another rank's end would explain."""

    error: ErrorInfo
    peer: bool
    pickled: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The one error of a failed gang. ``pickled`` is the culprit's exception.

    ``peer``: only victims are known here, and the culprit is on another node, if anywhere.
    """

    error: ErrorInfo
    pickled: bytes = b""
    culprit: int = -1
    peer: bool = False


@dataclass(slots=True)
class Evidence:
    """What happened to the ranks of one gang on one node, in order. Deaths that the keeper caused are left out."""

    node_id: str
    failures: dict[int, Failure] = field(default_factory=dict[int, Failure])
    deaths: dict[int, Death] = field(default_factory=dict[int, Death])
    order: list[Death | Failure] = field(default_factory=list[Death | Failure])
    stacks: dict[int, str] = field(default_factory=dict[int, str])

    def add_failure(self, failure: Failure) -> None:
        if failure.error.rank not in self.failures:
            self.failures[failure.error.rank] = failure
            self.order.append(failure)

    def add_death(self, death: Death) -> None:
        self.deaths[death.rank] = death
        self.order.append(death)

    def forget(self) -> None:
        """After a call that left the gang whole."""
        self.failures.clear()
        self.order = [*self.deaths.values()]

    @property
    def only_peers(self) -> bool:
        """True while nothing but victims is known."""
        return all(isinstance(item, Failure) and item.peer for item in self.order)

    @property
    def only_mismatches(self) -> bool:
        """True while ranks failed in collectives only, and none went away for a reason of its own."""
        return all(item.is_mismatch if isinstance(item, Death) else item.peer for item in self.order)

    def verdict(self, *, during: str, whole: bool = False) -> Verdict:
        """Names the first event that no peer explains. ``during`` ends the sentence about a death.

        ``whole``: every rank of the gang is seen from here, and the group stood before the failure.
        """
        for item in self.order:
            if isinstance(item, Death):
                if not item.is_mismatch:
                    return self._of(item, during, item.rank)
            elif not item.peer:
                return self._of(item, during, item.error.rank)
        if not self.order:
            return Verdict(error=ErrorInfo(cause=Cause.INFRASTRUCTURE, message="the gang ended", node_id=self.node_id))
        shown = next((item for item in self.order if isinstance(item, Death)), self.order[0])
        culprit = shown.rank if isinstance(shown, Death) else shown.error.rank
        told = self._of(shown, during, culprit if whole else -1)
        return told if whole else replace(told, error=replace(told.error, cause=Cause.INFRASTRUCTURE), peer=True)

    def _of(self, item: Death | Failure, during: str, culprit: int) -> Verdict:
        if isinstance(item, Death):
            return self._of_death(item, during, culprit)
        error = replace(item.error, ranks=self.rank_failures(culprit))
        return Verdict(error=error, pickled=item.pickled, culprit=culprit)

    def _of_death(self, death: Death, during: str, culprit: int) -> Verdict:
        error = ErrorInfo(
            cause=death_cause(death),
            type_name="OutOfMemoryError" if death.out_of_memory else "RankDiedError",
            message=death_message(death, during),
            traceback=self.stacks.get(death.rank, ""),
            rank=death.rank,
            node_id=self.node_id,
            exit_code=death.exit_code,
            signal=death.signal,
            ranks=self.rank_failures(culprit),
        )
        return Verdict(error=error, culprit=culprit)

    def rank_failures(self, culprit: int) -> tuple[RankFailure, ...]:
        """Returns one record for each rank that failed or died by itself."""
        return tuple(self._one(rank, culprit) for rank in sorted({*self.failures, *self.deaths}))

    def _one(self, rank: int, culprit: int) -> RankFailure:
        failure, death = self.failures.get(rank), self.deaths.get(rank)
        error = failure.error if failure else ErrorInfo()
        return RankFailure(
            rank=rank,
            node_id=self.node_id,
            culprit=rank == culprit,
            exit_code=death.exit_code if death else error.exit_code,
            signal=death.signal if death else error.signal,
            type_name=error.type_name,
            message=error.message,
            traceback=error.traceback or self.stacks.get(rank, ""),
            last_lines=death.last_lines if death else "",
        )


def death_cause(death: Death) -> Cause:
    """An exit or a crash is the user's; a kill from outside is the infrastructure's, or the memory's."""
    if death.out_of_memory:
        return Cause.OUT_OF_MEMORY
    return Cause.USER_EXCEPTION if death.signal == 0 or death.signal in _CRASHES else Cause.INFRASTRUCTURE


def death_message(death: Death, during: str) -> str:
    if death.out_of_memory:
        return f"rank {death.rank} was killed by the kernel because memory ran out: give it more memory or fewer ranks"
    if death.signal:
        how = f"rank {death.rank} was ended by signal {death.signal} ({signal_name(death.signal)}) {during}"
    else:
        how = f"rank {death.rank}: process exited {death.exit_code} {during}"
    lines = death.last_lines.strip().splitlines()
    return f"{how}; it wrote last: {lines[-1].strip()[-_LAST_WORDS:]}" if lines else how


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def error_to_dict(error: ErrorInfo) -> dict[str, Any]:
    """Returns ``error`` as a JSON object, without its pickled form: that travels as a body."""
    value = asdict(error)
    del value["pickled"]
    return value


def error_from_dict(value: dict[str, Any]) -> ErrorInfo:
    """Reads what `error_to_dict` wrote. Raises TypeError or ValueError on anything else."""
    ranks = tuple(RankFailure(**r) for r in value.get("ranks", ()))
    kinds = tuple(value.get("kinds", ()))
    fields: dict[str, Any] = {**value, "cause": Cause(value["cause"]), "ranks": ranks, "kinds": kinds}
    return ErrorInfo(**fields)
