"""What the supervisor is told, and what it asks for: plain data. `supervisor.py` turns the first into the second."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.core.messages import (
    CancelCall,
    Counter,
    ErrorInfo,
    FromAgent,
    GpuInfo,
    Offer,
    Prepare,
    Start,
    Stop,
)
from phalanx.core.states import Phase
from phalanx_agent.dataplane.facts import KeeperAttached, KeeperEnded, KeeperStuck, RankSaid
from phalanx_agent.gang_config import GangConfig

# ---- events ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Code, environment, GPUs and rendezvous are ready, or ``error`` says what is not."""

    gang_id: str
    rendezvous: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipped:
    """What the ranks get is decided, as `phalanx.core.topology.equipment` writes it."""

    gang_id: str
    equipment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """The keeper runs and the data plane holds it, or ``error`` says why not."""

    gang_id: str
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """The gang's GPUs were looked at after its end. ``quarantined`` are those that are not FREE."""

    gang_id: str
    quarantined: tuple[GpuInfo, ...] = ()
    counters: tuple[Counter, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A gang of a former agent. ``alive``: its keeper answers; otherwise ``error`` is what is known of its end."""

    config: GangConfig
    alive: bool
    clean: bool = False
    error: ErrorInfo = field(default_factory=ErrorInfo)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndStored:
    """The control plane has the gang's end."""

    gang_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passes. ``silent_ms``: how long no control plane was there."""

    silent_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFailed:
    """The hardware of a GPU failed: whoever holds it ends, through no fault of its own."""

    gpu: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNoted:
    """A GPU reported an error that is the program's own: it is told with the gang's end, should that be unclean."""

    gpu: str
    note: str


Event = (
    Prepare
    | Start
    | Stop
    | Offer
    | CancelCall
    | Prepared
    | Equipped
    | Launched
    | KeeperAttached
    | RankSaid
    | KeeperEnded
    | KeeperStuck
    | Cleaned
    | Adopted
    | EndStored
    | GpuFailed
    | GpuNoted
    | Tick
)

# ---- effects ----


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareMember:
    """Fetch code, build the environment, prove the GPUs clean, bind or try the rendezvous; answer Prepared."""

    prepare: Prepare


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonPreparation:
    """Stop preparing, and close the rendezvous socket."""

    gang_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchGang:
    """Start the keeper and open the data plane; answer Launched."""

    prepare: Prepare
    rendezvous: str
    peer_tickets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StopGang:
    gang_id: str
    reason: str
    grace_ms: int
    drain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameGpu:
    """A GPU of the gang has failed: what its ranks say of it is no fault of the user's."""

    gang_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KillKeeper:
    """It did not stop in time: SIGKILL."""

    gang_id: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveClean:
    """Look at the gang's GPUs once everything that it owes was said; answer Cleaned."""

    gang_id: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """To the control plane. ``forget``: when it is stored there, answer EndStored for this gang."""

    message: FromAgent
    forget: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCall:
    offer: Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeBack:
    cancel: CancelCall


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMeter:
    gang_id: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnterPhase:
    gang_id: str
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetGang:
    """Nothing of it is needed any more."""

    gang_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A message under a fence that is not the gang's: it changes nothing, and is written to the agent's log."""

    gang_id: str
    fence: int
    what: str


Effect = (
    PrepareMember
    | AbandonPreparation
    | LaunchGang
    | StopGang
    | BlameGpu
    | KillKeeper
    | ProveClean
    | Say
    | QueueCall
    | TakeBack
    | OpenMeter
    | EnterPhase
    | ForgetGang
    | Refused
)
