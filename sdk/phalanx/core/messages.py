"""What agent and control plane, SDK and control plane tell each other, as plain data.

`phalanx.wire` maps each class here onto the protobuf message of the same name, field by field; a test keeps the two
in step. Times are milliseconds; sizes bytes. A message names its gang's fence, and the receiver refuses a stale one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.core.spec import FunctionSpec, Retrying
from phalanx.core.states import Cause, GpuState, Outcome, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """Arguments or a result: ``data`` up to 64 KiB, or the name of a blob."""

    data: bytes = b""
    blob: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTerms:
    """What one call asks for instead of what its function does. The deadline is counted from the submission, or is a
    wall time; 0: none.
    """

    own_retries: bool = False
    """``retries`` and ``retrying`` stand for the function's."""
    retries: int = 0
    retrying: Retrying = field(default_factory=Retrying)
    deadline_in_ms: int = 0
    deadline_wall_ms: int = 0
    idempotency_key: str = ""
    webhook: str = ""
    """Who is told of its end, instead of whom its function names."""
    map_id: str = ""
    """What it is a part of, for whom the webhook tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """What is known of one rank of a failed gang."""

    rank: int = -1
    node_id: str = ""
    culprit: bool = False
    exit_code: int = 0
    signal: int = 0
    type_name: str = ""
    message: str = ""
    traceback: str = ""
    last_lines: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """Why an attempt ended: always as text, and as the pickled exception where that survived a round trip."""

    cause: Cause = Cause.USER_EXCEPTION
    type_name: str = ""
    message: str = ""
    traceback: str = ""
    """With the cause chain, without the platform's own frames."""
    rank: int = -1
    node_id: str = ""
    exit_code: int = 0
    signal: int = 0
    pickled: bytes = b""
    ranks: tuple[RankFailure, ...] = ()
    kinds: tuple[str, ...] = ()
    """What was raised, as `core.kinds` tells it; empty: no exception of the user's."""

    def __bool__(self) -> bool:
        """False where it says nothing: there was no error."""
        return self != _NO_ERROR


_NO_ERROR = ErrorInfo()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInfo:
    uuid: str = ""
    index: int = 0
    model: str = ""
    memory_bytes: int = 0
    simulated: bool = False
    state: GpuState = GpuState.FREE
    reason: str = ""
    cordon: bool = False
    """QUARANTINED for what the hardware reported, of which a pool bears only so much; without, the state is a fact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """A node as its agent describes it. ``data_address`` is host:port of the TLS data plane; a played node has none."""

    node_id: str = ""
    hostname: str = ""
    boot_id: str = ""
    agent_epoch: int = 0
    agent_version: str = ""
    python: str = ""
    torch: str = ""
    data_address: str = ""
    unix_path: str = ""
    fingerprint: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    pool: str = "default"
    gpus: tuple[GpuInfo, ...] = ()
    topology: str = ""
    """JSON as `core.topology.codec` writes it, with ``gpus`` of the same UUIDs; empty: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One node's part of a gang: contiguous ranks from ``first_rank``; ``gpus`` are UUIDs in rank order."""

    node_id: str = ""
    first_rank: int = 0
    ranks: int = 1
    gpus: tuple[str, ...] = ()
    share: float = 1
    """Part of each GPU that is leased: below 1 only for single-rank functions."""
    data_address: str = ""
    fingerprint: str = ""


# ---- control plane → agent ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Answers Hello. ``ticket_key`` checks the tickets that the control plane signs for this node."""

    ticket_key: bytes = b""
    report_every_ms: int = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Make ready: code, environment, clean GPUs. The lead binds the rendezvous socket; the others connect to it."""

    gang_id: str = ""
    fence: int = 0
    function_id: str = ""
    function: FunctionSpec = field(default_factory=lambda: FunctionSpec(name="unset"))
    workspace: str = ""
    user: str = ""
    members: tuple[Member, ...] = ()
    node_rank: int = 0
    rendezvous: str = ""
    """host:port of the lead's socket; empty in the lead's own message."""
    placement: str = ""
    """One sentence: why these GPUs."""
    networks_differ: str = ""
    """Why the gang's nodes have only plain sockets in common; empty where they have more, or nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Fork the ranks. ``peer_tickets``, for the lead alone, open the other members' data planes, in their order."""

    gang_id: str = ""
    fence: int = 0
    rendezvous: str = ""
    peer_tickets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the gang. With ``drain`` calls in flight finish first; without, SIGTERM, grace, SIGKILL."""

    gang_id: str = ""
    fence: int = 0
    reason: str = ""
    drain: bool = False
    grace_ms: int = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Put a durable call into the gang's admission queue. Offering twice is harmless."""

    call_id: str = ""
    attempt: int = 1
    fence: int = 0
    gang_id: str = ""
    args: Body = field(default_factory=Body)
    timeout_ms: int = 0
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelCall:
    call_id: str = ""
    gang_id: str = ""
    attempt: int = 0
    grace_ms: int = 3000
    fence: int = 0
    """The call's, so that an agent that never got the offer can say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Everything up to ``seq`` of this agent is durable and may be forgotten."""

    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeToken:
    token_id: str = ""


ToAgent = Welcome | Prepare | Start | Stop | Offer | CancelCall | Ack | RevokeToken


# ---- agent → control plane ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """Milliseconds so far, never a difference: losing, doubling or reordering reports cannot change a bill."""

    gpu: str = ""
    phase: Phase = Phase.BUSY
    ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GangFacts:
    """Fast facts of one gang on one node; lossy by contract. ``state`` is the agent's own word for it."""

    gang_id: str = ""
    fence: int = 0
    state: str = ""
    depth: int = 0
    in_flight: int = 0
    idle_ms: int = 0
    p95_wait_ms: int = 0
    step: int = 0
    counters: tuple[Counter, ...] = ()
    call_ids: tuple[str, ...] = ()
    """Calls that the agent holds: queued, running, or finished and not yet acknowledged."""
    stall: str = ""
    """Why nothing of the running call goes on, while nothing does; else which rank is slow, while one is."""
    debug: bool = False
    """Its ranks wait for people, or are looked at by them; ``stall`` says how to get there."""
    paused_ms: int = 0
    """How long the running call's time has stood still for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectCalls:
    """Direct calls of one gang that ended within 200 ms, together. Ids and milliseconds run in parallel."""

    gang_id: str = ""
    fence: int = 0
    function_id: str = ""
    user: str = ""
    succeeded: int = 0
    failed: int = 0
    busy_ms: int = 0
    call_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """First on every session. ``gangs`` are what the agent holds, adopted keepers included."""

    node: NodeInfo = field(default_factory=NodeInfo)
    gangs: tuple[GangFacts, ...] = ()
    protocol: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Every 2 s: the lease renewal, and the fast facts."""

    gangs: tuple[GangFacts, ...] = ()
    gpus: tuple[GpuInfo, ...] = ()
    topology: str = ""
    """As in NodeInfo, for some seconds after it has changed; empty: as told before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """The agent ends for good and holds no gang any more: the node is forgotten, instead of missed."""

    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectReport:
    calls: tuple[DirectCalls, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPrepared:
    gang_id: str = ""
    fence: int = 0
    rendezvous: str = ""
    error: str = ""
    """Why it could not; the gang is returned whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReady:
    gang_id: str = ""
    fence: int = 0
    pids: tuple[int, ...] = ()
    backend: str = ""
    equipment: str = ""
    """What the ranks got, as `core.topology.equipment` writes it; empty: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEnded:
    """The node's ranks are gone and its GPUs proved clean, or ``quarantined`` names those that are not."""

    gang_id: str = ""
    fence: int = 0
    clean: bool = True
    error: ErrorInfo = field(default_factory=ErrorInfo)
    counters: tuple[Counter, ...] = ()
    quarantined: tuple[GpuInfo, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStarted:
    """A call runs. For a direct one (attempt 1, fence 0) this is the first the control plane hears of it."""

    call_id: str = ""
    attempt: int = 1
    fence: int = 0
    gang_id: str = ""
    direct: bool = False
    user: str = ""
    args_bytes: int = 0
    timeout_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFinished:
    call_id: str = ""
    attempt: int = 1
    fence: int = 0
    gang_id: str = ""
    outcome: Outcome = Outcome.SUCCEEDED
    result: Body = field(default_factory=Body)
    error: ErrorInfo = field(default_factory=ErrorInfo)
    busy_ms: int = 0
    delivered: bool = False
    """A direct call whose result the client has acknowledged: nothing to store."""
    debug_ms: int = 0
    """How long its ranks waited for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRefused:
    """An offer that the gang cannot take (draining, unknown, full): queue it again, nothing ran."""

    call_id: str = ""
    attempt: int = 0
    fence: int = 0
    gang_id: str = ""
    reason: str = ""


FromAgent = (
    Hello
    | Report
    | DirectReport
    | MemberPrepared
    | MemberReady
    | MemberEnded
    | CallStarted
    | CallFinished
    | CallRefused
    | Leave
)
