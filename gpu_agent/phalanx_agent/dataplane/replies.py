"""Putting one call's answers from several nodes together: one value, or one guilty rank. Pure.

A call has succeeded when every node's keeper said RESULT. It has failed as soon as one said FAILURE; what the others
say within the time that follows decides which of the failures is the culprit's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from phalanx.core.collectives import DEFAULT_GROUP, RankState, from_dict
from phalanx.core.frames import Frame, Kind
from phalanx.core.messages import ErrorInfo
from phalanx.core.states import Outcome
from phalanx_agent.blame import judged
from phalanx_agent.dataplane.bodies import read_body
from phalanx_agent.dataplane.failures import choose_culprit, error_from_meta, failure, infrastructure, is_victim

AFTER_FAILURE_MS = 1500
"""How long the others' failures may still come before the outcome is told."""


@dataclass(slots=True)
class Replies:
    """Answers of ``nodes`` nodes, in rank order; index 0 is the lead's own keeper."""

    nodes: int
    frames: dict[int, Frame] = field(default_factory=dict[int, Frame])
    errors: list[ErrorInfo] = field(default_factory=list[ErrorInfo])
    outcome: Outcome = Outcome.FAILED
    failed_ns: int = 0
    gone: set[int] = field(default_factory=set[int])
    began: bool = False
    peer: ErrorInfo | None = None
    """The first error of a rank that its keeper takes for a victim's."""
    states: dict[int, list[RankState]] = field(default_factory=dict[int, list[RankState]])
    """Where each node's ranks stood when it failed."""

    def add(self, node: int, frame: Frame, now_ns: int, node_id: str) -> None:
        if node in self.frames:
            return
        self.frames[node] = frame
        self.states[node] = _states(frame, node_id)
        if frame.kind is Kind.FAILURE:
            pickled = bytes(read_body(frame))
            error = error_from_meta(frame.meta.get("error"), pickled=pickled, node_id=node_id)
            if frame.meta.get("peer"):
                self.peer = self.peer or error
                error = replace(error, exit_code=0, signal=0)  # the collective library ended it
            self._failed(error, now_ns)
            outcome = Outcome(str(frame.meta.get("outcome", Outcome.FAILED)))
            if outcome is not Outcome.FAILED:
                self.outcome = outcome

    def node_gone(self, node: int, error: ErrorInfo | None, now_ns: int, *, may_have_run: bool = False) -> None:
        """The node's ranks ended; ``error`` says why, None where they were told to. They may have returned before."""
        self.gone.add(node)
        self.began = self.began or may_have_run
        former = self.frames.get(node)
        if error is not None and (former is None or former.kind is Kind.RESULT):
            self._failed(error, now_ns)

    @property
    def never_ran(self) -> bool:
        """No node said anything of this call, and every keeper that ended would have."""
        return not self.frames and not self.began

    @property
    def failed(self) -> bool:
        return self.failed_ns > 0

    def complete(self, now_ns: int) -> bool:
        """Says whether the outcome can be told."""
        if all(i in self.frames or i in self.gone for i in range(self.nodes)):
            return True
        return self.failed and now_ns - self.failed_ns > AFTER_FAILURE_MS * 1_000_000

    @property
    def uneven(self) -> bool:
        """All succeeded, but the nodes' ranks ran different numbers of collectives: the gang is not used again."""
        counts = {int(f.meta.get("world_seq") or 0) for f in self.frames.values()}
        return not self.errors and (len(counts) > 1 or any(f.meta.get("uneven") for f in self.frames.values()))

    def combine(self, call: bytes, *, returns_all: bool) -> Frame:
        """Returns the one frame that the caller gets."""
        busy_ms = max((int(f.meta.get("busy_ms", 0)) for f in self.frames.values()), default=0)
        if self.errors or len(self.frames) < self.nodes:
            return failure(call, self.outcome, self._blamed(), busy_ms=busy_ms)
        first = self.frames[0]
        if not returns_all:
            return first
        bodies = [read_body(self.frames[i]) for i in range(self.nodes)]
        parts = [int(n) for i in range(self.nodes) for n in self.frames[i].meta.get("parts") or [len(bodies[i])]]
        meta: dict[str, Any] = {k: v for k, v in first.meta.items() if k not in ("fds", "parts")}
        return Frame(Kind.RESULT, call, {**meta, "busy_ms": busy_ms, "parts": parts}, b"".join(bodies))

    def _blamed(self) -> ErrorInfo:
        if not self.errors:
            return infrastructure("the gang ended while the call ran")
        chosen = choose_culprit(self.errors)
        if self.peer is None or len(self.frames) < self.nodes or not all(is_victim(e) for e in self.errors):
            return chosen
        known = all(self.states.get(node) for node in range(self.nodes))
        states = [s for node in range(self.nodes) for s in self.states.get(node, ())] if known else []
        return judged(replace(self.peer, ranks=chosen.ranks), states)

    def _failed(self, error: ErrorInfo, now_ns: int) -> None:
        self.errors.append(error)
        self.failed_ns = self.failed_ns or max(1, now_ns)


def _states(frame: Frame, node_id: str) -> list[RankState]:
    """Returns the node's ranks as they stood when they failed, or when all had returned."""
    try:
        if frame.kind is Kind.RESULT:
            counts: dict[str, int] = frame.meta.get("seqs") or {}
            return [_returned(int(rank), node_id, int(count)) for rank, count in counts.items()]
        return [from_dict(s) for s in frame.meta.get("states") or ()]
    except (KeyError, TypeError, ValueError):
        return []


def _returned(rank: int, node_id: str, count: int) -> RankState:
    counts = {DEFAULT_GROUP: count}
    return RankState(rank=rank, node_id=node_id, replied=True, answered=True, entered=counts, completed=counts)
