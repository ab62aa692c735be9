"""What the control plane knows, as a still picture: immutable records in persistent maps.

Counters such as "free GPUs" are never stored: they are derived from leases, so they cannot drift. Times are
milliseconds of the log's own clock (`log_ms`) unless the name says wall.
"""

from __future__ import annotations

from typing import Any

import msgspec
from immutables import Map

from phalanx.core.messages import ErrorInfo, Member, NodeInfo
from phalanx.core.spec import FunctionSpec, Retrying
from phalanx.core.states import CallState, GangState, GpuState, NodeState
from phalanx.core.webhooks import receiver_of
from phalanx_control.state.ordered import Tree, build
from phalanx_control.state.touched import Touched
from phalanx_control.state.untold import Untold
from phalanx_control.state.untold import build as build_untold

SCHEMA_VERSION = 8
"""What this program reads. `schemas.SINCE` says which kinds came with which version."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The base of everything that the log carries; stored as JSON with defaults left out."""


class BodyRef(Record, frozen=True):
    """Where a body is: a key of the store, written by the same append, or a blob. Never the bytes."""

    key: str = ""
    blob: str = ""
    size: int = 0


class Owner(Record, frozen=True):
    """The path that every call, event and bill names. ``workspace`` is the tenant."""

    workspace: str = "default"
    user: str = ""
    token_id: str = ""


class Function(Record, frozen=True):
    id: str
    owner: Owner
    spec: FunctionSpec


class App(Record, frozen=True):
    """One version at a time: names map to function ids, replaced together."""

    name: str
    workspace: str
    version: int
    functions: dict[str, str]
    deployed_wall_ms: int


class Token(Record, frozen=True):
    """``sha256`` is of the secret, which is not kept."""

    id: str
    sha256: str
    owner: Owner
    role: str
    created_wall_ms: int
    expires_wall_ms: int = 0


class Delivery(Record, frozen=True):
    """How far the telling of a call's end has come. ``status``: what the receiver answered last; 0: nothing."""

    attempts: int = 0
    status: int = 0
    error: str = ""
    over: str = ""
    """Why no more is tried: delivered, refused or given up; empty: the next attempt is due at ``next_wall_ms``."""
    next_wall_ms: int = 0


class Spent(Record, frozen=True):
    """A former attempt of a call: how long it ran, and that this is not to be paid; and how it failed, in one line."""

    gang_id: str
    busy_ms: int
    credited: bool = False
    attempt: int = 0
    error: str = ""


class Call(Record, frozen=True):
    id: str
    function_id: str
    owner: Owner
    state: CallState = CallState.QUEUED
    args: BodyRef = BodyRef()
    timeout_ms: int = 0
    direct: bool = False
    attempt: int = 0
    """Attempts begun; the current one while assigned or running."""
    fence: int = 0
    """Strictly rising over all attempts of this call."""
    gang_id: str = ""
    tries: dict[str, int] = {}
    """Failed attempts by cause."""
    reason: str = ""
    result: BodyRef = BodyRef()
    error: ErrorInfo | None = None
    error_body: BodyRef = BodyRef()
    cancelled_by: str = ""
    cancelling_ms: int = 0
    gangs_killed: tuple[str, ...] = ()
    """Gangs that died while running this call; three make it POISON."""
    submitted_ms: int = 0
    submitted_wall_ms: int = 0
    not_before_ms: int = 0
    """A retry waits until then."""
    assigned_ms: int = 0
    started_ms: int = 0
    started_wall_ms: int = 0
    ended_ms: int = 0
    ended_wall_ms: int = 0
    busy_ms: int = 0
    spent: tuple[Spent, ...] = ()
    """By attempts before the present one."""
    debug_ms: int = 0
    """How long its ranks waited for people."""
    placement: str = ""
    made_gangs: tuple[str, ...] = ()
    """Gangs that were started for it."""
    retries: int | None = None
    """Its own number, and way, of retries; None: the function's."""
    retrying: Retrying | None = None
    deadline_ms: int = 0
    overdue: bool = False
    """It is being ended for its deadline, not for somebody who cancelled it."""
    key: str = ""
    """The idempotency key, as its caller gave it."""
    parent: str = ""
    """The call from inside which it was made, as its caller said."""
    webhook: str = ""
    """The address that is told of its end. ``map_id``: what it is a part of, as its caller said."""
    map_id: str = ""
    delivery: Delivery | None = None
    """None: it has not ended, or nobody is told."""


class WebhookKey(Record, frozen=True):
    """Which of a workspace's secrets signs its webhooks. The secret itself is derived from the cell's, and not here."""

    version: int
    rotated_wall_ms: int


class KeyUse(Record, frozen=True):
    """What an idempotency key stands for, until it is forgotten. ``args_sha256``: of the first call's arguments."""

    call_id: str
    args_sha256: str
    until_ms: int


class MemberState(Record, frozen=True):
    """One node's part of a gang, and how far it has come."""

    member: Member
    prepared: bool = False
    ready: bool = False
    ended: bool = False
    pids: tuple[int, ...] = ()
    equipment: str = ""
    """What its ranks got, for people: JSON as `phalanx.core.topology.equipment` writes it."""


class Gang(Record, frozen=True):
    """A gang is its lease: ``fence`` rises over all gangs of the cell, and names the lease everywhere."""

    id: str
    fence: int
    function_id: str
    owner: Owner
    members: tuple[MemberState, ...]
    state: GangState = GangState.RESERVED
    rendezvous: str = ""
    placement: str = ""
    backend: str = ""
    for_call: str = ""
    """The call that made it start, and that its start phases are shown with."""
    calls: tuple[str, ...] = ()
    """Logged calls assigned to it and not ended."""
    last_call: str = ""
    """The one that left it last."""
    stop_reason: str = ""
    drain: bool = False
    """While DRAINING: calls in flight may finish first."""
    error: ErrorInfo | None = None
    created_ms: int = 0
    created_wall_ms: int = 0
    state_since_ms: int = 0

    @property
    def lead(self) -> str:
        return self.members[0].member.node_id

    @property
    def world_size(self) -> int:
        return sum(m.member.ranks for m in self.members)


class GpuMark(Record, frozen=True):
    """A GPU that is not simply free or leased."""

    state: GpuState
    reason: str
    since_ms: int


class Blame(Record, frozen=True):
    """A gang died on a node for a cause that is not its user's. ``call_id``: what it ran, or else was made for."""

    gang_id: str
    function_id: str
    call_id: str
    reason: str
    at_ms: int


class Cordon(Record, frozen=True):
    """Why a node takes nothing new: CORDONED, or DRAINING, when what runs there ends too."""

    state: NodeState
    reason: str = ""
    by: str = ""
    wall_ms: int = 0
    deadline_ms: int = 0
    """Of a node that drains: when calls that still run there are ended."""
    deadline_wall_ms: int = 0


class Node(Record, frozen=True):
    """``state`` says whether it is heard: READY, SUSPECT or LOST. ``cordon`` holds whatever becomes of that."""

    info: NodeInfo
    state: NodeState = NodeState.READY
    marks: dict[str, GpuMark] = {}
    since_ms: int = 0
    direct_epoch: int = 0
    """The agent process whose reports of direct calls were taken last, and the number of its last one."""
    direct_seq: int = 0
    cordon: Cordon | None = None

    @property
    def takes_work(self) -> bool:
        """Says whether new gangs may be placed on it."""
        return self.state is NodeState.READY and self.cordon is None

    @property
    def shown_state(self) -> NodeState:
        """Returns what people are told: a node that is not heard is that first."""
        return self.cordon.state if self.cordon is not None and self.state is NodeState.READY else self.state


class LedgerLine(Record, frozen=True):
    """Counted milliseconds of one lease on one node: the maximum ever reported per (GPU, phase)."""

    gang_id: str
    fence: int
    node_id: str
    function_id: str
    owner: Owner
    for_call: str = ""
    counters: dict[str, int] = {}
    """``"<gpu uuid>/<phase>"`` → milliseconds."""
    gpus: dict[str, str] = {}
    """The leased GPUs: uuid → model, as the node described them when the lease began."""
    share: float = 1
    opened_wall_ms: int = 0
    closed_wall_ms: int = 0
    credited: bool = False
    """Lost to infrastructure: not charged."""
    credited_ms: int = 0
    """Of its busy time on each GPU: attempts that were lost."""


class FiledSum(Record, frozen=True):
    """What ledger lines that left the state add up to, per month of their end and per everything that bills ask for.

    ``per_gpu_second`` is the price that was in force when the leases began: a decimal number, as is ``share``.
    """

    month: str
    """``"2025-11"``, UTC."""
    workspace: str
    user: str
    function_id: str
    node_id: str
    model: str
    sku: str
    phase: str
    share: str
    per_gpu_second: str
    credited: bool = False
    ms: int = 0

    @property
    def key(self) -> str:
        """Names the sum: equal for lines that are added up."""
        parts = (self.month, self.workspace, self.user, self.function_id, self.node_id, self.model, self.sku)
        return "\x1f".join((*parts, self.phase, self.share, self.per_gpu_second, str(int(self.credited))))


class Usage(Record, frozen=True):
    """What a user's ended gangs had, in units times milliseconds, each of them forgotten by half in a half-life, as it
    was at ``at_ms``.
    """

    gpus: int = 0
    cpus: int = 0
    memory_gb: int = 0
    at_ms: int = 0


class FunctionStats(Record, frozen=True):
    """What direct calls too short to be logged one by one add up to."""

    direct_succeeded: int = 0
    direct_failed: int = 0
    direct_busy_ms: int = 0
    logged: int = 0


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Everything. ``seq`` is the log entry that it reflects; equal logs fold to equal states."""

    seq: int = 0
    log_ms: int = 0
    epoch: int = 0
    next_fence: int = 1
    took_over_ms: int = 0
    """log_ms at which the present leader began."""
    functions: Map[str, Function] = Map()
    apps: Map[str, App] = Map()
    """Keyed ``workspace/app``."""
    tokens: Map[str, Token] = Map()
    join_tokens: Map[str, int] = Map()
    """sha256 of a join token → wall ms at which it expires; 0 never expires, and may be used again and again."""
    nodes: Map[str, Node] = Map()
    fabric: str = ""
    """The network between nodes, as JSON; "" where nobody has said."""
    calls: Map[str, Call] = Map()
    """Live calls and recently ended ones."""
    queue: Map[str, int] = Map()
    """Ids of QUEUED calls → when they count as submitted, for their priority: see `amounts.standing_of`."""
    ended: Map[str, int] = Map()
    """Ids of terminal calls still held here → ended_ms."""
    gangs: Map[str, Gang] = Map()
    """Gangs that are not RELEASED or LOST, or whose members have not all ended."""
    ledger: Map[str, LedgerLine] = Map()
    """Keyed ``gang_id/node_id``."""
    filed: Map[str, FiledSum] = Map()
    """Sums of the ledger's lines that are in files, by `FiledSum.key`."""
    schema: int = 1
    """The newest schema version among the events folded: who reads a snapshot of this must know it."""
    stats: Map[str, FunctionStats] = Map()
    """By function id."""
    policy: str = ""
    """Who gets how much, as JSON; "" where nobody has said."""
    blames: Map[str, tuple[Blame, ...]] = Map()
    """By node: the newest deaths of gangs there, oldest first; `state.blames` says what they mean."""
    usage: Map[str, Usage] = Map()
    """What gangs that ended had, by `queries.usage_name`; kept while there is a policy."""
    lines: Map[str, Map[str, Tree]] = Map()
    """Derived from ``queue``: function id → user → their QUEUED calls in order. Not in snapshots: made again from the
    calls."""
    lease_nodes: Map[str, tuple[str, ...]] = Map()
    """Derived from ``ledger``: gang id → nodes that it has lines of, sorted."""
    children: Map[str, Tree] = Map()
    """Derived from ``calls``: parent → the calls that were made from inside it, in order of their submission."""
    keys: Map[str, KeyUse] = Map()
    """Idempotency keys in use, by `queries.key_name`."""
    keys_line: Tree | None = None
    """Derived from ``keys``: their names, the one to be forgotten first leading."""
    deadlines: Tree | None = None
    """Derived from ``calls``: live ones with a deadline, the nearest leading."""
    ended_line: Tree | None = None
    """Derived from ``ended``: terminal calls, the one that ended first leading."""
    webhook_keys: Map[str, WebhookKey] = Map()
    """By workspace; none: version 0."""
    untold: Untold = Untold()
    """Derived from ``calls``: those whose end is to be told, by receiver."""
    touched: Touched = Touched()
    """Derived from the events: the gangs whose records changed lately."""


def to_jsonable(state: State) -> dict[str, Any]:
    """Returns ``state`` as plain JSON types, with sorted keys, for snapshots and comparison."""
    out: dict[str, Any] = {}
    for name in State.__struct_fields__:
        value = getattr(state, name)
        if name in _DERIVED or (name in _LATER and not value):
            continue
        if isinstance(value, Map):
            out[name] = {k: msgspec.to_builtins(value[k]) for k in sorted(value)}
        else:
            out[name] = value
    return out


_DERIVED = frozenset({"lines", "lease_nodes", "children", "keys_line", "deadlines", "ended_line", "untold", "touched"})
_LATER = frozenset({"fabric", "keys", "webhook_keys", "policy", "usage", "blames"})
"""Left out while empty: readers of the schema versions before do not know them."""
_MAPS: dict[str, Any] = {
    "functions": Function,
    "apps": App,
    "tokens": Token,
    "join_tokens": int,
    "nodes": Node,
    "calls": Call,
    "queue": int,
    "ended": int,
    "gangs": Gang,
    "ledger": LedgerLine,
    "filed": FiledSum,
    "stats": FunctionStats,
    "keys": KeyUse,
    "webhook_keys": WebhookKey,
    "usage": Usage,
    "blames": tuple[Blame, ...],
}


def from_jsonable(data: dict[str, Any]) -> State:
    """Reads what :func:`to_jsonable` wrote. Raises msgspec.ValidationError on anything else."""
    values = dict(data)
    for name, kind in _MAPS.items():
        values[name] = Map(msgspec.convert(values.get(name, {}), dict[str, kind]))
    values["lines"] = _lines(values["calls"], values["queue"])
    values["lease_nodes"] = _lease_nodes(values["ledger"])
    values["children"] = _children(values["calls"])
    values["keys_line"] = build((use.until_ms, name) for name, use in values["keys"].items())
    live = (call for call in values["calls"].values() if call.deadline_ms and not call.state.terminal)
    values["deadlines"] = build((call.deadline_ms, call.id) for call in live)
    untold = (call for call in values["calls"].values() if call.delivery is not None and not call.delivery.over)
    values["untold"] = build_untold(
        (receiver_of(call.webhook), (call.delivery.next_wall_ms, call.id)) for call in untold
    )
    values["ended_line"] = build((ms, call_id) for call_id, ms in values["ended"].items())
    return State(**values)


def _lines(calls: Map[str, Call], queue: Map[str, int]) -> Map[str, Map[str, Tree]]:
    keys: dict[str, dict[str, list[tuple[int, str]]]] = {}
    for call_id, standing_ms in queue.items():
        call = calls[call_id]
        keys.setdefault(call.function_id, {}).setdefault(call.owner.user, []).append((standing_ms, call_id))
    return Map({function_id: Map(_trees(by_user)) for function_id, by_user in keys.items()})


def _trees(keys: dict[str, list[tuple[int, str]]]) -> dict[str, Tree]:
    trees = {name: build(found) for name, found in keys.items()}
    return {name: tree for name, tree in trees.items() if tree is not None}


def _children(calls: Map[str, Call]) -> Map[str, Tree]:
    keys: dict[str, list[tuple[int, str]]] = {}
    for call in calls.values():
        if call.parent:
            keys.setdefault(call.parent, []).append((call.submitted_ms, call.id))
    return Map(_trees(keys))


def _lease_nodes(ledger: Map[str, LedgerLine]) -> Map[str, tuple[str, ...]]:
    nodes: dict[str, tuple[str, ...]] = {}
    for line in ledger.values():
        nodes[line.gang_id] = tuple(sorted((*nodes.get(line.gang_id, ()), line.node_id)))
    return Map(nodes)
