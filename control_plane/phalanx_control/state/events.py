"""What has happened. The log holds nothing else; `apply` folds these, in order, into the state.

An event says a fact, in the past tense, with everything `apply` needs. A kind is never changed once released: a new
need is a new kind, and a reader that meets an unknown one refuses to lead. `SINCE` says which schema version brought a
kind; a leader writes it only when every live replica reads that version.
"""

from __future__ import annotations

import msgspec

from phalanx.core.messages import ErrorInfo, NodeInfo
from phalanx.core.spec import FunctionSpec, Retrying
from phalanx.core.states import GpuState, NodeState
from phalanx_control.state.model import App, BodyRef, Call, Cordon, FiledSum, Function, Gang, KeyUse, Record, Token


class Event(Record, frozen=True, tag_field="kind"):
    """The base. The tag is the class name."""


class LeaderTookOver(Event, frozen=True, tag=True):
    epoch: int
    leader_id: str


# ---- functions, apps, tokens ----


class FunctionRegistered(Event, frozen=True, tag=True):
    function: Function


class AppDeployed(Event, frozen=True, tag=True):
    app: App


class TokenCreated(Event, frozen=True, tag=True):
    token: Token


class TokenRevoked(Event, frozen=True, tag=True):
    token_id: str


class JoinTokenCreated(Event, frozen=True, tag=True):
    sha256: str
    expires_wall_ms: int


class JoinTokenUsed(Event, frozen=True, tag=True):
    sha256: str
    node_id: str


# ---- nodes ----


class NodeJoined(Event, frozen=True, tag=True):
    """New, back, or changed: the description replaces the former one, marks and leases stay."""

    info: NodeInfo


class NodeStateChanged(Event, frozen=True, tag=True):
    node_id: str
    state: NodeState
    reason: str = ""


class NodeLeft(Event, frozen=True, tag=True):
    """Its agent ended for good, and no gang has a member there any more: forgotten, until it should join again."""

    node_id: str


class NodeCordoned(Event, frozen=True, tag=True):
    """It takes nothing new from now on, or drains; in place of what was said before."""

    node_id: str
    cordon: Cordon


class NodeUncordoned(Event, frozen=True, tag=True):
    node_id: str
    by: str = ""


class GpuMarked(Event, frozen=True, tag=True):
    """QUARANTINED, EXTERNAL, DOWN with a reason; FREE removes the mark."""

    node_id: str
    gpu: str
    state: GpuState
    reason: str = ""


class PolicySet(Event, frozen=True, tag=True):
    """``policy`` as JSON; "" forgets it."""

    policy: str


class FabricSet(Event, frozen=True, tag=True):
    """The network between nodes, as `phalanx.core.topology.fabric_codec` writes it; "" where it is forgotten.

    Readers refuse facts that they do not know: a new one in it needs a new kind.
    """

    fabric: str


# ---- calls ----


class CallAccepted(Event, frozen=True, tag=True):
    """Durable, queued, and promised to reach a terminal state."""

    call: Call


class CallWaits(Event, frozen=True, tag=True):
    """The stored reason changed."""

    call_id: str
    reason: str


class CallAssigned(Event, frozen=True, tag=True):
    call_id: str
    gang_id: str
    attempt: int
    fence: int
    placement: str = ""


class CallRan(Event, frozen=True, tag=True):
    """ASSIGNED → RUNNING; for a direct call the first event there is, with ``call`` set."""

    call_id: str
    attempt: int
    fence: int
    wall_ms: int
    call: Call | None = None


class CallRequeued(Event, frozen=True, tag=True):
    """The attempt ended without a result and the call goes on: ``cause`` is counted, unless it is empty."""

    call_id: str
    cause: str = ""
    reason: str = ""
    not_before_ms: int = 0
    killed_gang: str = ""


class CallSucceeded(Event, frozen=True, tag=True):
    call_id: str
    fence: int
    result: BodyRef
    busy_ms: int
    wall_ms: int


class CallFailed(Event, frozen=True, tag=True):
    """FAILED, or TIMED_OUT where ``timed_out``."""

    call_id: str
    fence: int
    error: ErrorInfo
    error_body: BodyRef = BodyRef()
    busy_ms: int = 0
    timed_out: bool = False
    wall_ms: int = 0


class CallCancelling(Event, frozen=True, tag=True):
    call_id: str
    by: str


class WebhookTry(Record, frozen=True):
    """One attempt to tell a call's end; the fields are those of `Delivery`."""

    call_id: str
    status: int = 0
    error: str = ""
    over: str = ""
    next_wall_ms: int = 0


class WebhooksTried(Event, frozen=True, tag=True):
    tries: tuple[WebhookTry, ...]


class WebhookSecretRotated(Event, frozen=True, tag=True):
    """``version`` names the secret that signs from now on; the one before it does so for a day more."""

    workspace: str
    version: int
    wall_ms: int


class CallCancelled(Event, frozen=True, tag=True):
    call_id: str
    wall_ms: int
    busy_ms: int = 0


class CallOverdue(Event, frozen=True, tag=True):
    """Its deadline passed while a gang had it: the agent is asked to end it, and then it TIMED_OUT."""

    call_id: str


class KeyTaken(Event, frozen=True, tag=True):
    """An idempotency key, named as in the state, stands for a call that was accepted with it."""

    name: str
    use: KeyUse


class KeysForgotten(Event, frozen=True, tag=True):
    """Their time is over: the next call with one of them is a new call."""

    names: tuple[str, ...]


class CallsArchived(Event, frozen=True, tag=True):
    """Terminal calls that leave the state; the archive and the log's history keep them."""

    call_ids: tuple[str, ...]


class DirectCallsCounted(Event, frozen=True, tag=True):
    """Direct calls that ended within 200 ms, per report."""

    gang_id: str
    function_id: str
    user: str
    succeeded: int
    failed: int
    busy_ms: int
    call_ids: tuple[str, ...] = ()


class DirectReportTaken(Event, frozen=True, tag=True):
    """The counts beside it came with this report of an agent process: up to it, a repetition counts nothing."""

    node_id: str
    agent_epoch: int
    seq: int


class StaleRefused(Event, frozen=True, tag=True):
    """A report under an old fence: it changed nothing, and is kept as evidence."""

    node_id: str
    what: str
    subject: str
    fence: int


# ---- gangs ----


class GangReserved(Event, frozen=True, tag=True):
    """All GPUs or none. Each member's node is asked to prepare."""

    gang: Gang


class MemberWasPrepared(Event, frozen=True, tag=True):
    gang_id: str
    node_id: str
    rendezvous: str = ""


class GangStarting(Event, frozen=True, tag=True):
    """All are prepared: ranks are forked."""

    gang_id: str


class MemberWasReady(Event, frozen=True, tag=True):
    gang_id: str
    node_id: str
    pids: tuple[int, ...] = ()
    backend: str = ""


class RanksEquipped(Event, frozen=True, tag=True):
    """What the ranks of one node got, as `phalanx.core.topology.equipment` writes it."""

    gang_id: str
    node_id: str
    equipment: str


class GangReady(Event, frozen=True, tag=True):
    """Every rank is inside the process group."""

    gang_id: str


class GangDraining(Event, frozen=True, tag=True):
    """It ends, for ``reason``; with ``error`` when a rank or a node failed."""

    gang_id: str
    reason: str
    error: ErrorInfo | None = None
    drain: bool = False
    """Calls in flight may finish first."""


class MemberHasEnded(Event, frozen=True, tag=True):
    """The node's ranks are gone and its GPUs were proved clean (others are marked by GpuMarked)."""

    gang_id: str
    node_id: str


class GangReleased(Event, frozen=True, tag=True):
    """Every member has ended; the lease is closed. ``lost``: a node was written off instead of heard."""

    gang_id: str
    lost: bool = False
    wall_ms: int = 0


# ---- meter ----


class MeterOpened(Event, frozen=True, tag=True):
    gang_id: str
    node_id: str
    wall_ms: int


class MeterCounted(Event, frozen=True, tag=True):
    """Cumulative milliseconds; the state keeps the maximum of each."""

    gang_id: str
    node_id: str
    counters: dict[str, int]


class MeterClosed(Event, frozen=True, tag=True):
    gang_id: str
    node_id: str
    wall_ms: int
    credited: bool = False


class LinesFiled(Event, frozen=True, tag=True):
    """Closed lines of the ledger, keyed ``gang_id/node_id``, that are in files now; ``sums`` stay in the state."""

    keys: tuple[str, ...]
    sums: tuple[FiledSum, ...]


class LedgerMonthDropped(Event, frozen=True, tag=True):
    """The oldest month is not kept any longer."""

    month: str


AnyEvent = (
    LeaderTookOver
    | FunctionRegistered
    | AppDeployed
    | TokenCreated
    | TokenRevoked
    | JoinTokenCreated
    | JoinTokenUsed
    | NodeJoined
    | NodeStateChanged
    | GpuMarked
    | CallAccepted
    | WebhooksTried
    | WebhookSecretRotated
    | CallWaits
    | CallAssigned
    | CallRan
    | CallRequeued
    | CallSucceeded
    | CallFailed
    | CallCancelling
    | CallCancelled
    | CallsArchived
    | DirectCallsCounted
    | StaleRefused
    | GangReserved
    | MemberWasPrepared
    | GangStarting
    | MemberWasReady
    | GangReady
    | GangDraining
    | MemberHasEnded
    | GangReleased
    | MeterOpened
    | MeterCounted
    | MeterClosed
    | DirectReportTaken
    | LinesFiled
    | LedgerMonthDropped
    | FabricSet
    | PolicySet
    | RanksEquipped
    | NodeLeft
    | CallOverdue
    | KeyTaken
    | KeysForgotten
    | NodeCordoned
    | NodeUncordoned
)

Events = tuple[AnyEvent, ...]

SINCE: dict[type, int] = {
    DirectReportTaken: 2,
    LinesFiled: 2,
    LedgerMonthDropped: 2,
    FabricSet: 3,
    RanksEquipped: 3,
    NodeLeft: 4,
    CallOverdue: 5,
    KeyTaken: 5,
    KeysForgotten: 5,
    WebhooksTried: 7,
    WebhookSecretRotated: 7,
    NodeCordoned: 8,
    NodeUncordoned: 8,
    PolicySet: 8,
}
"""The schema version that brought a kind; 1 for all others."""
NAMED_NODE_SCHEMA = 4
"""Since when a function may name its node."""
PARENT_SCHEMA = 5
"""Since when a call knows from inside which one it was made."""
TERMS_SCHEMA = 5
"""Since when a call may have terms of its own, and a function say how it is tried again."""
HANG_SCHEMA = 6
"""Since when a function may have a ``hang_timeout``, and calls end for it."""
STREAMS_SCHEMA = 6
"""Since when a function may be a generator, whose calls are streams."""
FRESH_SCHEMA = 6
"""Since when a function may ask for a gang of its own for each call."""
HOLD_SCHEMA = 7
"""Since when a function may have its gang held after a failure."""
WEBHOOK_SCHEMA = 7
"""Since when somebody may be told of the end of a call."""
STANDING_SCHEMA = 8
"""Since when a function may have a priority, and give way to others."""


def since(event: AnyEvent) -> int:
    """Returns the schema version that a reader of this event must know."""
    if isinstance(event, FunctionRegistered):
        return since_of_spec(event.function.spec)
    if isinstance(event, CallAccepted | CallRan) and event.call is not None:
        call = event.call
        if call.webhook:
            return WEBHOOK_SCHEMA
        if call.parent:
            return PARENT_SCHEMA
        return TERMS_SCHEMA if call.retries is not None or call.deadline_ms or call.key else 1
    return SINCE.get(type(event), 1)


def since_of_spec(spec: FunctionSpec) -> int:
    """Returns the schema version that a reader of a function must know, so that it keeps to it."""
    return newest_of_spec(spec)[0]


def newest_of_spec(spec: FunctionSpec) -> tuple[int, str]:
    """Returns the newest thing that a function says: since which schema version, and in words."""
    limits = spec.limits
    things = (
        (spec.priority, STANDING_SCHEMA, "has a priority"),
        (spec.preemptible, STANDING_SCHEMA, "is preemptible"),
        (limits.hold_on_failure_s, HOLD_SCHEMA, "is held on failure"),
        (spec.webhook, WEBHOOK_SCHEMA, "has a webhook"),
        (spec.streams, STREAMS_SCHEMA, "is a generator"),
        (spec.fresh, FRESH_SCHEMA, "asks for a gang of its own for each call"),
        (limits.hang_timeout_s, HANG_SCHEMA, "has a hang_timeout"),
        (limits.retrying != Retrying(), TERMS_SCHEMA, "says how it is tried again"),
        (spec.resources.node, NAMED_NODE_SCHEMA, f"names node {spec.resources.node!r}"),
    )
    return next(((since, words) for said, since, words in things if said), (1, ""))


def schema_of(events: Events) -> int:
    """Returns the schema version that a reader of ``events`` must know."""
    return max(map(since, events), default=1)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(tuple[AnyEvent, ...])


def encode(events: Events) -> bytes:
    """Returns the batch as JSON, as it stands in the log."""
    return _encoder.encode(events)


def decode(data: bytes) -> Events:
    """Reads a batch. Raises msgspec.ValidationError on a kind or field that this version does not know."""
    return _decoder.decode(data)
