"""Ends of calls, told to a real HTTP server: whatever it answers, however slow it is, and over a change of leaders."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import pytest

from phalanx import webhooks
from phalanx.core.clock import ManualClock
from phalanx.core.errors import ConnectionFailedError
from phalanx.core.messages import CallTerms
from phalanx.core.views import CostView
from phalanx.core.webhooks import secret_text
from phalanx_control.lifecycle.webhooks import RETRY_AFTER_S
from phalanx_control.state.commands import NoteWebhooks
from phalanx_control.state.events import Events
from phalanx_control.state.model import Call, Delivery, State
from phalanx_control.webhook_targets import Lookups
from phalanx_control.webhook_teller import AT_ONCE, JITTER, TO_ONE_HOST, WebhookTeller
from tests.support.builders import ANA, World, call_id, node_info, spec
from tests.support.receiver import Receiver
from tests.support.wait import wait_until_async

TIMEOUT_S = 0.3
SECRETS = (b"s" * 32, b"f" * 32)


@dataclass(slots=True)
class Leader:
    """The pure core behind the door that the teller knows."""

    world: World
    leads: bool = True
    writes: bool = True
    rounds: int = 0

    @property
    def is_leader(self) -> bool:
        """Asked once a round."""
        self.rounds += 1
        return self.leads

    @property
    def state(self) -> State:
        return self.world.state

    async def execute(self, command: NoteWebhooks) -> Events:
        if not self.writes:
            raise ConnectionFailedError("the store is away")
        return self.world.do(command)


@dataclass(slots=True)
class Names:
    """What names mean: 127.0.0.1, and those that begin with "slow" only once ``go`` is set."""

    go: threading.Event = field(default_factory=threading.Event)
    asked: Counter[str] = field(default_factory=Counter[str])

    def __call__(self, host: str, port: int) -> list[str]:
        assert port
        self.asked[host] += 1
        if host.startswith("slow"):
            self.go.wait(30)
        return ["127.0.0.1"]


class Pictures:
    def label(self, state: State, function_id: str) -> str:
        return state.functions[function_id].spec.name

    def call_cost(self, state: State, call: Call) -> CostView:
        assert state.calls[call.id] == call
        return CostView(money="0.12", currency="EUR")


class Keys:
    def signing(self, workspace: str) -> tuple[bytes, ...]:
        assert workspace == ANA.workspace
        return SECRETS


@contextlib.asynccontextmanager
async def telling(
    leader: Leader, clock: ManualClock, *, private: bool = True, lookups: Lookups | None = None
) -> AsyncGenerator[None]:
    """A teller at work. Leaving ends it as a kill would: what it has not written down is forgotten."""
    teller = WebhookTeller(
        controller=leader,
        pictures=Pictures(),
        keys=Keys(),
        clock=clock,
        allow_private=private,
        timeout_s=TIMEOUT_S,
        round_s=0.005,
        draw=lambda: 0.5,
        lookups=lookups or Lookups(AT_ONCE),
    )
    task = asyncio.create_task(teller.run())
    try:
        yield
    finally:
        assert not task.done(), task.exception()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def some_rounds(leader: Leader) -> None:
    """Time enough for the teller to do what it must not."""
    until = leader.rounds + 10
    await wait_until_async(lambda: leader.rounds >= until, "the teller looks ten times")


def ended_call(world: World, url: str, n: int = 1) -> Callable[[], Delivery]:
    """Makes a call that has ended, and returns how far its telling is."""
    world.submit(n, world.register(spec()), terms=CallTerms(webhook=url))
    world.cancel(call_id(n))

    def delivery() -> Delivery:
        found = world.call(call_id(n)).delivery
        assert found is not None
        return found

    return delivery


def ready() -> tuple[World, Leader, ManualClock]:
    world = World(node_info())
    return world, Leader(world), ManualClock(wall_ms=world.wall_ms)


async def test_a_receiver_is_told_once_what_it_can_verify() -> None:
    world, leader, clock = ready()
    async with Receiver() as receiver, telling(leader, clock):
        delivery = ended_call(world, receiver.url)
        await wait_until_async(lambda: delivery().over, "it is told")
        await some_rounds(leader)
    assert delivery() == Delivery(attempts=1, status=200, over="delivered")
    (got,) = receiver.got
    assert got.path == "/hook?a=b"
    assert got.headers["webhook-id"] == call_id(1)
    assert got.headers["content-type"] == "application/json"
    for secret in SECRETS:
        said = webhooks.verify(got.headers, got.body, secret_text(secret), clock=clock)
        assert said == {
            "id": call_id(1),
            "function": "train",
            "state": "cancelled",
            "attempt": 0,
            "cause": None,
            "started": None,
            "ended": said["ended"],
            "charge": {"amount": "0.12", "currency": "EUR"},
            "map": None,
        }
        assert said["ended"].endswith("Z")
    assert len(got.body) < 1024


async def test_after_an_error_it_is_told_again_later_under_the_same_id() -> None:
    world, leader, clock = ready()
    async with Receiver([500, 200]) as receiver, telling(leader, clock):
        delivery = ended_call(world, receiver.url)
        await wait_until_async(lambda: delivery().attempts == 1, "the first attempt is noted")
        assert delivery().status == 500
        assert delivery().next_wall_ms == clock.wall_ms() + 5000
        await some_rounds(leader)
        assert len(receiver.got) == 1
        clock.advance(5000)
        await wait_until_async(lambda: delivery().over, "it is told again")
    assert delivery().over == "delivered"
    first, second = receiver.got
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert int(second.headers["webhook-timestamp"]) - int(first.headers["webhook-timestamp"]) == 5
    assert first.body == second.body


async def test_attempts_come_ever_later_and_end_after_about_a_day() -> None:
    world, leader, clock = ready()
    began = clock.wall_ms()
    async with Receiver([503]) as receiver, telling(leader, clock):
        delivery = ended_call(world, receiver.url)
        for attempt, wait_s in enumerate(RETRY_AFTER_S, 1):
            await wait_until_async(lambda a=attempt: delivery().attempts == a, "one more attempt")
            assert delivery().next_wall_ms - clock.wall_ms() == wait_s * 1000
            clock.advance(wait_s * 1000)
        await wait_until_async(lambda: delivery().over, "it is given up")
    assert delivery().over == "given up"
    assert len(receiver.got) == len(RETRY_AFTER_S) + 1
    assert 20 * 3_600_000 < clock.wall_ms() - began < 28 * 3_600_000
    assert 0 < JITTER < 0.5


@pytest.mark.parametrize(
    ("answer", "over", "error"),
    [
        (410, "refused", ""),
        (302, "", "answered 302, and redirects are not followed"),
        (0, "", "no answer within 0.3 s"),
        (-1, "", "no HTTP answer: b'SSH-2.0-x"),
        (204, "delivered", ""),
    ],
    ids=["gone", "redirect", "silence", "no HTTP", "no content"],
)
async def test_each_answer_has_its_consequence(answer: int, over: str, error: str) -> None:
    world, leader, clock = ready()
    async with Receiver([answer]) as receiver, telling(leader, clock):
        delivery = ended_call(world, receiver.url)
        await wait_until_async(lambda: delivery().attempts, "an attempt is noted")
        assert delivery().over == over
        assert delivery().error.startswith(error)
        assert bool(delivery().error) == bool(error)
        assert len(receiver.got) == 1
        assert (delivery().next_wall_ms == 0) == bool(over)


async def test_nothing_is_asked_of_private_addresses_unless_settings_allow_it() -> None:
    world, leader, clock = ready()
    async with Receiver() as receiver, telling(leader, clock, private=False):
        by_name = ended_call(world, receiver.url.replace("127.0.0.1", "localhost"), 2)
        delivery = ended_call(world, receiver.url)
        await wait_until_async(lambda: delivery().over and by_name().over, "both are refused")
    assert delivery().over == by_name().over == "refused"
    assert delivery().error.startswith("127.0.0.1 leads to no public address")
    assert by_name().error.startswith("localhost leads to no public address")
    assert receiver.got == []


async def test_a_receiver_that_is_not_there_is_tried_again() -> None:
    world, leader, clock = ready()
    async with Receiver() as receiver:
        url = receiver.url
    async with telling(leader, clock):
        delivery = ended_call(world, url)
        await wait_until_async(lambda: delivery().attempts, "an attempt is noted")
    assert (delivery().status, delivery().over) == (0, "")
    assert "onnect" in delivery().error


async def test_the_next_leader_goes_on_and_repeats_what_was_not_written_down() -> None:
    world, leader, clock = ready()
    async with Receiver() as receiver:
        leader.writes = False
        async with telling(leader, clock):
            delivery = ended_call(world, receiver.url)
            await wait_until_async(lambda: receiver.got, "it is told")
            await some_rounds(leader)
            assert len(receiver.got) == 1, "told twice while the store was away"
        assert delivery().attempts == 0
        async with telling(Leader(world), clock):
            await wait_until_async(lambda: delivery().over, "the next leader tells it")
        assert [got.headers["webhook-id"] for got in receiver.got] == [call_id(1)] * 2
        third = Leader(world)
        async with telling(third, clock):
            await some_rounds(third)
        assert len(receiver.got) == 2


async def test_who_does_not_lead_tells_nothing() -> None:
    world, leader, clock = ready()
    leader.leads = False
    async with Receiver() as receiver, telling(leader, clock):
        ended_call(world, receiver.url)
        await some_rounds(leader)
    assert receiver.got == []


async def test_a_slow_receiver_holds_up_nobody_else() -> None:
    world, leader, clock = ready()
    async with Receiver() as slow, Receiver() as quick, telling(leader, clock):
        slow.hold.clear()
        for n in range(2 * AT_ONCE):
            ended_call(world, slow.url, n)
        delivery = ended_call(world, quick.url, 99)
        await wait_until_async(lambda: delivery().over, "the quick one is told")
        assert len(slow.got) <= TO_ONE_HOST
        slow.hold.set()
        await wait_until_async(
            lambda: len({got.headers["webhook-id"] for got in slow.got}) == 2 * AT_ONCE, "all are told"
        )
    assert slow.most_at_once <= TO_ONE_HOST


async def test_thousands_that_are_due_to_a_dead_receiver_hold_up_nobody_else() -> None:
    world, leader, clock = ready()
    async with Receiver() as dead, Receiver() as quick:
        dead.hold.clear()
        for n in range(5000):
            ended_call(world, dead.url, n)
        delivery = ended_call(world, quick.url, 9999)
        async with telling(leader, clock):
            await wait_until_async(lambda: delivery().over, "the quick one is told")
            assert leader.rounds < 10, "it is told at once, not after the others were tried"


async def test_another_spelling_of_a_name_is_no_other_receiver() -> None:
    world, leader, clock = ready()
    lookups = Lookups(AT_ONCE, Names())
    async with Receiver() as receiver, telling(leader, clock, lookups=lookups):
        receiver.hold.clear()
        for n in range(2 * AT_ONCE):
            ended_call(world, receiver.url.replace("127.0.0.1", ("h.test", "H.test", "h.test.", "H.TEST.")[n % 4]), n)
        await wait_until_async(lambda: len(receiver.got) == TO_ONE_HOST, "as many as may be are asked")
        await some_rounds(leader)
    assert receiver.most_at_once == TO_ONE_HOST


async def test_names_that_are_slow_to_look_up_fail_nobody_elses_attempt() -> None:
    world, leader, clock = ready()
    names = Names()
    async with Receiver() as receiver, telling(leader, clock, lookups=Lookups(AT_ONCE, names)):
        slow = [ended_call(world, f"http://slow{n}.test/", n) for n in range(AT_ONCE - 1)]
        await wait_until_async(lambda: all(each().attempts for each in slow), "the slow ones time out")
        delivery = ended_call(world, receiver.url.replace("127.0.0.1", "quick.test"), 98)
        await wait_until_async(lambda: delivery().over, "the quick one is told")
        last = ended_call(world, "http://slow.test/", 99)
        await wait_until_async(lambda: last().attempts, "now every thread looks something up")
        waits = ended_call(world, receiver.url.replace("127.0.0.1", "other.test"), 97)
        until = time.monotonic() + 2 * TIMEOUT_S
        await wait_until_async(lambda: time.monotonic() > until, "an attempt would have timed out")
        assert waits().attempts == 0, "what cannot be looked up yet is no failed attempt"
        names.go.set()
        await wait_until_async(lambda: waits().over, "it is told in its turn")
    assert (delivery().attempts, waits().attempts) == (1, 1)


async def test_a_name_is_looked_up_once_at_a_time_however_many_ask() -> None:
    world, leader, clock = ready()
    names = Names()
    async with telling(leader, clock, lookups=Lookups(AT_ONCE, names)):
        slow = [ended_call(world, "http://slow.test/", n) for n in range(3 * TO_ONE_HOST)]
        await wait_until_async(lambda: all(each().attempts for each in slow), "all have been tried")
        assert names.asked == {"slow.test": 1}
        names.go.set()
