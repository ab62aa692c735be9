"""The live scheduler under simulation: the same state, folded by the same events, and the same passes over it.

A gang takes ``start_ms`` from its reservation until its call runs, and stays ``warm_ms`` after its last one. What takes
no time here: preparing, draining, and ending. Passes come when something came, ended or moved, not on every tick; none
comes for a call that joins others of its function which the last pass found no place for, since nothing changed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from phalanx.core.ids import id_raw, id_text
from phalanx.core.states import CallState, GangState
from phalanx_control.lifecycle import gangs
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.scheduler import cycle
from phalanx_control.scheduler.nearest import learn
from phalanx_control.simulator.happenings import Began, Freed, Happening, Held, Part, Stopped
from phalanx_control.simulator.jobs import Job
from phalanx_control.simulator.machines import Fleet
from phalanx_control.state import events
from phalanx_control.state.commands import Now, Schedule
from phalanx_control.state.events import AnyEvent
from phalanx_control.state.model import BodyRef, Call, Function, Gang, Owner, State

MAX_NEW_GANGS = 64
"""Gangs that one pass may start, as in the controller."""
_RAW_BYTES = 16
_MOST_PASSES = 10_000
"""Of one moment: a scheduler that never comes to rest is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How long a gang takes to start, and stays after its last call; 0 and 0 for traces of batch jobs."""

    start_ms: int = 0
    warm_ms: int = 0
    every_ms: int = 0
    """While calls wait, passes are so far apart at least."""
    explains: bool = False
    """Passes say why calls wait, as live; who gets what is the same."""
    timeouts: float = 0
    """What callers say of how long their calls run, at most: so many times what is true; 0: nothing."""


class LiveScheduler:
    """Drives `scheduler.cycle.schedule`; the rest of a cell is imagined."""

    def __init__(self, fleet: Fleet, options: Options, *, accounts: str = "") -> None:
        """``accounts``: who gets how much, as JSON; "": all alike."""
        self._options = options
        self._places = {gpu.uuid: gpu.index for node in fleet.nodes for gpu in node.gpus}
        self._function_ids: dict[tuple[object, ...], str] = {}
        self._draft = Draft(start_of(fleet), Now(log_ms=0, wall_ms=0))
        if accounts:
            self._draft.add(events.PolicySet(policy=accounts))
        self._said: list[Happening] = []
        self._made = 0
        self._alarms: list[tuple[int, int, str]] = []
        """When, its number, and the gang that is ready or has idled long enough then."""
        self._idle_since: dict[str, int] = {}
        self._wants_pass = False
        self._at_rest = False
        """Nothing happened since a pass that could start nothing."""
        self._pass_at_ms = 0
        self.passes = 0

    @property
    def state(self) -> State:
        """The cell as it is now."""
        return self._draft.state

    # ---- the engine's side ----

    def submit(self, job: Job, now_ms: int) -> None:
        draft = self._at(now_ms)
        owner = Owner(workspace=job.workspace, user=job.user)
        function_id = self._function_of(job, owner, draft)
        call = Call(
            id=call_id(job.number),
            function_id=function_id,
            owner=owner,
            timeout_ms=round((job.duration_ms or 0) * self._options.timeouts),
            submitted_ms=now_ms,
            submitted_wall_ms=now_ms,
        )
        joins = function_id in draft.state.lines and self._at_rest and self._options.warm_ms == 0
        draft.add(events.CallAccepted(call=call))
        if not joins:
            self._want_pass()

    def end(self, job: Job, now_ms: int) -> None:
        draft = self._at(now_ms)
        call = draft.call(call_id(job.number))
        busy_ms = now_ms - call.started_ms
        draft.add(
            events.CallSucceeded(call_id=call.id, fence=call.fence, result=BodyRef(), busy_ms=busy_ms, wall_ms=now_ms)
        )
        draft.add(events.CallsArchived(call_ids=(call.id,)))
        self._want_pass()
        gang = draft.state.gangs[call.gang_id]
        if gang.calls:
            self._begin(draft, gang.calls[0])
        elif draft.spec(gang.function_id).fresh:
            self._release(draft, gang.id, "its call ended")
        else:
            self._idle_since[gang.id] = now_ms
            self._alarm(now_ms + self._options.warm_ms, gang.id)

    def decide(self, now_ms: int) -> Iterable[Happening]:
        draft = self._at(now_ms)
        while self._alarms and self._alarms[0][0] <= now_ms:
            self._ring(draft, heapq.heappop(self._alarms)[2])
        for _ in range(_MOST_PASSES):
            if not self._wants_pass or not draft.state.queue or now_ms < self._pass_at_ms:
                break
            self._wants_pass = False
            self._pass(draft)
        else:
            raise RuntimeError(f"the scheduler did not come to rest after {_MOST_PASSES} passes at {now_ms} ms")
        said, self._said = self._said, []
        return said

    def next_ms(self) -> int | None:
        times = [self._alarms[0][0]] if self._alarms else []
        if self._wants_pass and self.state.queue:
            times.append(self._pass_at_ms)
        return min(times, default=None)

    # ---- one pass ----

    def _pass(self, draft: Draft) -> None:
        self.passes += 1
        now_ms = draft.now.log_ms
        raw_ids = tuple(self._raw_ids(min(MAX_NEW_GANGS, len(draft.state.queue))))
        idle_ms = {gang_id: now_ms - since_ms for gang_id, since_ms in self._idle_since.items()}
        queued = len(draft.state.queue)
        seen = len(draft.done())
        cycle.schedule(draft, Schedule(raw_ids=raw_ids, gang_idle_ms=idle_ms, explains=self._options.explains))
        new = draft.done()[seen:]
        reserved = 0
        for event in new:
            reserved += isinstance(event, events.GangReserved)
            self._follow(draft, event)
        self._at_rest = not self._wants_pass
        if reserved >= MAX_NEW_GANGS or (reserved and queued > cycle.WINDOW):
            self._want_pass()
        elif draft.state.queue and not self._wants_pass:
            self._pass_at_ms = now_ms + self._options.every_ms

    def _follow(self, draft: Draft, event: AnyEvent) -> None:
        """Does what agents would do on an event of a pass."""
        match event:
            case events.GangReserved(gang=gang):
                self._said.append(Held(gang.id, gang.owner.workspace, self._parts(gang)))
                if self._options.start_ms:
                    self._alarm(draft.now.log_ms + self._options.start_ms, gang.id)
                else:
                    self._ready(draft, gang.id)
            case events.CallAssigned(call_id=call_id, gang_id=gang_id):
                self._assigned(draft, call_id, gang_id)
            case events.GangDraining(gang_id=gang_id, drain=calls_finish):
                gang = draft.gang(gang_id)
                if gang is not None and not (calls_finish and gang.calls):
                    self._release(draft, gang_id, gang.stop_reason)
            case _:
                return

    def _ring(self, draft: Draft, gang_id: str) -> None:
        """A gang is ready, or has idled for so long that it goes; without a gang a call may be tried again."""
        gang = draft.gang(gang_id)
        if not gang_id:
            self._want_pass()
        if gang is None:
            return
        if gang.state is GangState.RESERVED:
            self._ready(draft, gang_id)
        elif draft.now.log_ms - self._idle_since.get(gang_id, draft.now.log_ms) >= max(1, self._options.warm_ms):
            self._release(draft, gang_id, "idle")

    def _ready(self, draft: Draft, gang_id: str) -> None:
        draft.add(events.GangReady(gang_id=gang_id))
        gang = draft.state.gangs[gang_id]
        call = gangs.next_waiting(draft, gang)
        if call is None:
            self._release(draft, gang_id, "its call was served elsewhere")
            return
        gangs.assign(draft, call, gang)
        self._assigned(draft, call.id, gang_id)

    def _assigned(self, draft: Draft, call_id: str, gang_id: str) -> None:
        self._idle_since.pop(gang_id, None)
        if draft.state.gangs[gang_id].calls[0] == call_id:
            self._begin(draft, call_id)

    def _begin(self, draft: Draft, call_id: str) -> None:
        call = draft.call(call_id)
        draft.add(events.CallRan(call_id=call_id, attempt=call.attempt, fence=call.fence, wall_ms=draft.now.wall_ms))
        self._said.append(Began(number_of(call_id)))

    def _release(self, draft: Draft, gang_id: str, reason: str) -> None:
        gang = draft.state.gangs[gang_id]
        held = gang.calls
        running = [each for each in held if draft.call(each).state is CallState.RUNNING]
        if gang.state is not GangState.DRAINING:
            gangs.drain(draft, gang_id, reason)
        for member in gang.members:
            gangs.end_member(draft, gang_id, member.member.node_id)
        keys = tuple(f"{gang_id}/{member.member.node_id}" for member in gang.members)
        draft.add(events.LinesFiled(keys=keys, sums=()))
        self._said += [Stopped(number_of(each)) for each in running]
        for again in (draft.call(each) for each in held):
            if again.not_before_ms > draft.now.log_ms:
                self._alarm(again.not_before_ms, "")
        self._said.append(Freed(gang_id))
        self._idle_since.pop(gang_id, None)
        self._want_pass()

    # ---- small things ----

    def _want_pass(self) -> None:
        self._wants_pass, self._at_rest = True, False

    def _at(self, now_ms: int) -> Draft:
        """Returns the draft of a moment; what was decided before is part of the state."""
        if self._draft.now.log_ms != now_ms:
            self._draft = Draft(self._draft.state, Now(log_ms=now_ms, wall_ms=now_ms))
        return self._draft

    def _function_of(self, job: Job, owner: Owner, draft: Draft) -> str:
        key = (job.workspace, job.gpus, job.gpu, job.cpus, job.memory_gb, job.one_node, job.priority, job.preemptible)
        known = self._function_ids.get(key)
        if known is None:
            spec = job.spec(fresh=self._options.warm_ms == 0)
            known = self._function_ids[key] = spec.function_id
            draft.add(events.FunctionRegistered(function=Function(id=known, owner=owner, spec=spec)))
        return known

    def _parts(self, gang: Gang) -> tuple[Part, ...]:
        members = (state.member for state in gang.members)
        return tuple(
            Part(m.node_id, tuple(self._places[gpu] for gpu in m.gpus), round(m.share * 1000)) for m in members
        )

    def _alarm(self, at_ms: int, gang_id: str) -> None:
        heapq.heappush(self._alarms, (at_ms, self._made, gang_id))

    def _raw_ids(self, count: int) -> Iterator[bytes]:
        for _ in range(count):
            self._made += 1
            yield self._made.to_bytes(_RAW_BYTES, "big")


def start_of(fleet: Fleet) -> State:
    """Returns a cell with this fleet, in which nothing has happened."""
    draft = Draft(State(), Now(log_ms=0, wall_ms=0))
    if fleet.fabric:
        draft.add(events.FabricSet(fabric=fleet.fabric))
    for node in fleet.nodes:
        draft.add(events.NodeJoined(info=node))
        learn(node.topology)
    return draft.state


def call_id(number: int) -> str:
    """Returns the id of a job's call: later jobs have larger ones."""
    return id_text("c", number.to_bytes(_RAW_BYTES, "big"))


def number_of(call_id: str) -> int:
    """Returns the job of a call."""
    return int.from_bytes(id_raw(call_id), "big")
