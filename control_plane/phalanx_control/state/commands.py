"""What may be asked of the control plane. Commands come from clients, agents and the clock; they are not stored.

`lifecycle.decide(state, command, now)` turns each into events, or raises a PhalanxError that the asker is told.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.core.messages import CallTerms, Counter, FromAgent
from phalanx.core.spec import FunctionSpec
from phalanx.core.states import NodeState
from phalanx_control.state.events import WebhookTry
from phalanx_control.state.model import SCHEMA_VERSION, BodyRef, FiledSum, Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """Time of a decision: ``log_ms`` decides, ``wall_ms`` is only written down. ``schema`` is the newest schema version
    that every live replica reads: no event of a later one may be decided.
    """

    log_ms: int
    wall_ms: int
    schema: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    epoch: int
    leader_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterFunction:
    owner: Owner
    spec: FunctionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployApp:
    owner: Owner
    app: str
    specs: tuple[FunctionSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateToken:
    token_id: str
    sha256: str
    owner: Owner
    role: str
    expires_wall_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeToken:
    token_id: str
    owner: Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateJoinToken:
    sha256: str
    expires_wall_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UseJoinToken:
    sha256: str
    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFabric:
    """``fabric`` as JSON; "" forgets it."""

    fabric: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetNodeState:
    """An admin's word on a node: READY takes work, CORDONED nothing new, and of a DRAINING one everything ends.

    ``deadline_in_ms``: how long calls that run may still take; 0 at once, None what was said before, or the default.
    """

    node_id: str
    state: NodeState
    by: str
    reason: str = ""
    deadline_in_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPolicy:
    """``policy`` as JSON; "" forgets it."""

    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    call_id: str
    function_id: str
    owner: Owner
    args: BodyRef
    timeout_ms: int = 0
    parent: str = ""
    terms: CallTerms = field(default_factory=CallTerms)
    args_sha256: str = ""
    """Of the arguments, where there is an idempotency key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    call_id: str
    owner: Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSaid:
    """One message of a node's agent. Bodies were stored first: ``result`` and ``error_body`` say where.

    ``agent_epoch`` and ``seq`` name a message that may be repeated: the agent process, and its number there, or 0.
    """

    node_id: str
    message: FromAgent
    agent_epoch: int = 0
    seq: int = 0
    result: BodyRef = field(default_factory=BodyRef)
    error_body: BodyRef = field(default_factory=BodyRef)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSilent:
    """How long this leader has not heard of a node; ``proved_gone`` when the machine is known to be."""

    node_id: str
    silent_ms: int
    proved_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CountersSeen:
    """Fast facts that become durable now and then: cumulative counters of one lease on one node."""

    gang_id: str
    node_id: str
    counters: tuple[Counter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The clock, with the fast facts that decisions need. ``gang_idle_ms``: gangs with nothing in flight."""

    silent: tuple[NodeSilent, ...] = ()
    gang_idle_ms: dict[str, int] = field(default_factory=dict[str, int])
    meters: tuple[CountersSeen, ...] = ()
    paused_ms: dict[str, int] = field(default_factory=dict[str, int])
    """How long the time of each gang's call has stood still: its ranks waited for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Place what waits. ``raw_ids``: randomness for new gangs, 16 bytes each; ``gang_idle_ms`` as in Tick.

    ``explains`` False: nobody reads why calls wait, which takes most of a pass; who gets what is the same.
    """

    raw_ids: tuple[bytes, ...]
    gang_idle_ms: dict[str, int] = field(default_factory=dict[str, int])
    explains: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteWebhooks:
    """What came of attempts to tell the ends of calls."""

    tries: tuple[WebhookTry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateWebhookSecret:
    """Let a new secret sign, unless ``from_version`` is no longer in force: whoever asks may ask again."""

    owner: Owner
    from_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveCalls:
    """Ended calls that the archive holds durably may leave the state."""

    call_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLines:
    """Closed lines of the ledger that the archive holds durably may leave the state; ``sums`` are theirs."""

    keys: tuple[str, ...]
    sums: tuple[FiledSum, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLedgerMonth:
    month: str


Command = (
    TakeOver
    | RegisterFunction
    | DeployApp
    | CreateToken
    | RevokeToken
    | CreateJoinToken
    | UseJoinToken
    | SetFabric
    | SetNodeState
    | SetPolicy
    | Submit
    | Cancel
    | AgentSaid
    | Tick
    | Schedule
    | NoteWebhooks
    | RotateWebhookSecret
    | ArchiveCalls
    | FileLines
    | DropLedgerMonth
)
