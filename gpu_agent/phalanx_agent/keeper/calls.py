"""The calls of one gang on one node: sent ahead, running, finished and not yet acknowledged. Pure bookkeeping.

One call runs at a time, on all local ranks; the next begins when every local rank has replied to the one before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from phalanx.core.frames import Frame, Kind
from phalanx_agent.keeper.lanes import Lane

Body = bytes | bytearray | memoryview
GIVEN_UP_KEPT = 1024


@dataclass(slots=True)
class QueuedCall:
    """A call as the agent sent it. ``fds`` are the keeper's until the call is handed over."""

    id: bytes
    attempt: int
    timeout_ms: int
    meta: dict[str, Any]
    body: Body
    fds: list[int]
    lane: Lane | None = None
    straight: bool = False
    """It came over the lane."""
    told: bool = True
    """The agent knows of it."""
    given: bool = False
    """The rank has it already, while it waits (`ahead`)."""


@dataclass(slots=True)
class Reply:
    """What one rank answered."""

    rank: int
    ok: bool
    meta: dict[str, Any]
    body: Body
    fds: list[int]


@dataclass(slots=True)
class Outcome:
    """A finished call, kept until it is acknowledged. ``frame`` is what the agent is told, as often as it attaches."""

    frame: Frame


@dataclass(slots=True)
class CallBook:
    """``ranks`` local ranks must reply before a call is complete."""

    ranks: int
    queue: deque[QueuedCall] = field(default_factory=deque[QueuedCall])
    running: QueuedCall | None = None
    started_ms: int = 0
    replies: dict[int, Reply] = field(default_factory=dict[int, Reply])
    outcomes: dict[bytes, Outcome] = field(default_factory=dict[bytes, Outcome])
    given_up: deque[bytes] = field(default_factory=lambda: deque[bytes](maxlen=GIVEN_UP_KEPT))
    """Calls of which the agent was told that they never came: they are not taken where a client's still come."""

    def offer(self, call: QueuedCall) -> bool:
        """Queues a call; False when it is known already."""
        if self.knows(call.id):
            return False
        self.queue.append(call)
        return True

    def knows(self, call_id: bytes) -> bool:
        """Says whether the call is here: it waits, runs, or has ended and is not acknowledged."""
        runs = self.running is not None and self.running.id == call_id
        return runs or call_id in self.outcomes or any(c.id == call_id for c in self.queue)

    def begin(self, now_ms: int) -> QueuedCall | None:
        """Makes the next call the running one; None when one runs or none waits."""
        if self.running is not None or not self.queue:
            return None
        self.running = self.queue.popleft()
        self.started_ms = now_ms
        self.replies = {}
        return self.running

    def give_back(self) -> None:
        """The running call did not begin: it waits again, though its memory has gone to the ranks."""
        assert self.running is not None
        self.running.fds = []
        self.running.given = False
        self.queue.appendleft(self.running)
        self.running = None

    def reply(self, reply: Reply) -> bool:
        """Takes one rank's answer; True when it was the last that was missing."""
        self.replies.setdefault(reply.rank, reply)
        return len(self.replies) == self.ranks

    def finish(self, outcome: Outcome) -> None:
        """Ends the running call."""
        assert self.running is not None
        self.outcomes[self.running.id] = outcome
        self.running = None
        self.replies = {}

    def withdraw(self, call_id: bytes) -> QueuedCall | None:
        """Takes a call out of the queue that neither runs nor is at the rank."""
        for call in self.queue:
            if call.id == call_id and not call.given:
                self.queue.remove(call)
                return call
        return None

    def failures(self) -> list[Reply]:
        """Returns the replies of ranks that failed, in the order of their arrival."""
        return [r for r in self.replies.values() if not r.ok]


def result_meta(replies: list[Reply], *, busy_ms: int, all_parts: bool, nodes: int = 1) -> dict[str, Any]:
    """Returns what every RESULT of a gang says, without its memory. One of several nodes tells the lead more."""
    meta: dict[str, Any] = {"busy_ms": busy_ms} if busy_ms else {}
    sequences = {int(r.meta.get("seq", 0)) for r in replies}
    if any(sequences):
        meta["world_seq"] = max(sequences)
    if len(sequences) > 1:
        meta["uneven"] = True
    if nodes > 1:
        meta["seqs"] = {str(r.rank): int(r.meta.get("seq", 0)) for r in replies}
    items = [int(r.meta["items"]) for r in replies if "items" in r.meta]
    if items:
        meta["items"] = max(items)
    if any(r.meta.get("closed") for r in replies):
        meta["closed"] = True
    if all_parts:
        meta["parts"] = [reply_bytes(r) for r in replies]
    return meta


def reply_bytes(reply: Reply) -> int:
    """Returns the size of a reply's envelope, wherever it is."""
    fds = reply.meta.get("fds")
    return int(fds[0]["size"]) if fds else len(reply.body)


def failure_frame(call_id: bytes, *, outcome: str, error: dict[str, Any], busy_ms: int, pickled: Body = b"") -> Frame:
    """Returns the FAILURE of a call."""
    return Frame(Kind.FAILURE, call_id, {"outcome": outcome, "error": error, "busy_ms": busy_ms}, pickled)
