"""What the data plane tells the rest of the agent, and what it is told of a gang: plain data across two threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from phalanx.core.messages import ErrorInfo
from phalanx.core.states import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSpec:
    """Another node of the gang, as its lead reaches it. ``fingerprint``: SHA-256 of its certificate, in hex."""

    node_id: str
    data_address: str
    fingerprint: str
    ticket: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSpec:
    """All that relaying for a gang needs. ``peers`` are the other nodes in rank order, on the lead alone."""

    gang_id: str
    fence: int
    function_id: str
    keeper_socket: Path
    lead: bool
    peers: tuple[PeerSpec, ...] = ()
    returns_all: bool = False
    streams: bool = False
    """Its function is a generator: its calls are streams."""
    timeout_ms: int = 0
    grace_ms: int = 3000
    gpus_may_fail: bool = False
    """Its ranks hold GPUs whose driver tells of faults."""
    call_journal: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSnapshot:
    """Fast facts of one gang. ``busy_ms`` counts since the agent attached; ``call_ids`` are the logged calls held."""

    gang_id: str
    depth: int = 0
    in_flight: int = 0
    idle_ms: int = 0
    p95_wait_ms: int = 0
    step: int = 0
    stall: str = ""
    """Why nothing of its call goes on, while nothing does; else which rank is slow, while one is."""
    debug: bool = False
    """People look at its ranks, or are waited for; ``stall`` says how to get there."""
    paused_ms: int = 0
    """How long its call's time has stood still for that."""
    busy_ms: int = 0
    call_ids: tuple[str, ...] = ()


# ---- events, from the data plane to the agent ----


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperAttached:
    """The keeper said STATE. ``counters`` are its own milliseconds by phase; ``ready``: its ranks are in the group."""

    gang_id: str
    phase: str
    pids: tuple[int, ...]
    keeper_pid: int
    backend: str = ""
    counters: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSaid:
    """A rank's life sign. Rank −1 with ``ready``: every local rank is inside the process group.

    ``pairs``, with ``verified``: local ranks, whether copies came out right, and GB/s.
    """

    gang_id: str
    rank: int
    event: str
    pids: tuple[int, ...] = ()
    backend: str = ""
    step: int = 0
    busy_ms: int = 0
    """How long calls have been at the ranks since the agent attached."""
    pairs: tuple[tuple[int, int, bool, float], ...] = ()
    all_reduce_gbyte_s: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperEnded:
    """The local ranks are gone. ``lost``: the keeper's socket closed without a word."""

    gang_id: str
    clean: bool
    error: ErrorInfo
    counters: tuple[tuple[str, int], ...] = ()
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperStuck:
    """It was told to stop and did not within grace and ten seconds."""

    gang_id: str
    keeper_pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBegan:
    """A logged call runs; for a direct one this makes it logged."""

    gang_id: str
    call_id: str
    attempt: int
    fence: int
    direct: bool
    user: str
    args_bytes: int
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnded:
    """A logged call has its outcome. ``body`` is the result's envelope; empty where the client has it already."""

    gang_id: str
    call_id: str
    attempt: int
    fence: int
    outcome: Outcome
    body: bytes | bytearray | memoryview = field(default=b"", repr=False)
    error: ErrorInfo = field(default_factory=ErrorInfo)
    busy_ms: int = 0
    debug_ms: int = 0
    delivered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTurnedAway:
    """An offered call that did not run here; it may be queued again."""

    gang_id: str
    call_id: str
    attempt: int
    fence: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectEnded:
    """Short direct calls of one (gang, user) since the last report."""

    gang_id: str
    fence: int
    function_id: str
    user: str
    succeeded: int = 0
    failed: int = 0
    busy_ms: int = 0
    call_ids: tuple[str, ...] = ()


PlaneEvent = (
    KeeperAttached | RankSaid | KeeperEnded | KeeperStuck | CallBegan | CallEnded | CallTurnedAway | DirectEnded
)
