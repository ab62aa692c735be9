"""What has happened. The log holds nothing else; `apply` folds these, in order, into the state.

An event says a fact, in the past tense, with everything `apply` needs. A kind is never changed once released: a new
need is a new kind, and a reader that meets an unknown one refuses to lead. `SINCE` says which schema version brought a
kind; a leader writes it only when every live replica reads that version.
"""

from __future__ import annotations

import msgspec

from phalanx.core.messages import ErrorInfo, NodeInfo
from phalanx.core.states import GpuState, NodeState
from phalanx_control.state.model import (
    App,
    Blame,
    BodyRef,
    Call,
    Cordon,
    FiledSum,
    Function,
    Gang,
    KeyUse,
    Record,
    Token,
)


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


class NodeBlamed(Event, frozen=True, tag=True):
    node_id: str
    blame: Blame


class NodeUncordoned(Event, frozen=True, tag=True):
    """It takes work again, and what gangs died there of is forgotten."""

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
    busy_ms: int = 0
    """How long the attempt ran; ``credited``: that is not to be paid."""
    credited: bool = False
    error: str = ""
    """In one line, where the attempt failed."""


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


class CallDebugged(Event, frozen=True, tag=True):
    """The ranks of an attempt that has ended waited for people for so long."""

    call_id: str
    ms: int


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


class AttemptCredited(Event, frozen=True, tag=True):
    """So much busy time of a gang, on each of its GPUs, was lost through nobody's fault but the platform's."""

    gang_id: str
    ms: int


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
    | CallDebugged
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
    | AttemptCredited
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
    | NodeBlamed
)

Events = tuple[AnyEvent, ...]

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(tuple[AnyEvent, ...])


def encode(events: Events) -> bytes:
    """Returns the batch as JSON, as it stands in the log."""
    return _encoder.encode(events)


def decode(data: bytes) -> Events:
    """Reads a batch. Raises msgspec.ValidationError on a kind or field that this version does not know."""
    return _decoder.decode(data)
