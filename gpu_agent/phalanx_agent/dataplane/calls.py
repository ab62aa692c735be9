"""What the data plane remembers of calls: the record of each, and the table that answers for it until it is forgotten.

No I/O. An outcome stays until it is acknowledged, or until MAX_KEPT_MS or MAX_KEPT_BYTES push it out.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from phalanx.core.frames import Frame, Kind
from phalanx.core.ids import CallId, id_text
from phalanx.core.states import Outcome

SETTLED_KEPT = 1 << 16
"""Half a minute of the shortest calls: longer than anybody asks what became of one whose connection was lost."""
MAX_KEPT_MS = 10 * 60 * 1000
MAX_KEPT_BYTES = 64 << 20
_RECORD_BYTES = 512
"""What a kept outcome costs besides its body."""


class Origin(Enum):
    """DIRECT: a client's connection waits for it. OFFERED: the control plane does. ADOPTED: found in a keeper."""

    DIRECT = "direct"
    OFFERED = "offered"
    ADOPTED = "adopted"


class Step(Enum):
    QUEUED = "queued"
    SENT = "sent"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class CallRecord:
    """One call at this gang. ``client`` is the connection that waits; ``queue_key`` whom fairness counts it for."""

    id: bytes
    origin: Origin
    queue_key: str
    user: str = ""
    attempt: int = 1
    fence: int = 0
    timeout_ms: int = 0
    body: bytes | bytearray | memoryview = b""
    fds: list[int] = field(default_factory=list[int])
    fds_meta: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    client: Any = None
    lane: int = 0
    """Of the client that sent it, from the keeper."""
    step: Step = Step.QUEUED
    arrived_ns: int = 0
    running_ns: int = 0
    began: bool = False
    """The keeper has said that its ranks have it: one that never began may still go another way."""
    reported: bool = False
    """The control plane was told that it runs."""
    cancel_reason: str = ""
    cancel_by_ns: int = 0
    outcome: Frame | None = None
    finished_ns: int = 0
    busy_ms: int = 0
    debug_ms: int = 0
    """How long its ranks waited for people."""

    @property
    def call_id(self) -> CallId:
        return CallId(id_text("c", self.id))

    @property
    def logged(self) -> bool:
        """The control plane knows this call by its id and waits for its end."""
        return self.origin is Origin.OFFERED or self.reported

    @property
    def body_bytes(self) -> int:
        if not self.fds_meta:
            return len(self.body)
        return len(self.body) + sum(int(f.get("size", 0)) for f in self.fds_meta)

    @property
    def result(self) -> Outcome:
        """How it ended; only where ``outcome`` is there."""
        assert self.outcome is not None
        if self.outcome.kind is Kind.RESULT:
            return Outcome.SUCCEEDED
        return Outcome(str(self.outcome.meta.get("outcome", Outcome.FAILED)))


class CallTable:
    """Every call of one gang that is queued, sent, or finished and not acknowledged. Ids are never run twice."""

    def __init__(self) -> None:
        self._records: dict[bytes, CallRecord] = {}
        self._settled: OrderedDict[bytes, int] = OrderedDict()
        self._given_up: OrderedDict[bytes, None] = OrderedDict()
        self._kept: OrderedDict[bytes, int] = OrderedDict()
        self._kept_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def get(self, call: bytes) -> CallRecord | None:
        return self._records.get(call)

    def add(self, record: CallRecord) -> None:
        self._records[record.id] = record

    def records(self) -> list[CallRecord]:
        return list(self._records.values())

    def finish(self, record: CallRecord, outcome: Frame, now_ns: int) -> None:
        """Keeps the outcome; the arguments are dropped."""
        record.step = Step.FINISHED
        record.outcome = outcome
        record.finished_ns = now_ns
        record.body = b""
        size = _RECORD_BYTES + len(outcome.body) + _fds_bytes(outcome)
        self._kept[record.id] = size
        self._kept_bytes += size

    def settle(self, call: bytes, fence: int) -> None:
        """Nothing is left to do for the call under this fence: an offer of it that still comes is a repetition."""
        self._settled[call] = max(fence, self._settled.pop(call, 0))
        while len(self._settled) > SETTLED_KEPT:
            self._settled.popitem(last=False)

    def give_up(self, call: bytes) -> bool:
        """Says whether a direct call never ran, the same however often: then it will not, whatever still comes."""
        if not self.is_settled(call, 0):
            self.settle(call, 0)
            self._given_up[call] = None
            if len(self._given_up) > SETTLED_KEPT:
                self._given_up.popitem(last=False)
        return call in self._given_up and self._settled[call] == 0

    def is_settled(self, call: bytes, fence: int) -> bool:
        return fence <= self._settled.get(call, -1)

    def forget(self, call: bytes) -> CallRecord | None:
        """Drops a record, and returns it so that its descriptors can be closed."""
        self._kept_bytes -= self._kept.pop(call, 0)
        return self._records.pop(call, None)

    def overdue(self, now_ns: int) -> list[CallRecord]:
        """Returns finished calls that nobody acknowledged within the bounds, oldest first; logged ones never are."""
        out: list[CallRecord] = []
        excess = self._kept_bytes - MAX_KEPT_BYTES
        for call, size in self._kept.items():
            record = self._records[call]
            too_old = now_ns - record.finished_ns > MAX_KEPT_MS * 1_000_000
            if not too_old and excess <= 0:
                break
            if record.logged:
                continue
            out.append(record)
            excess -= size
        return out


def _fds_bytes(frame: Frame) -> int:
    fds = frame.meta.get("fds")
    return sum(int(f.get("size", 0)) for f in fds) if isinstance(fds, list) else 0
