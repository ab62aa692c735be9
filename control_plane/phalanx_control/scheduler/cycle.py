"""One scheduling pass: who of those that wait gets a warm gang, a new gang, or a sentence that says why not.

    1 snapshot  what is free, who is idle, what is already starting, what each account holds
    2 order     whose turn it is: the account with the least share, its calls by time and priority
    3 reuse     an idle warm gang of the same function
    4 expect    a gang that is already starting for one of these calls
    5 place     a new gang, all or nothing, within the limits of its accounts
    6 prefetch  behind the call that a busy gang runs, unless that might wait for it
    7 make room let idle gangs go, or preemptible ones that must give way, if that is enough; what they leave is kept
    8 reserve   for the first that cannot start: what ends later than it could start may have only what it leaves there
    9 explain   the stored reason, where it changed

Later calls may pass one that cannot start (backfill). Where it is known when that can start, they must have ended by
then to use its nodes; where it is not, they may until it has waited for 30 s.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from zlib import crc32

from phalanx.core.ids import new_gang_id
from phalanx.core.messages import ErrorInfo
from phalanx.core.states import Cause, GangState
from phalanx.policy import Path, shown
from phalanx_control.lifecycle import gangs, meter
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.scheduler.accounts import Accounts
from phalanx_control.scheduler.explain import why_it_waits
from phalanx_control.scheduler.fit import Place, find_place
from phalanx_control.scheduler.fleet import picture_of
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.reserve import Reservation, reservation_for
from phalanx_control.scheduler.room import Line
from phalanx_control.scheduler.space import Leaving, fits_without, room_after
from phalanx_control.scheduler.turns import in_turn
from phalanx_control.scheduler.yielding import Yielding
from phalanx_control.state import blames, events, queries
from phalanx_control.state.amounts import asked_by, held_by
from phalanx_control.state.commands import Schedule
from phalanx_control.state.model import Call, Gang, MemberState

WINDOW = 400
"""So many calls are looked at in a pass."""
PER_LINE = 64
"""So many of each user and function."""
PATIENCE_MS = 30_000
_TOLD_THE_SAME = 8
MOST_PASSED_OVER = 1_000
LOOKED_AHEAD = 2
"""For the first so many that cannot start, nodes may be reserved, and their sentences are made anew in each pass."""
_SENTENCE_EVERY_S = 8
ROOM_MADE = 16
"""For so many calls of a pass it is tried to make room; ``PREEMPTED_FOR``: also by ending what others run."""
PREEMPTED_FOR = 4


def schedule(draft: Draft, command: Schedule) -> None:
    """Places what waits; costs nothing when nothing does."""
    if not draft.state.queue:
        return
    run = _Pass(draft, command)
    for call in run.in_turn():
        reason = run.serve(call)
        if command.explains and reason and reason != call.reason:
            draft.add(events.CallWaits(call_id=call.id, reason=reason))


@dataclass(slots=True)
class _Gangs:
    """Of one function and tenant: those that are warm, by how many calls they have, and how many are starting that no
    call was told to expect.
    """

    warm: list[dict[str, Gang]]
    starting: int


class _Pass:
    """The picture of one pass, written on as calls are served."""

    def __init__(self, draft: Draft, command: Schedule) -> None:
        self._draft = draft
        self._idle_ms = dict(command.gang_idle_ms)
        self._explains = command.explains
        self._raw_ids: Iterator[bytes] = iter(command.raw_ids)
        self._before = draft.state
        self._rooms = picture_of(draft.state)
        self._accounts = Accounts(draft.state, self._rooms, draft.now.log_ms)
        self._yielding = Yielding(draft, self._rooms, self._accounts)
        self._lines: dict[Line, _Gangs] = {}
        self._stuck: dict[Line, frozenset[str]] = {}
        """Functions of tenants of which a call fitted nowhere, and the nodes that were kept from it."""
        self._hopeless: set[tuple[str, ...]] = set()
        """Functions of tenants, or of one user, of which no later call need be looked at."""
        self._passed_over: Counter[tuple[str, ...]] = Counter()
        self._all_passed_over = 0
        self._looked = 0
        self._made = 0
        self._unable = 0
        self._promised: frozenset[str] = frozenset()
        """Nodes on which gangs end for calls that stand before the others."""
        self._reserved: Reservation | None = None
        self._spare: dict[str, int] = {}
        """By node that is kept, how many GPUs of it others may have however long they run."""
        self._verdicts = blames.verdicts(draft.state, draft.now.log_ms)
        self._suspects = self._verdicts.suspects

    def in_turn(self) -> Iterator[Call]:
        """Yields the calls that this pass looks at; those that are refused for what others of theirs are told do not
        count.
        """
        for call in in_turn(self._draft.state, self._accounts, per_line=PER_LINE, hopeless=self._hopeless):
            if self._looked >= WINDOW:
                return
            self._looked += 1
            yield call

    def serve(self, call: Call) -> str:
        """Does what can be done for one call; returns why it still waits, or "" when it does not."""
        if call.not_before_ms > self._draft.now.log_ms:
            return call.reason
        line = (call.function_id, call.owner.workspace)
        if self._use_warm(call, line, at_most=0, avoid=self._avoided(call)):
            return ""
        known = self._gangs(line)
        if known.starting > 0:
            known.starting -= 1
            return "its gang is starting"
        refused, barred = self._refusal(call), self._barred(call)
        behind = line in self._stuck and self._stuck[line] <= barred
        place = None if behind or refused else self._place(call, barred)
        if place is not None:
            return self._reserve(call, place)
        if self._may_wait_at_a_gang(call) and self._use_warm(call, line, at_most=gangs.PREFETCH - 1):
            return ""
        if refused or behind:
            self._pass_over(call, all_alike=bool(refused) or not self._may_end_in_time)
        if refused:
            return refused
        if behind:
            return f"waits behind earlier calls of {self._need(call).spec.name}"
        self._stuck[line] = barred
        if not self._explains and self._need(call).spec.fresh and not self._may_end_in_time:
            self._hopeless.add(line)
        return self._make_room_or_explain(call, barred)

    def _pass_over(self, call: Call, *, all_alike: bool) -> None:
        """None of its user's further calls to the function keeps others from being looked at. Where they are
        ``all_alike``, since no shorter one could start, or so many were passed over that a pass would take too long, a
        few are told the same, and the rest nothing.
        """
        self._looked -= 1
        self._all_passed_over += 1
        user = (call.function_id, call.owner.workspace, call.owner.user)
        self._passed_over[user] += 1
        if self._all_passed_over > MOST_PASSED_OVER:
            all_alike = True
        if all_alike and self._passed_over[user] >= _TOLD_THE_SAME:
            self._hopeless.add(user)

    @property
    def _may_end_in_time(self) -> bool:
        """Says whether a call can pass others of its function by how short it is."""
        return self._reserved is not None and self._reserved.is_known

    # ---- 3 and 6: warm gangs ----

    def _gangs(self, line: Line) -> _Gangs:
        """Returns what the function had when the pass began."""
        found = self._lines.get(line)
        if found is None:
            known = self._rooms.lines[line]
            found = self._lines[line] = _Gangs([dict(warm) for warm in known.warm], len(known.starting))
        return found

    def _may_wait_at_a_gang(self, call: Call) -> bool:
        """What runs there may wait for a call that was made from inside another, at whatever depth."""
        return not call.parent and not self._need(call).spec.fresh

    def _use_warm(self, call: Call, line: Line, *, at_most: int, avoid: frozenset[str] = frozenset()) -> bool:
        """Gives the call to a warm gang with at most ``at_most`` logged calls; the longest idle first."""
        warm = self._gangs(line).warm
        for held in range(at_most + 1):
            barred = self._barred(call, behind=held > 0, starts_ms=0) | avoid
            fitting = (gang for gang in warm[held].values() if self._is_usable(gang, barred))
            gang = min(fitting, key=lambda g: (g.id not in self._idle_ms, g.fence), default=None)
            if gang is not None:
                gangs.assign(self._draft, call, gang)
                self._idle_ms.pop(gang.id, None)
                del warm[held][gang.id]
                if held + 1 < len(warm):
                    warm[held + 1][gang.id] = gang
                return True
        return False

    def _is_usable(self, gang: Gang, barred: frozenset[str]) -> bool:
        """It may have been told to end in this pass."""
        return self._draft.state.gangs[gang.id].state in queries.WARM and not _is_on(gang, barred)

    # ---- 5: places ----

    def _need(self, call: Call) -> Need:
        return Need(spec=self._draft.spec(call.function_id), workspace=call.owner.workspace)

    def _path(self, call: Call) -> Path:
        return self._accounts.path(call.owner)

    def _refusal(self, call: Call) -> str:
        """Returns why the call's accounts may not have another gang; for it, some of theirs may have to go."""
        path, spec = self._path(call), self._draft.spec(call.function_id)
        asked = asked_by(spec)
        limited = self._accounts.limited(path, asked)
        if limited is None:
            return self._accounts.takes_guaranteed(path, spec)
        if not self._accounts.takes_guaranteed(path, spec):
            self._let_own_go(limited, call)
        return self._accounts.why_limited(limited, asked)

    def _let_own_go(self, path: Path, call: Call) -> None:
        """Ends idle gangs of an account that is at its limit, and such as give way to the call, if that is enough."""
        need = self._need(call)
        over = self._accounts.over(self._path(call), asked_by(need.spec))
        over -= sum(held_by(gang, self._draft.spec(gang.function_id)).gpus for gang in self._leaving_of(path))
        if over <= 0:
            return  # those that end already are enough
        ending: list[Gang] = []
        for gang in self._own_to_go(path, call):
            if over <= 0:
                break
            over -= held_by(gang, self._draft.spec(gang.function_id)).gpus
            ending.append(gang)
        nodes = fits_without(need, self._rooms, ending, barred=self._barred(call)) if over <= 0 else None
        if nodes is None or not self._yielding.all_of(ending, call):
            return
        for gang in ending:
            self._end_for(gang, call, need)
        self._promised |= nodes

    def _leaving_of(self, path: Path) -> list[Gang]:
        """Returns the account's gangs that have been told to end."""
        known = (self._draft.state.gangs[gang_id] for gang_id in self._rooms.draining)
        return [gang for gang in known if self._is_of(gang, path)]

    def _own_to_go(self, path: Path, call: Call) -> list[Gang]:
        """Returns gangs of the account in the order in which they go: the longest idle, then the least work lost."""
        known = self._draft.state.gangs
        idle = [known[gang_id] for gang_id in self._idle_ms if gang_id in known]
        idle = [g for g in idle if g.state is GangState.READY and not g.calls and self._is_of(g, path)]
        idle.sort(key=lambda g: (-self._idle_ms[g.id], g.fence))
        costs = self._yielding.victims(call)
        victims = [known[gang_id] for gang_id in costs if known[gang_id] not in idle]
        victims = [gang for gang in victims if self._is_of(gang, path)]
        return [*idle, *sorted(victims, key=lambda g: (costs[g.id], g.fence))]

    def _is_of(self, gang: Gang, path: Path) -> bool:
        return self._accounts.path(gang.owner)[: len(path)] == path

    def _barred(self, call: Call, *, behind: bool = False, starts_ms: float | None = None) -> frozenset[str]:
        """Returns the nodes that a call may not use: those that others, who stand before it, wait for. ``behind``
        another one, nobody knows when it begins. ``starts_ms``: how long its gang takes to start; None: its limit.
        """
        if self._reserved is None or (not behind and self._is_in_time(call, starts_ms)):
            return self._promised
        resources = self._draft.spec(call.function_id).resources
        asked = max(resources.gpus, resources.max_gpus) or math.inf
        return self._promised | {name for name, spare in self._spare.items() if spare < asked}

    def _is_in_time(self, call: Call, starts_ms: float | None = None) -> bool:
        """Says whether it ends before the nodes that are kept are needed."""
        if self._reserved is None or not self._reserved.is_known:
            return False
        limits = self._draft.spec(call.function_id).limits
        start_ms = limits.startup_timeout_s * 1000 if starts_ms is None else starts_ms
        ends_ms = self._draft.now.log_ms + start_ms + call.timeout_ms + limits.grace_s * 1000
        return bool(call.timeout_ms) and ends_ms <= self._reserved.at_ms

    def _place(self, call: Call, barred: frozenset[str]) -> Place | None:
        need = self._need(call)
        if need.most:
            need = replace(need, cap=self._accounts.most_gpus(self._path(call), need.spec))
        return find_place(need, self._rooms, barred=barred, avoid=self._avoided(call) | self._suspects)

    def _avoided(self, call: Call) -> frozenset[str]:
        """Returns the nodes where a gang died under the call."""
        return self._verdicts.avoided.get(call.id, frozenset())

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
        for member in place.members:
            if member.node_id in self._spare and not self._is_in_time(call):
                self._spare[member.node_id] -= max(1, len(member.gpus))
        self._rooms.put(gang, draft.spec(gang.function_id))
        self._accounts.hold(gang, draft.spec(gang.function_id))
        draft.add(events.GangReserved(gang=gang))
        meter.opened(draft, gang)
        return "its gang is starting"

    # ---- 7 to 9: those that cannot start ----

    def _make_room_or_explain(self, call: Call, barred: frozenset[str]) -> str:
        need = self._need(call)
        self._unable += 1
        reason = self._reason(call, need, barred)
        leaving = self._leaving(call, need, barred)
        if leaving is None:
            self._reserve_nodes(call, need)
            return reason
        for gang in leaving.gangs:
            self._end_for(gang, call, need)
        self._promised |= leaving.nodes
        return reason

    def _reason(self, call: Call, need: Need, barred: frozenset[str]) -> str:
        """A sentence looks at the whole cell: the first calls' are made in each pass, the others' every few seconds."""
        if not self._explains:
            return ""
        is_due = (crc32(call.id.encode()) + self._draft.now.log_ms // 1000) % _SENTENCE_EVERY_S == 0
        if self._unable <= LOOKED_AHEAD or is_due or not call.reason.startswith("needs "):
            return why_it_waits(need, self._rooms, kept=barred)
        return call.reason

    def _leaving(self, call: Call, need: Need, barred: frozenset[str]) -> Leaving | None:
        self._made += 1
        if self._made > ROOM_MADE:
            return None
        state, rooms, idle_ms = self._draft.state, self._rooms, self._idle_ms
        victims = self._yielding.victims(call) if self._made <= PREEMPTED_FOR else {}
        found = room_after(state, need, rooms, idle_ms, barred=barred, victims=victims, thorough=self._made == 1)
        if found is None or self._yielding.all_of(found.gangs, call):
            return found
        return room_after(state, need, rooms, idle_ms, barred=barred)

    def _end_for(self, gang: Gang, call: Call, need: Need) -> None:
        if gang.id in self._idle_ms and not gang.calls:
            self._let_go(gang, f"idle, and its GPUs are needed by {self._named(call, gang, need.spec.name)}")
            return
        why = f"gave way to {self._named(call, gang, f'{need.spec.name} of {shown(self._path(call))}')}"
        error = ErrorInfo(cause=Cause.PREEMPTED, type_name="Preempted", message=why)
        self._drain(gang, why, error=error)

    def _named(self, call: Call, gang: Gang, words: str) -> str:
        """Workspaces are not told of each other's functions and users."""
        return words if gang.owner.workspace == call.owner.workspace else "another workspace"

    def _let_go(self, gang: Gang, why: str) -> None:
        self._drain(gang, why)
        self._idle_ms.pop(gang.id, None)

    def _drain(self, gang: Gang, why: str, *, error: ErrorInfo | None = None) -> None:
        """Tells a gang to end: at once for an error, which its calls end with; else when they have ended."""
        gangs.drain(self._draft, gang.id, why, calls_finish=error is None, error=error)
        self._rooms.leaves(self._draft.state.gangs[gang.id])

    def _reserve_nodes(self, call: Call, need: Need) -> None:
        """Only for the first that cannot start: more than one would leave nodes idle for too long."""
        if self._reserved is not None or self._unable > LOOKED_AHEAD:
            return
        found = reservation_for(self._before, need, self._rooms, self._draft.now.log_ms)
        waited_ms = self._draft.now.log_ms - max(call.submitted_ms, call.not_before_ms)
        if found is not None and (found.is_known or waited_ms > PATIENCE_MS):
            self._reserved, self._spare = found, dict(found.spare)


def _is_on(gang: Gang, nodes: frozenset[str]) -> bool:
    return bool(nodes) and any(m.member.node_id in nodes for m in gang.members)
