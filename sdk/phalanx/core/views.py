"""What users are shown of calls, gangs, nodes and money: the same in the CLI's ``--json``, the page and the SDK."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.core.messages import Body, ErrorInfo, GpuInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCost:
    """GPU-milliseconds of one phase and their price, a decimal string in ``currency`` of the CostView."""

    phase: str = ""
    gpu_ms: int = 0
    charged: bool = False
    money: str = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostView:
    phases: tuple[PhaseCost, ...] = ()
    gpu_ms: int = 0
    money: str = "0"
    credit: str = "0"
    currency: str = "USD"
    price_per_gpu_hour: str = "0"
    subject: str = ""
    """What the line is about: a call id, a function name, or "total"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    rank: int = 0
    node_id: str = ""
    gpu: str = ""
    gpu_index: int = 0
    pid: int = 0
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """An attempt that failed, after which the call ran or waits again. ``credited``: it is not to be paid."""

    attempt: int = 0
    gang_id: str = ""
    busy_ms: int = 0
    credited: bool = False
    error: str = ""

    def __str__(self) -> str:
        ran = f"ran {self.busy_ms / 1000:.1f} s on {self.gang_id}" if self.busy_ms else f"on {self.gang_id}"
        return f"{self.error} ({ran}{', credited' if self.credited else ''})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallView:
    """One call. ``reason`` says why it waits, or why it ended as it did; times are wall milliseconds, 0 = not yet."""

    call_id: str = ""
    function_id: str = ""
    function: str = ""
    """app/name@version once deployed, module.name otherwise."""
    workspace: str = ""
    user: str = ""
    state: str = ""
    reason: str = ""
    phase: str = ""
    attempt: int = 0
    fence: int = 0
    gang_id: str = ""
    gpus: float = 0
    world_size: int = 0
    direct: bool = False
    placement: str = ""
    submitted_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    busy_ms: int = 0
    ready_ranks: int = 0
    step: int = 0
    queue_position: int = 0
    result: Body = field(default_factory=Body)
    error: ErrorInfo = field(default_factory=ErrorInfo)
    ranks: tuple[RankView, ...] = ()
    cost: CostView = field(default_factory=CostView)
    parent: str = ""
    """The call from inside which this one was made."""
    retries: int = 0
    retries_used: int = 0
    """Failures of the user's own, which alone count against ``retries``; ``attempt`` counts every attempt."""
    deadline_ms: int = 0
    idempotency_key: str = ""
    webhook: str = ""
    """Whom its end is told, and how far that has come; empty: nobody."""
    earlier: tuple[AttemptView, ...] = ()
    """The attempts before the present or last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    info: GpuInfo = field(default_factory=GpuInfo)
    gang_id: str = ""
    function: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    node_id: str = ""
    hostname: str = ""
    state: str = ""
    pool: str = ""
    agent_version: str = ""
    data_address: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    last_seen_ms: int = 0
    gpus: tuple[GpuView, ...] = ()
    reason: str = ""
    """Who cordoned or drains it, and why; or why it is chosen last."""
    drain_until_ms: int = 0
    """Of a node that drains: when calls that still run there are ended."""
    gangs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GangView:
    gang_id: str = ""
    function_id: str = ""
    function: str = ""
    state: str = ""
    workspace: str = ""
    user: str = ""
    world_size: int = 0
    nodes: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    depth: int = 0
    in_flight: int = 0
    idle_ms: int = 0
    placement: str = ""
    created_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberExplanation:
    """One node's part of a gang. ``gpus`` are UUIDs in rank order; the ranks of an ended gang are not known."""

    node_id: str = ""
    first_rank: int = 0
    ranks: int = 0
    gpus: tuple[str, ...] = ()
    equipment: str = ""
    """What its ranks got, as `core.topology.equipment` writes it; empty: not known, or not any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangExplanation:
    gang: GangView = field(default_factory=GangView)
    members: tuple[MemberExplanation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionView:
    """``app/name@version`` as deployed; ``function_id`` is the content it points to."""

    app: str = ""
    name: str = ""
    version: int = 0
    function_id: str = ""
    deployed_ms: int = 0
    calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GangAddress:
    """Where a function's warm gang takes direct calls, and the ticket that opens it; empty ticket = none is warm."""

    gang_id: str = ""
    node_id: str = ""
    unix_path: str = ""
    data_address: str = ""
    fingerprint: str = ""
    ticket: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """Where one node's part of a call's output is: a live agent with a ticket, or a stored segment."""

    node_id: str = ""
    unix_path: str = ""
    data_address: str = ""
    fingerprint: str = ""
    ticket: str = ""
    blob: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInfo:
    """A token as it is listed, never its secret. ``expires_ms`` 0 means that it does not expire."""

    token_id: str = ""
    workspace: str = ""
    user: str = ""
    role: str = ""
    created_ms: int = 0
    expires_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSecret:
    """What a workspace's webhooks are signed with. ``rotated_ms``: since when; until a day later the former one signs
    beside it. ``version`` counts the rotations."""

    secret: str = ""
    version: int = 0
    rotated_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingView:
    """A call that waits. ``place``: in the order in which calls are served, 1 for the first. ``starts_by_ms``: the wall
    time by which it can start at the latest, for all that is known; 0: nobody knows.
    """

    place: int = 0
    call_id: str = ""
    function: str = ""
    workspace: str = ""
    user: str = ""
    account: str = ""
    gpus: float = 0
    priority: int = 0
    preemptible: bool = False
    submitted_ms: int = 0
    reason: str = ""
    starts_by_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountView:
    """What an account, as ``research/@nlp/ada``, holds, and what it may have. ``limit`` 0: no limit. ``share``: of the
    cell, by the resource of which it has most; ``share_before``: on average before now.
    """

    account: str = ""
    weight: float = 0
    gpus: float = 0
    guaranteed: float = 0
    limit: float = 0
    share: float = 0
    share_before: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """``others``: so many more wait, in other workspaces or behind those that are shown."""

    waiting: tuple[WaitingView, ...] = ()
    accounts: tuple[AccountView, ...] = ()
    others: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PastView:
    """The cell after entry ``seq`` of the log, which was made at wall time ``at_ms``. ``calls`` were alive then."""

    at_ms: int = 0
    seq: int = 0
    nodes: tuple[NodeView, ...] = ()
    gangs: tuple[GangView, ...] = ()
    calls: tuple[CallView, ...] = ()
    queue: QueueView = field(default_factory=QueueView)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartView:
    """When a gang could start. ``at_ms``: wall time, 0 where nobody knows. ``ahead``: calls that wait already.
    ``fits_now``: with so many GPUs, fewer than asked for, it would start now.
    """

    now: bool = False
    at_ms: int = 0
    sentence: str = ""
    ahead: int = 0
    fits_now: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """``role``: leader or standby. ``page`` is the dashboard's address."""

    version: str = ""
    cell: str = ""
    role: str = ""
    leader_id: str = ""
    epoch: int = 0
    log_seq: int = 0
    page: str = ""
    simulated_gpus: bool = False
    has_shared_blobs: bool = False
    """False where only nodes of this machine reach the blob folder."""
    started_ms: int = 0
