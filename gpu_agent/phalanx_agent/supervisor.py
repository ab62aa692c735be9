"""The gangs of one node, as a state machine: events in, effects out. No I/O, no clock, no asyncio.

    WAITING ── older leases gone ──► PREPARING ── Prepared ──► PREPARED ── Start ──► STARTING ── ready ──► READY
       │            │                     │                        │                    │                   │
       └────────────┴──────── Stop ───────┴──► CLEANING ◄── KeeperEnded ── STOPPING ◄───┴─── Stop ──────────┘
                                                  │
                                               Cleaned ──► ENDED ── EndStored ──► forgotten

A gang is its lease: its fence is compared with every message, and a stale one changes nothing. A GPU belongs to the
lease with the highest fence: an older one that still holds it is ended first. Every message may come repeatedly.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from phalanx.core.messages import (
    CallRefused,
    CancelCall,
    ErrorInfo,
    Member,
    MemberEnded,
    MemberPrepared,
    MemberReady,
    Offer,
    Prepare,
    Start,
    Stop,
)
from phalanx.core.states import Cause, Phase
from phalanx.core.topology.equipment import shown_text
from phalanx_agent import gang_events as ev
from phalanx_agent.dataplane.facts import KeeperAttached, KeeperEnded, KeeperStuck, RankSaid
from phalanx_agent.gpu_faults import hardware_error, with_notes

ENDS_KEPT = 1000
NOTES_KEPT = 8
_SHARE_SLACK = 1e-6
Effects = list[ev.Effect]


class LeaseState(StrEnum):
    WAITING = "waiting"
    PREPARING = "preparing"
    PREPARED = "prepared"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    CLEANING = "cleaning"
    ENDED = "ended"


_UNSTARTED = frozenset({LeaseState.WAITING, LeaseState.PREPARING, LeaseState.PREPARED})
_RUNNING = frozenset({LeaseState.STARTING, LeaseState.READY})
_PHASES = {"context": Phase.CONTEXT, "debug": Phase.DEBUG, "resumed": Phase.IDLE_WARM}
_OVER = frozenset({LeaseState.CLEANING, LeaseState.ENDED})


@dataclass(slots=True)
class Lease:
    """One gang on this node."""

    prepare: Prepare
    state: LeaseState
    since_ms: int = 0
    rendezvous: str = ""
    launched: bool = False
    draining: bool = False
    stop: Stop | None = None
    waits_for: set[str] = field(default_factory=set[str])
    pids: tuple[int, ...] = ()
    backend: str = ""
    equipment: str = ""
    clean: bool = True
    error: ErrorInfo = field(default_factory=ErrorInfo)
    notes: tuple[str, ...] = ()
    """What its GPUs reported of its own doing."""

    @property
    def gang_id(self) -> str:
        return self.prepare.gang_id

    @property
    def fence(self) -> int:
        return self.prepare.fence

    @property
    def member(self) -> Member:
        return self.prepare.members[self.prepare.node_rank]

    @property
    def gpus(self) -> tuple[str, ...]:
        return self.member.gpus

    @property
    def ending(self) -> bool:
        return self.state is LeaseState.STOPPING or self.state in _OVER


class Supervisor:
    """Holds every lease of the node."""

    def __init__(self) -> None:
        self.leases: dict[str, Lease] = {}
        self._ends: OrderedDict[str, MemberEnded] = OrderedDict()
        self._handlers: dict[type, Callable[[Any, int], Effects]] = {
            Prepare: self._prepare,
            Start: self._start,
            Stop: self._stop,
            Offer: self._offer,
            CancelCall: self._cancel_call,
            ev.Prepared: self._prepared,
            ev.Equipped: self._equipped,
            ev.Launched: self._launched,
            KeeperAttached: self._attached,
            RankSaid: self._rank_said,
            KeeperEnded: self._keeper_ended,
            KeeperStuck: self._keeper_stuck,
            ev.Cleaned: self._cleaned,
            ev.Adopted: self._adopted,
            ev.EndStored: self._end_stored,
            ev.GpuFailed: self._gpu_failed,
            ev.GpuNoted: self._gpu_noted,
            ev.Tick: self._tick,
        }

    def handle(self, event: ev.Event, now_ms: int) -> tuple[ev.Effect, ...]:
        """Returns what must be done because of ``event``. ``now_ms`` is monotonic."""
        return tuple(self._handlers[type(event)](event, now_ms))

    def holders(self, gpu: str, *, but: str = "") -> list[Lease]:
        """Returns the leases that occupy a GPU."""
        return [
            lease
            for lease in self.leases.values()
            if gpu in lease.gpus and lease.gang_id != but and lease.state is not LeaseState.ENDED
        ]

    def end_all(self, reason: str, now_ms: int) -> tuple[ev.Effect, ...]:
        """Ends every gang, for an agent that was told to take them along."""
        out: Effects = []
        for lease in tuple(self.leases.values()):
            if lease.state not in _OVER:
                out += self._end(lease, reason, now_ms)
        return tuple(out)

    # ---- messages ----

    def _prepare(self, message: Prepare, now_ms: int) -> Effects:
        lease = self.leases.get(message.gang_id)
        if lease is not None:
            return self._prepare_again(lease, message)
        ended = self._ends.get(message.gang_id)
        if ended is not None:
            return [ev.Say(message=ended)]
        lease = Lease(message, LeaseState.WAITING, since_ms=now_ms)
        rivals = self._rivals(lease)
        newer = next((r for r in rivals if r.fence > lease.fence), None)
        if newer is not None:
            error = f"its GPUs belong to gang {newer.gang_id}, whose lease is newer"
            return [ev.Say(message=MemberPrepared(gang_id=message.gang_id, fence=message.fence, error=error))]
        self.leases[message.gang_id] = lease
        lease.waits_for = {r.gang_id for r in rivals}
        out: Effects = []
        for rival in rivals:
            if rival.state not in _OVER:
                out += self._end(rival, "its lease is over", now_ms)
        return out + self._begin_if_free(lease, now_ms)

    def _prepare_again(self, lease: Lease, message: Prepare) -> Effects:
        if lease.fence != message.fence:
            return [_stale(message)]
        if lease.state is LeaseState.PREPARED:
            return [ev.Say(message=_said_prepared(lease))]
        return []

    def _rivals(self, lease: Lease) -> list[Lease]:
        """Returns the leases whose GPUs would be given twice."""
        rivals: dict[str, Lease] = {}
        for gpu in lease.gpus:
            holders = self.holders(gpu, but=lease.gang_id)
            taken = sum(h.member.share for h in holders)
            if taken + lease.member.share > 1 + _SHARE_SLACK:
                rivals.update({h.gang_id: h for h in holders})
        return list(rivals.values())

    def _begin_if_free(self, lease: Lease, now_ms: int) -> Effects:
        if lease.state is not LeaseState.WAITING or lease.waits_for:
            return []
        lease.state = LeaseState.PREPARING
        lease.since_ms = now_ms
        return [
            ev.OpenMeter(gang_id=lease.gang_id, gpus=lease.gpus),
            ev.PrepareMember(prepare=lease.prepare),
        ]

    def _start(self, message: Start, now_ms: int) -> Effects:
        lease = self.leases.get(message.gang_id)
        if lease is None:
            return [ev.Say(message=self._ends.get(message.gang_id) or _never_here(message))]
        if lease.fence != message.fence:
            return [_stale(message)]
        if lease.state is LeaseState.READY:
            return [ev.Say(message=_said_ready(lease))]
        if lease.state is not LeaseState.PREPARED:
            return []
        lease.state = LeaseState.STARTING
        lease.since_ms = now_ms
        return [
            ev.EnterPhase(gang_id=lease.gang_id, phase=Phase.START),
            ev.LaunchGang(
                prepare=lease.prepare,
                rendezvous=message.rendezvous or lease.rendezvous,
                peer_tickets=message.peer_tickets,
            ),
        ]

    def _stop(self, message: Stop, now_ms: int) -> Effects:
        lease = self.leases.get(message.gang_id)
        if lease is None:
            ended = self._ends.get(message.gang_id)
            unknown = MemberEnded(gang_id=message.gang_id, fence=message.fence, clean=True)
            return [ev.Say(message=ended or unknown)]
        if lease.fence != message.fence:
            return [_stale(message)]
        return self._apply_stop(lease, message, now_ms)

    def _apply_stop(self, lease: Lease, message: Stop, now_ms: int) -> Effects:
        if lease.state in _OVER:
            return []
        if lease.state in _UNSTARTED:
            return self._give_up(lease, now_ms)
        if lease.state is LeaseState.STOPPING and (message.drain or not lease.draining):
            return []
        lease.stop = message
        lease.draining = message.drain and lease.state is LeaseState.READY
        lease.state = LeaseState.STOPPING
        lease.since_ms = now_ms
        return self._tell_keeper_to_stop(lease) if lease.launched else []

    def _tell_keeper_to_stop(self, lease: Lease) -> Effects:
        assert lease.stop is not None
        out: Effects = []
        if not lease.draining:
            out.append(ev.EnterPhase(gang_id=lease.gang_id, phase=Phase.TEARDOWN))
        out.append(
            ev.StopGang(
                gang_id=lease.gang_id,
                reason=lease.stop.reason,
                grace_ms=lease.stop.grace_ms,
                drain=lease.draining,
            )
        )
        return out

    def _give_up(self, lease: Lease, now_ms: int) -> Effects:
        """Returns a gang that has no ranks yet."""
        waiting = lease.state is LeaseState.WAITING
        lease.state = LeaseState.CLEANING
        lease.since_ms = now_ms
        out: Effects = [] if waiting else [ev.AbandonPreparation(gang_id=lease.gang_id)]
        return [*out, ev.ProveClean(gang_id=lease.gang_id, gpus=() if waiting else lease.gpus)]

    def _offer(self, message: Offer, _now_ms: int) -> Effects:
        lease = self.leases.get(message.gang_id)
        if lease is not None and lease.state in _RUNNING and lease.launched:
            return [ev.QueueCall(offer=message)]
        reason = "the gang is not on this node" if lease is None else f"the gang is {lease.state.value}"
        refused = CallRefused(
            call_id=message.call_id,
            attempt=message.attempt,
            fence=message.fence,
            gang_id=message.gang_id,
            reason=reason,
        )
        return [ev.Say(message=refused)]

    def _cancel_call(self, message: CancelCall, _now_ms: int) -> Effects:
        return [ev.TakeBack(cancel=message)]

    # ---- what became of effects ----

    def _prepared(self, event: ev.Prepared, now_ms: int) -> Effects:
        lease = self.leases.get(event.gang_id)
        if lease is None or lease.state is not LeaseState.PREPARING:
            return []
        if event.error:
            lease.error = ErrorInfo(cause=Cause.INFRASTRUCTURE, message=event.error)
            said = MemberPrepared(gang_id=lease.gang_id, fence=lease.fence, error=event.error)
            return [ev.Say(message=said), *self._give_up(lease, now_ms)]
        lease.state = LeaseState.PREPARED
        lease.since_ms = now_ms
        lease.rendezvous = event.rendezvous
        return [ev.Say(message=_said_prepared(lease))]

    def _equipped(self, event: ev.Equipped, _now_ms: int) -> Effects:
        lease = self.leases.get(event.gang_id)
        if lease is not None:
            lease.equipment = shown_text(event.equipment)
        return []

    def _launched(self, event: ev.Launched, now_ms: int) -> Effects:
        lease = self.leases.get(event.gang_id)
        if lease is None or lease.state in _OVER:
            return []
        if event.error:
            lease.clean = False
            lease.error = ErrorInfo(cause=Cause.INFRASTRUCTURE, message=event.error)
            return self._clean_up(lease, now_ms)
        lease.launched = True
        return self._tell_keeper_to_stop(lease) if lease.state is LeaseState.STOPPING else []

    def _attached(self, event: KeeperAttached, now_ms: int) -> Effects:
        lease = self.leases.get(event.gang_id)
        if lease is None:
            return []
        lease.pids = event.pids or lease.pids
        lease.backend = event.backend or lease.backend
        return self._become_ready(lease, now_ms) if event.phase in ("ready", "busy") else []

    def _rank_said(self, event: RankSaid, now_ms: int) -> Effects:
        lease = self.leases.get(event.gang_id)
        if lease is None:
            return []
        if event.event == "ready" and event.rank < 0:
            lease.pids = event.pids or lease.pids
            lease.backend = event.backend
            return self._become_ready(lease, now_ms)
        phase, serving = _PHASES.get(event.event), lease.state is LeaseState.READY or lease.draining
        if phase and (lease.state is LeaseState.STARTING if phase is Phase.CONTEXT else serving):
            return [ev.EnterPhase(gang_id=lease.gang_id, phase=phase)]
        return []

    def _become_ready(self, lease: Lease, now_ms: int) -> Effects:
        if lease.state is not LeaseState.STARTING:
            return []
        lease.state = LeaseState.READY
        lease.since_ms = now_ms
        return [
            ev.EnterPhase(gang_id=lease.gang_id, phase=Phase.IDLE_WARM),
            ev.Say(message=_said_ready(lease)),
        ]

    def _keeper_ended(self, event: KeeperEnded, now_ms: int) -> Effects:
        lease = self.leases.get(event.gang_id)
        if lease is None or lease.state in _OVER:
            return []
        lease.clean = event.clean
        if not lease.error.message:
            lease.error = event.error
        return self._clean_up(lease, now_ms)

    def _keeper_stuck(self, event: KeeperStuck, _now_ms: int) -> Effects:
        lease = self.leases.get(event.gang_id)
        if lease is None or lease.state in _OVER:
            return []
        return [ev.KillKeeper(gang_id=event.gang_id, pid=event.keeper_pid)]

    def _clean_up(self, lease: Lease, now_ms: int) -> Effects:
        lease.state = LeaseState.CLEANING
        lease.since_ms = now_ms
        return [
            ev.EnterPhase(gang_id=lease.gang_id, phase=Phase.TEARDOWN),
            ev.ProveClean(gang_id=lease.gang_id, gpus=lease.gpus),
        ]

    def _cleaned(self, event: ev.Cleaned, now_ms: int) -> Effects:
        lease = self.leases.get(event.gang_id)
        if lease is None or lease.state is not LeaseState.CLEANING:
            return []
        lease.state = LeaseState.ENDED
        ended = MemberEnded(
            gang_id=lease.gang_id,
            fence=lease.fence,
            clean=lease.clean,
            error=lease.error if lease.clean else with_notes(lease.error, lease.notes),
            counters=event.counters,
            quarantined=tuple(g for g in event.quarantined if g.uuid),
        )
        self._remember_end(ended)
        out: Effects = [ev.Say(message=ended, forget=lease.gang_id)]
        for other in self.leases.values():
            other.waits_for.discard(lease.gang_id)
            out += self._begin_if_free(other, now_ms)
        return out

    def _remember_end(self, ended: MemberEnded) -> None:
        self._ends[ended.gang_id] = ended
        while len(self._ends) > ENDS_KEPT:
            self._ends.popitem(last=False)

    def _end_stored(self, event: ev.EndStored, _now_ms: int) -> Effects:
        lease = self.leases.get(event.gang_id)
        if lease is None or lease.state is not LeaseState.ENDED:
            return []
        del self.leases[event.gang_id]
        return [ev.ForgetGang(gang_id=event.gang_id)]

    def _adopted(self, event: ev.Adopted, now_ms: int) -> Effects:
        config = event.config
        prepare = Prepare(
            gang_id=config.gang_id,
            fence=config.fence,
            function_id=config.function_id,
            function=config.function,
            workspace=config.workspace,
            user=config.user,
            members=config.members,
            node_rank=config.node_rank,
            rendezvous=config.rendezvous,
            placement=config.placement,
        )
        lease = Lease(prepare, LeaseState.STARTING, since_ms=now_ms, rendezvous=config.rendezvous, launched=True)
        lease.equipment = shown_text(config.equipment)
        self.leases[config.gang_id] = lease
        if event.alive:
            return []
        lease.clean = event.clean
        lease.error = event.error
        return self._clean_up(lease, now_ms)

    # ---- what GPUs report ----

    def _gpu_failed(self, event: ev.GpuFailed, now_ms: int) -> Effects:
        out: Effects = []
        for lease in self.holders(event.gpu):
            error = hardware_error(lease.member, event.gpu, event.reason)
            out.append(ev.BlameGpu(gang_id=lease.gang_id, reason=error.message))
            if lease.ending and not lease.draining:
                continue
            lease.clean = False
            lease.error = error
            out += self._end(lease, event.reason, now_ms)
        return out

    def _gpu_noted(self, event: ev.GpuNoted, _now_ms: int) -> Effects:
        for lease in self.holders(event.gpu):
            if event.note not in lease.notes and len(lease.notes) < NOTES_KEPT:
                lease.notes = (*lease.notes, event.note)
        return []

    # ---- time ----

    def _tick(self, event: ev.Tick, now_ms: int) -> Effects:
        out: Effects = []
        for lease in tuple(self.leases.values()):
            limits = lease.prepare.function.limits
            if lease.state in _OVER or lease.state is LeaseState.STOPPING:
                continue
            if limits.disconnect_grace_s and event.silent_ms > limits.disconnect_grace_s * 1000:
                lease.error = ErrorInfo(
                    cause=Cause.INFRASTRUCTURE,
                    message=f"no control plane was heard for {event.silent_ms / 1000:.0f} s",
                )
                out += self._end(lease, "no control plane within disconnect_grace", now_ms)
            elif self._too_slow(lease, now_ms):
                lease.clean = False
                lease.error = ErrorInfo(
                    cause=Cause.TIMEOUT,
                    type_name="CallTimeoutError",
                    message=f"the ranks were not ready within startup_timeout={limits.startup_timeout_s:g} s",
                )
                out += self._end(lease, "startup_timeout", now_ms)
        return out

    def _too_slow(self, lease: Lease, now_ms: int) -> bool:
        limit_s = lease.prepare.function.limits.startup_timeout_s
        return lease.state is LeaseState.STARTING and limit_s > 0 and now_ms - lease.since_ms > limit_s * 1000

    def _end(self, lease: Lease, reason: str, now_ms: int) -> Effects:
        grace_ms = round(lease.prepare.function.limits.grace_s * 1000)
        stop = Stop(gang_id=lease.gang_id, fence=lease.fence, reason=reason, grace_ms=grace_ms)
        return self._apply_stop(lease, stop, now_ms)


def _said_prepared(lease: Lease) -> MemberPrepared:
    return MemberPrepared(gang_id=lease.gang_id, fence=lease.fence, rendezvous=lease.rendezvous)


def _said_ready(lease: Lease) -> MemberReady:
    return MemberReady(
        gang_id=lease.gang_id,
        fence=lease.fence,
        pids=lease.pids,
        backend=lease.backend,
        equipment=lease.equipment,
    )


def _never_here(message: Start) -> MemberEnded:
    error = ErrorInfo(cause=Cause.INFRASTRUCTURE, message="this node does not hold the gang: its agent was restarted")
    return MemberEnded(gang_id=message.gang_id, fence=message.fence, clean=False, error=error)


def _stale(message: Prepare | Start | Stop) -> ev.Refused:
    return ev.Refused(gang_id=message.gang_id, fence=message.fence, what=type(message).__name__)
