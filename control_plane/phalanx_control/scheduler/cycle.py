"""One scheduling pass: who of those that wait gets a warm gang, a new gang, or a sentence that says why not.

    1 heads     the oldest queued calls, every function's head among them
    2 snapshot  what is free, who is idle, what is already starting
    3 reuse     an idle warm gang of the same function
    4 expect    a gang that is already starting for one of these calls
    5 place     a new gang, all or nothing; for a head that has waited long, nodes are kept free
    6 make room let idle gangs of other functions go, if that is enough
    7 prefetch  behind the call that a busy gang runs, unless that might wait for it
    8 explain   the stored reason, where it changed

First in, first out, except that later calls may pass one that cannot start, until it has waited 30 s: from then on
nothing starts on the nodes that it waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from phalanx.core.ids import new_gang_id
from phalanx.core.states import GangState
from phalanx_control.lifecycle import gangs, meter
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.scheduler.explain import why_it_waits
from phalanx_control.scheduler.fit import Place, find_place
from phalanx_control.scheduler.fleet import picture_of
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.reserve import nodes_kept_for
from phalanx_control.scheduler.room import Line
from phalanx_control.scheduler.space import gangs_to_drain
from phalanx_control.state import events, queries
from phalanx_control.state.commands import Schedule
from phalanx_control.state.model import Call, Gang, MemberState

WINDOW = 200
PER_FUNCTION = 64
AGEING_MS = 30_000


def schedule(draft: Draft, command: Schedule) -> None:
    """Places what waits; costs nothing when nothing does."""
    if not draft.state.queue:
        return
    waiting = _heads(draft)
    run = _Pass(draft, command)
    for call in waiting:
        reason = run.serve(call)
        if reason and reason != call.reason:
            draft.add(events.CallWaits(call_id=call.id, reason=reason))


def _heads(draft: Draft) -> list[Call]:
    """Returns the oldest calls that wait, at most 200 and 64 of each function, and besides them every head."""
    state = draft.state
    window = list(islice(queries.in_queue_order(state, per_function=PER_FUNCTION), WINDOW))
    heads = islice(queries.in_queue_order(state, per_function=1), WINDOW)
    keys = sorted({*window, *heads})
    return [state.calls[call_id] for _, call_id in keys]


@dataclass(slots=True)
class _Gangs:
    """Of one function and tenant: those that are warm, and how many are starting that no call was told to expect."""

    warm: list[Gang]
    starting: int


class _Pass:
    """The picture of one pass, written on as calls are served."""

    def __init__(self, draft: Draft, command: Schedule) -> None:
        self._draft = draft
        self._idle_ms = command.gang_idle_ms
        self._raw_ids: Iterator[bytes] = iter(command.raw_ids)
        self._rooms = picture_of(draft.state)
        self._lines: dict[Line, _Gangs] = {}
        self._stuck: set[Line] = set()
        self._kept: frozenset[str] = frozenset()

    def _gangs(self, line: Line) -> _Gangs:
        """Returns what the function had when the pass began."""
        found = self._lines.get(line)
        if found is None:
            gangs = self._rooms.of_line.get(line, {}).values()
            warm = sorted((g for g in gangs if g.state in queries.WARM), key=lambda g: g.fence)
            found = self._lines[line] = _Gangs(warm, sum(g.state in queries.STARTING for g in gangs))
        return found

    def serve(self, call: Call) -> str:
        """Does what can be done for one call; returns why it still waits, or "" when it does not."""
        if call.not_before_ms > self._draft.now.log_ms:
            return call.reason
        line = (call.function_id, call.owner.workspace)
        if self._use_warm(call, line, at_most=0):
            return ""
        known = self._gangs(line)
        if known.starting > 0:
            known.starting -= 1
            return "its gang is starting"
        behind = line in self._stuck
        place = None if behind else self._place(call)
        if place is not None:
            return self._reserve(call, place)
        if self._may_wait_at_a_gang(call) and self._use_warm(call, line, at_most=gangs.PREFETCH - 1):
            return ""
        if behind:
            return f"waits behind earlier calls of {self._need(call).spec.name}"
        self._stuck.add(line)
        return self._make_room_or_explain(call)

    def _need(self, call: Call) -> Need:
        return Need(spec=self._draft.spec(call.function_id), workspace=call.owner.workspace)

    def _may_wait_at_a_gang(self, call: Call) -> bool:
        """What runs there may wait for a call that was made from inside another, at whatever depth."""
        return not call.parent and not self._need(call).spec.fresh

    def _use_warm(self, call: Call, line: Line, *, at_most: int) -> bool:
        """Gives the call to a warm gang with at most ``at_most`` logged calls; the longest idle first."""
        fitting = [
            gang
            for gang in (self._draft.state.gangs[g.id] for g in self._gangs(line).warm)
            if len(gang.calls) <= at_most and gang.state in queries.WARM and not self._is_kept(gang)
        ]
        if not fitting:
            return False
        gang = min(fitting, key=lambda g: (len(g.calls), g.id not in self._idle_ms, g.fence))
        gangs.assign(self._draft, call, gang)
        return True

    def _is_kept(self, gang: Gang) -> bool:
        return any(m.member.node_id in self._kept for m in gang.members)

    def _place(self, call: Call) -> Place | None:
        return find_place(self._need(call), self._rooms, barred=self._kept)

    def _reserve(self, call: Call, place: Place) -> str:
        raw = next(self._raw_ids, None)
        if raw is None:
            return call.reason
        draft = self._draft
        gang = Gang(
            id=new_gang_id(raw),
            fence=draft.state.next_fence,
            function_id=call.function_id,
            owner=call.owner,
            members=tuple(MemberState(member=m) for m in place.members),
            state=GangState.RESERVED,
            placement=place.sentence,
            for_call=call.id,
            created_ms=draft.now.log_ms,
            created_wall_ms=draft.now.wall_ms,
            state_since_ms=draft.now.log_ms,
        )
        self._rooms.put(gang, draft.spec(gang.function_id))
        draft.add(events.GangReserved(gang=gang))
        meter.opened(draft, gang)
        return "its gang is starting"

    def _make_room_or_explain(self, call: Call) -> str:
        need = self._need(call)
        reason = why_it_waits(self._draft.state, need, self._rooms, kept=self._kept)
        leaving = gangs_to_drain(self._draft.state, need, self._rooms, self._idle_ms, barred=self._kept)
        for gang in leaving or ():
            gangs.drain(self._draft, gang.id, f"idle, and its GPUs are needed by {need.spec.name}", calls_finish=True)
        if not self._kept and self._waited_ms(call) > AGEING_MS:
            self._kept = nodes_kept_for(need, self._rooms)
        return reason

    def _waited_ms(self, call: Call) -> int:
        return self._draft.now.log_ms - max(call.submitted_ms, call.not_before_ms)
