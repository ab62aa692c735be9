"""What a leader promises: durable before told, one batch for many, refusals that reach the asker, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace

import pytest

from phalanx.core.clock import ManualClock, SystemClock
from phalanx.core.errors import ConnectionFailedError, NotFoundError, PhalanxError
from phalanx.core.messages import GangFacts, Hello, NodeInfo, Report, ToAgent
from phalanx_control.controller_feed import Change
from phalanx_control.controller_rules import Rules, Timing
from phalanx_control.lifecycle.decide import decide
from phalanx_control.log.errors import (
    AppendUncertainError,
    BodiesOverCapError,
    FencedOutError,
    NotLeaderError,
    StoreUnavailableError,
)
from phalanx_control.log.keys import Keys
from phalanx_control.log.log import Batch, LogStore, NewBody
from phalanx_control.log.memory import MemoryLog
from phalanx_control.log.redis_log import RedisLog
from phalanx_control.state import commands as c
from phalanx_control.state import events as ev
from phalanx_control.state.model import BodyRef, State
from tests.support.replicas import OWNER, SPEC, kinds, leading, leads, no_peers, start_replica, submit
from tests.support.store import StoreServer, ownerless_keys, running_store
from tests.support.wait import wait_until_async

CAP_BYTES = 200_000


@pytest.fixture(scope="module")
def server() -> Iterator[StoreServer]:
    with running_store() as store:
        yield store


@pytest.fixture(params=["memory", "redis"])
async def log(request: pytest.FixtureRequest, server: StoreServer) -> AsyncIterator[LogStore]:
    if request.param == "memory":
        yield MemoryLog(SystemClock(), cap_bytes=CAP_BYTES)
        return
    client = server.client()
    client.flushall()
    client.close()
    redis_log = RedisLog(server.url, cell="t", cap_bytes=CAP_BYTES)
    yield redis_log
    await redis_log.close()
    assert ownerless_keys(server, Keys("t").permanent) == []


async def test_a_first_replica_leads_at_once_and_says_so_in_the_log(log: LogStore) -> None:
    async with leading(log) as controller:
        assert controller.role == "leader"
        assert controller.leader_address == "a:1"
        first = (await log.read_after(0))[0]
        assert first.events == (ev.LeaderTookOver(epoch=1, leader_id=controller.leader_id),)
        assert controller.state.epoch == 1


async def test_what_execute_returned_is_in_the_log_and_in_the_state(log: LogStore) -> None:
    async with leading(log) as controller:
        call_id = await submit(controller, body=b"arguments")
        assert call_id in controller.state.calls
        logged = [e.call.id for b in await log.read_after(0) for e in b.events if isinstance(e, ev.CallAccepted)]
        assert logged == [call_id]
        assert await controller.body(controller.state.calls[call_id].args) == b"arguments"
        assert controller.seq == await log.last()


async def test_many_waiting_commands_share_batches(log: LogStore) -> None:
    async with leading(log) as controller:
        before = controller.seq
        ids = await asyncio.gather(*(submit(controller) for _ in range(200)))
        assert set(ids) <= set(controller.state.calls)
        assert controller.seq - before < 20


async def test_the_same_submission_again_is_the_same_call(log: LogStore) -> None:
    async with leading(log) as controller:
        call_id = await submit(controller, body=b"first")
        before = controller.seq
        await submit(controller, call_id, body=b"other")
        assert await log.body(f"{call_id}/args") == b"first"
        assert not any(isinstance(e, ev.CallAccepted) for b in await log.read_after(before) for e in b.events)


async def test_a_refusal_reaches_only_the_one_who_asked(log: LogStore) -> None:
    async with leading(log) as controller:
        wrong = c.Submit(call_id="c-1", function_id="f-none", owner=OWNER, args=BodyRef())
        outcomes = await asyncio.gather(
            submit(controller), controller.execute(wrong), submit(controller), return_exceptions=True
        )
        assert [isinstance(o, NotFoundError) for o in outcomes] == [False, True, False]


async def test_a_rule_that_fails_costs_its_asker_an_error_and_nobody_else_anything(log: LogStore) -> None:
    def broken(state: State, command: c.Command, now: c.Now) -> ev.Events:
        if isinstance(command, c.Cancel):
            raise ZeroDivisionError
        return decide(state, command, now)

    async with leading(log, rules=Rules(sign_peers=no_peers, decide=broken)) as controller:
        with pytest.raises(PhalanxError, match="failed on this request"):
            await controller.execute(c.Cancel(call_id="c", owner=OWNER))
        await submit(controller)


async def test_a_full_workspace_is_refused_and_the_rest_of_the_batch_goes_on(log: LogStore) -> None:
    async with leading(log) as controller:
        await submit(controller, body=bytes(CAP_BYTES - 1000))
        outcomes = await asyncio.gather(
            submit(controller, body=bytes(5000)), submit(controller), return_exceptions=True
        )
        assert isinstance(outcomes[0], BodiesOverCapError)
        assert outcomes[1] in controller.state.calls


async def test_changes_are_told_in_order_with_the_state_before_and_after(log: LogStore) -> None:
    async with leading(log) as controller:
        changes = controller.changes()
        start = controller.state
        call_id = await submit(controller)
        change = await anext(changes)
        assert change.before is start
        assert call_id in change.after.calls
        assert "CallAccepted" in kinds(change.events)


async def test_a_slow_reader_gets_a_resync_marker_and_never_stalls_the_writer() -> None:
    async with leading(MemoryLog(SystemClock())) as controller:
        changes = controller.changes()
        for _ in range(1100):
            await submit(controller)
        marker = await anext(changes)
        assert marker.is_resync
        assert marker.after is controller.state
        call_id = await submit(controller)
        assert call_id in (await anext(changes)).after.calls


async def test_waiting_for_a_number_that_never_comes_is_unavailable(log: LogStore) -> None:
    async with leading(log) as controller:
        await controller.wait_for_seq(controller.seq)
        with pytest.raises(ConnectionFailedError, match="did not reach"):
            await controller.wait_for_seq(controller.seq + 10, timeout_s=0.02)


class FlakyLog(MemoryLog):
    """Loses the answers of appends: ``landed`` of them after, ``lost`` before they were written."""

    landed = 0
    lost = 0
    down = False

    async def append(self, batch: Batch, bodies: Sequence[NewBody] = ()) -> None:
        if self.down:
            raise StoreUnavailableError("MISCONF")
        if self.lost:
            self.lost -= 1
            raise AppendUncertainError("lost before")
        await super().append(batch, bodies)
        if self.landed:
            self.landed -= 1
            raise AppendUncertainError("lost after")


@pytest.mark.parametrize("where", ["landed", "lost"])
async def test_an_append_whose_answer_was_lost_happens_exactly_once(where: str) -> None:
    log = FlakyLog(SystemClock())
    async with leading(log) as controller:
        setattr(log, where, 2)
        call_id = await submit(controller)
        accepted = [e for b in await log.read_after(0) for e in b.events if isinstance(e, ev.CallAccepted)]
        assert [e.call.id for e in accepted] == [call_id]
        assert controller.is_leader


async def test_a_store_that_takes_no_writes_is_unavailable_and_then_works_again() -> None:
    log = FlakyLog(SystemClock())
    async with leading(log) as controller:
        log.down = True
        with pytest.raises(StoreUnavailableError, match="MISCONF"):
            await submit(controller, "c-00000000000000000000000001")
        assert "c-00000000000000000000000001" not in controller.state.calls
        log.down = False
        await submit(controller)


async def test_a_fenced_leader_drops_what_it_decided_and_sends_askers_on(log: LogStore) -> None:
    replica = start_replica(log, "old", timing=Timing(renew_s=60))
    await leads(replica)
    controller = replica.controller
    await controller.execute(c.RegisterFunction(owner=OWNER, spec=SPEC))
    assert await log.acquire(await log.leader(), leader_id="new", address="new:1")
    with pytest.raises(NotLeaderError) as refused:
        await submit(controller, "c-00000000000000000000000001")
    assert refused.value.address == "new:1"
    assert controller.role == "standby"
    assert "c-00000000000000000000000001" not in controller.state.calls
    await replica.stop()


async def test_forced_twice_only_one_leader_writes(log: LogStore) -> None:
    old = start_replica(log, "old", timing=Timing(renew_s=60))
    await leads(old)
    await old.controller.execute(c.RegisterFunction(owner=OWNER, spec=SPEC))
    new = start_replica(log, "new", timing=Timing(stale_after_ms=0))
    await leads(new)
    outcomes = await asyncio.gather(
        *(submit(r.controller) for r in (old, new) for _ in range(10)), return_exceptions=True
    )
    assert all(isinstance(o, NotLeaderError) for o in outcomes[:10])
    assert set(map(str, outcomes[10:])) <= set(new.controller.state.calls)
    epochs = [b.epoch for b in await log.read_after(0)]
    assert epochs == sorted(epochs)
    await new.stop()
    await old.stop()


async def test_wall_clock_jumps_change_no_log_ms(log: LogStore) -> None:
    clock = ManualClock(monotonic_ms=5_000)
    async with leading(log, clock=clock) as controller:
        base = controller.state.log_ms
        for jump_ms in (3_600_000, -7_200_000, 86_400_000):
            clock.jump_wall(jump_ms)
            await submit(controller)
        assert controller.state.log_ms == base
        clock.advance(1234)
        await submit(controller)
        assert controller.state.log_ms == base + 1234


async def test_log_time_goes_on_where_the_former_leader_left_it(log: LogStore) -> None:
    clock = ManualClock(monotonic_ms=500_000)
    async with leading(log, clock=clock) as controller:
        clock.advance(10_000)
        await submit(controller)
        left_at = controller.state.log_ms
    async with leading(log, "b", clock=ManualClock(monotonic_ms=7, wall_ms=1)) as controller:
        await submit(controller)
        assert controller.state.log_ms == left_at


NODE = NodeInfo(node_id="n1", hostname="n1", cpus=4)


async def test_an_agent_that_says_hello_is_told_to_stop_what_it_should_not_hold(log: LogStore) -> None:
    async with leading(log) as controller:
        told: list[ToAgent] = []
        controller.attach("n1", told.append)
        stranger = GangFacts(gang_id="g-old", fence=7)
        await controller.execute(c.AgentSaid(node_id="n1", message=Hello(node=NODE, gangs=(stranger,))))
        await wait_until_async(lambda: [getattr(m, "gang_id", "") for m in told] == ["g-old"], "Stop is sent")
        controller.detach("n1", told.append)


async def test_silence_is_told_to_the_rules_and_not_counted_while_this_process_was_stopped() -> None:
    clock = ManualClock()
    async with leading(MemoryLog(clock), clock=clock, timing=Timing(tick_s=0.01)) as controller:
        await controller.execute(c.AgentSaid(node_id="n1", message=Hello(node=NODE)))
        for _ in range(12):
            clock.advance(500)
            await wait_until_async(lambda: controller.facts.silent_ms("n1") <= 6_000, "a tick")
            await asyncio.sleep(0.02)
        silent_ms = controller.facts.silent_ms("n1")
        assert 5_000 <= silent_ms <= 6_000
        clock.advance(60_000)
        await wait_until_async(lambda: controller.facts.silent_ms("n1") < 9_000, "the pause is taken out")
        controller.note_report("n1", Report())
        assert controller.facts.silent_ms("n1") == 0


async def test_a_standby_refuses_commands_and_names_the_leader(log: LogStore) -> None:
    async with leading(log) as controller:
        standby = start_replica(log, "b")
        await standby.controller.wait_for_seq(controller.seq)
        await wait_until_async(lambda: standby.controller.leader_address == "a:1", "the leader is known")
        with pytest.raises(NotLeaderError, match="a:1"):
            await submit(standby.controller)
        await standby.stop()


async def test_a_standby_reads_what_the_leader_just_wrote(log: LogStore) -> None:
    async with leading(log) as controller:
        standby = start_replica(log, "b")
        for _ in range(20):
            call_id = await submit(controller)
            await standby.controller.wait_for_seq(controller.seq, timeout_s=2)
            assert call_id in standby.controller.state.calls
        assert standby.controller.state == controller.state
        await standby.stop()


async def test_a_leader_that_stops_in_order_is_followed_at_once(log: LogStore) -> None:
    first = start_replica(log, "a")
    await leads(first)
    second = start_replica(log, "b")
    await second.controller.wait_for_seq(1)
    await first.stop()
    await leads(second, timeout_s=1.5)
    assert second.controller.state.epoch == 2
    await second.stop()


async def test_a_replica_does_not_lead_what_it_cannot_read(log: LogStore) -> None:
    async with leading(log, timing=Timing(renew_s=60)) as controller:
        record = await log.leader()
        future = Batch(
            seq=controller.seq + 1,
            epoch=record.epoch,
            leader_id=record.leader_id,
            log_ms=0,
            wall_ms=0,
            events=(ev.CallsArchived(call_ids=()),),
        )
        await log.append(replace(future, schema=99))
        standby = start_replica(log, "b", timing=Timing(stale_after_ms=100))
        await wait_until_async(lambda: standby.controller.cannot_lead, "it says why it cannot lead")
        assert "schema version 99" in standby.controller.cannot_lead
        assert standby.controller.seq == future.seq - 1
        await log.resign(record.epoch, record.leader_id)
        assert await log.read_after(future.seq, block_ms=600) == []
        assert not standby.controller.is_leader
        await standby.stop()


async def test_a_fence_error_names_who_leads() -> None:
    assert "epoch 3 of leader b" in str(FencedOutError(3, "b"))


def test_a_change_unpacks_as_three() -> None:
    before, events, after = Change(State(), (), State())
    assert (before, events, after) == (State(), (), State())
