"""The pure core under any order of what clients, agents, nodes and leaders may do. Hypothesis looks for the order.

Agents are played honestly, but everything they ever said may be heard again, at any later time and in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from phalanx.core import messages as m
from phalanx.core.errors import InvalidSpecError
from phalanx.core.spec import Limits, Retrying
from phalanx.core.states import CallState, Cause, GangState, NodeState, Outcome, Phase
from phalanx_control.lifecycle.decide import decide
from phalanx_control.metering.filed import sums_of
from phalanx_control.state import commands as c
from phalanx_control.state import events as ev
from phalanx_control.state.model import BodyRef, Call, Gang
from phalanx_control.state.queries import key_use
from tests.support.builders import ANA, World, call_id, node_info, spec
from tests.support.invariants import check_history, check_state
from tests.support.pictures import check_picture
from tests.unit.test_metering_cost import BOOK

LIMITS = Limits(retries=1, disconnect_grace_s=10, scaledown_window_s=5, startup_timeout_s=20)
SPECS = (
    spec("one", gpus=1, limits=LIMITS),
    spec("pair", gpus=2, limits=LIMITS),
    spec("spread", gpus=4, nodes=2, limits=LIMITS),
    spec("half", gpus=0.5, limits=LIMITS),
    spec("once", gpus=1, limits=replace(LIMITS, retries=0)),
    spec("cpu", gpus=0, limits=LIMITS),
    spec("alone", gpus=1, limits=LIMITS, isolation="node"),
    spec("elastic", gpus=2, max_gpus=6, limits=LIMITS),
    replace(spec("spot", gpus=2, limits=LIMITS), preemptible=True),
    replace(spec("urgent", gpus=4, limits=LIMITS), priority=3),
)
ONCE = next(i for i, one in enumerate(SPECS) if one.name == "once")
NODES = ("n1", "n2")
ERRORS = (
    m.ErrorInfo(cause=Cause.USER_EXCEPTION, type_name="ValueError", message="boom"),
    m.ErrorInfo(cause=Cause.USER_EXCEPTION, type_name="KeyError", message="k", kinds=("builtins.KeyError",)),
    m.ErrorInfo(cause=Cause.INFRASTRUCTURE, message="lost", signal=9),
    m.ErrorInfo(cause=Cause.OUT_OF_MEMORY, message="oom"),
    m.ErrorInfo(cause=Cause.PREEMPTED, message="preempted"),
)
POLICIES = (
    "",
    '{"min_runtime": 0}',
    '{"half_life": "1s", "workspaces": {"default": {"gpus": 3, "limit": 6}}}',
    '{"min_runtime": "5s", "workspaces": {"other": {"gpus": 4}, "default": {"users": {"ana": {"limit": 5}}}}}',
)
TERMS = (
    m.CallTerms(deadline_in_ms=1_000),
    m.CallTerms(deadline_in_ms=20_000),
    m.CallTerms(deadline_wall_ms=1),
    m.CallTerms(own_retries=True, retries=0),
    m.CallTerms(own_retries=True, retries=2, retrying=Retrying(initial_delay_s=0.1, retry_on=("builtins.KeyError",))),
    m.CallTerms(idempotency_key="order-17"),
    m.CallTerms(idempotency_key="order-17", deadline_in_ms=5_000),
)
HARMLESS = {"StaleRefused", "NodeStateChanged"}
TERMINAL = (CallState.SUCCEEDED, CallState.FAILED, CallState.TIMED_OUT, CallState.CANCELLED)


@dataclass(frozen=True)
class Said:
    node_id: str
    message: m.FromAgent


class Core(RuleBasedStateMachine):
    """One cell with two nodes of four GPUs."""

    @initialize()
    def begin(self) -> None:
        self.world = World(*(node_info(n, gpus=4) for n in NODES))
        for one in SPECS:
            self.world.register(one)
        self.bag: list[Said] = []
        self.accepted = 0
        self.boots = 1
        self.ended: dict[str, Call] = {}
        for which in range(len(SPECS)):
            self.submit(which, scheduled=True, comes_up=which % 2 == 0)

    # ---- clients ----

    @rule(which=st.integers(0, len(SPECS) - 1), scheduled=st.booleans(), comes_up=st.booleans())
    def submit(self, which: int, scheduled: bool, comes_up: bool) -> None:
        self.accepted += 1
        self.world.submit(self.accepted, SPECS[which].function_id)
        if scheduled:
            self.world.schedule()
        for gang in self.gangs(GangState.RESERVED) if comes_up else ():
            self.world.bring_up(gang)

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def submit_again(self, data: st.DataObject) -> None:
        n = data.draw(st.integers(1, self.accepted))
        known = self.world.state.calls.get(call_id(n))
        if known is not None:
            command = c.Submit(call_id=known.id, function_id=known.function_id, owner=ANA, args=BodyRef())
            assert self.world.do(command) == ()

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        n = data.draw(st.integers(1, self.accepted))
        if call_id(n) in self.world.state.calls:
            self.world.cancel(call_id(n))
            assert self.world.cancel(call_id(n)) == ()

    @rule(which=st.integers(0, len(SPECS) - 1), terms=st.sampled_from(TERMS), args=st.sampled_from(["a", "b"]))
    def submit_with_terms(self, which: int, terms: m.CallTerms, args: str) -> None:
        """A key that is in use makes no second call, and other arguments are refused."""
        function_id, key = SPECS[which].function_id, terms.idempotency_key
        first = key_use(self.world.state, self.world.state.functions[function_id], key, self.world.log_ms)
        command = c.Submit(
            call_id=call_id(self.accepted + 1),
            function_id=function_id,
            owner=ANA,
            args=BodyRef(key="k", size=3),
            terms=terms,
            args_sha256=args,
        )
        if first is not None and first.args_sha256 != args:
            with pytest.raises(InvalidSpecError, match=first.call_id):
                self.world.do(command)
            return
        events = self.world.do(command)
        assert (events == ()) is (first is not None)
        self.accepted += first is None

    # ---- the clock ----

    @rule()
    def schedule(self) -> None:
        self.world.schedule()

    @rule(policy=st.sampled_from(POLICIES))
    def policy_is_set(self, policy: str) -> None:
        self.world.do(c.SetPolicy(policy=policy))

    @rule(ms=st.sampled_from([10, 1_500, 6_000, 30_000, 86_400_000]))
    def time_passes(self, ms: int) -> None:
        self.world.wait(ms)
        self.world.idle_ms = {g.id: ms for g in self.gangs(GangState.READY)}
        self.world.tick()
        late = [k for k in self.world.state.calls.values() if 0 < k.deadline_ms <= self.world.log_ms]
        assert all(k.state.terminal or k.state is CallState.CANCELLING for k in late)
        assert all(use.until_ms > self.world.log_ms for use in self.world.state.keys.values())

    # ---- agents ----

    def gangs(self, *states: GangState) -> list[Gang]:
        found = [g for g in self.world.state.gangs.values() if not states or g.state in states]
        return sorted(found, key=lambda g: g.fence)

    def say(self, node_id: str, message: m.FromAgent) -> ev.Events:
        self.bag.append(Said(node_id, message))
        body = BodyRef(key="r", size=1) if isinstance(message, m.CallFinished) else None
        return self.world.say(node_id, message, result=body)

    def a_gang(self, data: st.DataObject, *states: GangState) -> Gang | None:
        found = self.gangs(*states)
        return data.draw(st.sampled_from(found)) if found else None

    @rule(data=st.data(), works=st.booleans())
    def member_prepares(self, data: st.DataObject, works: bool) -> None:
        gang = self.a_gang(data, GangState.RESERVED, GangState.PREPARING)
        if gang is not None:
            member = data.draw(st.sampled_from(gang.members))
            error = "" if works or data.draw(st.booleans()) else "no disk"
            self.say(
                member.member.node_id,
                m.MemberPrepared(gang_id=gang.id, fence=gang.fence, rendezvous="a:1", error=error),
            )

    @rule(data=st.data())
    def member_is_ready(self, data: st.DataObject) -> None:
        gang = self.a_gang(data, GangState.STARTING)
        if gang is not None:
            for member in gang.members:
                self.say(member.member.node_id, m.MemberReady(gang_id=gang.id, fence=gang.fence, pids=(1,)))

    @rule(data=st.data())
    def gang_comes_up(self, data: st.DataObject) -> None:
        gang = self.a_gang(data, GangState.RESERVED)
        if gang is not None:
            self.world.bring_up(gang)

    @rule(data=st.data(), failed=st.booleans())
    def member_ends(self, data: st.DataObject, failed: bool) -> None:
        gang = self.a_gang(data)
        if gang is not None:
            self._end(gang, data.draw(st.sampled_from(gang.members)).member.node_id, data, failed)

    @rule(data=st.data())
    def draining_gang_ends(self, data: st.DataObject) -> None:
        gang = self.a_gang(data, GangState.DRAINING, GangState.LOST)
        if gang is not None:
            for member in gang.members:
                self._end(gang, member.member.node_id, data, failed=False)

    def _end(self, gang: Gang, node_id: str, data: st.DataObject, failed: bool) -> None:
        error = data.draw(st.sampled_from(ERRORS)) if failed else m.ErrorInfo()
        self.say(node_id, m.MemberEnded(gang_id=gang.id, fence=gang.fence, clean=not failed, error=error))

    def a_call(self, data: st.DataObject, *states: CallState) -> Call | None:
        found = sorted((k for k in self.world.state.calls.values() if k.state in states), key=lambda k: k.id)
        return data.draw(st.sampled_from(found)) if found else None

    @rule(data=st.data())
    def call_starts(self, data: st.DataObject) -> None:
        call = self.a_call(data, CallState.ASSIGNED)
        if call is not None:
            self.say(
                self.world.state.gangs[call.gang_id].lead,
                m.CallStarted(call_id=call.id, attempt=call.attempt, fence=call.fence, gang_id=call.gang_id),
            )

    @rule(data=st.data())
    def direct_call_starts(self, data: st.DataObject) -> None:
        gang = self.a_gang(data, GangState.READY, GangState.BUSY)
        if gang is not None:
            self.accepted += 1
            self.say(gang.lead, m.CallStarted(call_id=call_id(self.accepted), gang_id=gang.id, direct=True))

    @rule(data=st.data(), outcome=st.sampled_from(list(Outcome)))
    def call_finishes(self, data: st.DataObject, outcome: Outcome) -> None:
        call = self.a_call(data, CallState.ASSIGNED, CallState.RUNNING, CallState.CANCELLING)
        if call is None:
            return
        error = data.draw(st.sampled_from(ERRORS)) if outcome is Outcome.FAILED else m.ErrorInfo()
        message = m.CallFinished(
            call_id=call.id,
            attempt=call.attempt,
            fence=call.fence,
            gang_id=call.gang_id,
            outcome=outcome,
            error=error,
            busy_ms=5,
        )
        self.say(self.world.state.gangs[call.gang_id].lead, message)

    @rule(data=st.data())
    def call_is_refused(self, data: st.DataObject) -> None:
        call = self.a_call(data, CallState.ASSIGNED)
        if call is not None:
            self.say(
                self.world.state.gangs[call.gang_id].lead,
                m.CallRefused(call_id=call.id, attempt=call.attempt, fence=call.fence, gang_id=call.gang_id),
            )

    @precondition(lambda self: self.bag)
    @rule(data=st.data())
    def old_message_comes_again(self, data: st.DataObject) -> None:
        """I5: what was said under an old fence changes nothing."""
        said = data.draw(st.sampled_from(self.bag))
        stale = self._is_stale(said.message)
        events = self.world.say(said.node_id, said.message)
        if stale:
            assert {type(e).__name__ for e in events} <= HARMLESS

    def _is_stale(self, message: m.FromAgent) -> bool:
        state = self.world.state
        if isinstance(message, m.MemberPrepared | m.MemberReady | m.MemberEnded):
            gang = state.gangs.get(message.gang_id)
            return gang is None or gang.fence != message.fence
        if isinstance(message, m.CallFinished | m.CallRefused):
            call = state.calls.get(message.call_id)
            return call is None or call.state.terminal or call.fence != message.fence
        return False

    @rule(data=st.data(), ms=st.integers(0, 100_000))
    def counters_are_seen(self, data: st.DataObject, ms: int) -> None:
        gang = self.a_gang(data)
        if gang is not None:
            member = data.draw(st.sampled_from(gang.members)).member
            phase = data.draw(st.sampled_from([Phase.BUSY, Phase.IDLE_WARM]))
            counters = tuple(m.Counter(gpu=gpu, phase=phase, ms=ms) for gpu in member.gpus)
            seen = c.CountersSeen(gang_id=gang.id, node_id=member.node_id, counters=counters)
            self.world.do(c.Tick(meters=(seen,)))

    @rule()
    def lines_are_filed(self) -> None:
        """What the leader does an hour later, once the calls have left; a repetition changes nothing."""
        world = self.world
        over = [key for key, line in world.state.ledger.items() if line.closed_wall_ms]
        keys = tuple(sorted(key for key in over if key.partition("/")[0] not in world.state.gangs))
        sums = sums_of([world.state.ledger[key] for key in keys], "2023-11", BOOK)
        assert bool(world.do(c.FileLines(keys=keys, sums=sums))) == bool(keys)
        assert world.do(c.FileLines(keys=keys, sums=sums)) == ()

    # ---- nodes and leaders ----

    @rule(node_id=st.sampled_from(NODES), silent_ms=st.sampled_from([7_000, 20_000]), proved=st.booleans())
    def node_falls_silent(self, node_id: str, silent_ms: int, proved: bool) -> None:
        self.world.tick(c.NodeSilent(node_id=node_id, silent_ms=silent_ms, proved_gone=proved))

    @rule(node_id=st.sampled_from(NODES), rebooted=st.booleans())
    def node_says_hello(self, node_id: str, rebooted: bool) -> None:
        self.boots += rebooted
        info = self.world.state.nodes[node_id].info
        if rebooted:
            info = replace(info, boot_id=f"boot-{self.boots}")
        held = [] if rebooted else self._held(node_id)
        self.world.hello(info, *held)

    @rule(
        node_id=st.sampled_from(NODES),
        state=st.sampled_from([NodeState.READY, NodeState.CORDONED, NodeState.DRAINING]),
        deadline_ms=st.sampled_from([None, 0, 5_000]),
    )
    def admin_says(self, node_id: str, state: NodeState, deadline_ms: int | None) -> None:
        said = c.SetNodeState(node_id=node_id, state=state, by="ana", deadline_in_ms=deadline_ms)
        self.world.do(said)
        again = self.world.do(said)
        assert deadline_ms or "NodeCordoned" not in self.world.kinds(again)

    def _held(self, node_id: str) -> list[Gang]:
        found = (g for g in self.gangs() if g.state is not GangState.RESERVED)
        return [g for g in found if any(k.member.node_id == node_id and not k.ended for k in g.members)]

    @rule(data=st.data())
    def leader_fails_before_its_batch_is_durable(self, data: st.DataObject) -> None:
        """The speculative tail is lost; the next leader decides on what is durable."""
        world = self.world
        lost = data.draw(st.sampled_from([c.Schedule(raw_ids=world.raw_ids()), c.Tick()]))
        decide(world.state, lost, world.now)
        world.do(c.TakeOver(epoch=world.state.epoch + 1, leader_id="b"))

    # ---- what must hold ----

    @invariant()
    def state_is_sound(self) -> None:
        check_state(self.world.state)
        check_picture(self.world.state)

    @invariant()
    def accepted_calls_are_there_and_ended_ones_final(self) -> None:
        """I1 and I2."""
        calls = self.world.state.calls
        assert len(calls) == self.accepted
        for known in self.ended.values():
            assert calls[known.id] == known
        self.ended = {k.id: k for k in calls.values() if k.state.terminal}

    @invariant()
    def no_millisecond_is_outside_its_lease(self) -> None:
        """I9."""
        world = self.world
        for line in world.state.ledger.values():
            longest = (world.wall_ms - line.opened_wall_ms) * 1.005 + 1_001
            for gpu in {name.partition("/")[0] for name in line.counters}:
                assert gpu in line.gpus
                assert sum(ms for name, ms in line.counters.items() if name.startswith(gpu + "/")) <= longest

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self._heal()
        for _ in range(200):
            if not self.world.state.gangs and not self.world.state.queue:
                break
            self._everybody_does_their_part()
        state = self.world.state
        assert all(k.state in TERMINAL for k in state.calls.values())  # I1: nothing waits for ever
        assert not state.gangs  # I7: no lease outlives its work
        assert all(line.closed_wall_ms for line in state.ledger.values())
        check_history(self.world.history, state)
        self._nothing_ran_twice_without_retries()
        self._every_counted_millisecond_is_billed_once()

    def _every_counted_millisecond_is_billed_once(self) -> None:
        """I9, over the ledger and its files."""
        most: dict[tuple[str, str, str], int] = {}
        for _, _, batch in self.world.history:
            for event in batch:
                if isinstance(event, ev.MeterCounted):
                    for name, ms in event.counters.items():
                        key = (event.gang_id, event.node_id, name)
                        most[key] = max(ms, most.get(key, 0))
        state = self.world.state
        held = sum(ms for line in state.ledger.values() for ms in line.counters.values())
        assert held + sum(each.ms for each in state.filed.values()) == sum(most.values())

    def _nothing_ran_twice_without_retries(self) -> None:
        once = SPECS[ONCE].function_id
        for call in self.world.state.calls.values():
            if call.function_id == once and not call.retries:
                ran = [e for _, _, batch in self.world.history for e in batch if isinstance(e, ev.CallRan)]
                assert len([e for e in ran if e.call_id == call.id]) <= 1 + call.tries.get("preempted", 0)

    def _heal(self) -> None:
        for node_id in NODES:
            self.world.do(c.SetNodeState(node_id=node_id, state=NodeState.READY, by="ana"))
            self.world.hello(self.world.state.nodes[node_id].info, *self._held(node_id))

    def _everybody_does_their_part(self) -> None:
        world = self.world
        world.wait(10_000)
        world.idle_ms = {g.id: 10_000 for g in self.gangs(GangState.READY)}
        world.tick()
        world.schedule()
        for gang in self.gangs():
            if gang.state in (GangState.RESERVED, GangState.PREPARING, GangState.STARTING):
                world.bring_up(gang)
            elif gang.state in (GangState.DRAINING, GangState.LOST):
                world.end(gang)
        for call in sorted(world.state.calls.values(), key=lambda k: k.id):
            if call.state in (CallState.ASSIGNED, CallState.RUNNING, CallState.CANCELLING):
                world.finish(call.id)


TestCore = Core.TestCase
TestCore.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None, suppress_health_check=(HealthCheck.too_slow,)
)
