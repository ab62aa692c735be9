"""Messages to agents: filled, in order, to the newest session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from phalanx.core.errors import NotFoundError
from phalanx.core.messages import CallFinished, Member, Offer, Start, Stop, ToAgent
from phalanx.core.states import Cause, Outcome
from phalanx_control.controller_delivery import Delivery
from phalanx_control.log.errors import StoreUnavailableError
from phalanx_control.state.commands import AgentSaid
from phalanx_control.state.model import BodyRef, Call, Gang, MemberState, Owner, State
from tests.support.replicas import no_peers
from tests.support.wait import wait_until_async

GANG = Gang(
    id="g",
    fence=1,
    function_id="f",
    owner=Owner(),
    members=tuple(MemberState(member=Member(node_id=n)) for n in ("n1", "n2", "n3")),
)
CALL = Call(id="c", function_id="f", owner=Owner(), args=BodyRef(key="c/args", size=4))
STATE = State(calls=State().calls.set("c", CALL), gangs=State().gangs.set("g", GANG))


class Bodies:
    """A store of one body that may be away once."""

    def __init__(self, data: bytes | None = b"args", *, away: int = 0) -> None:
        self._data = data
        self._away = away

    async def read(self, name: str) -> bytes:
        if self._away:
            self._away -= 1
            raise StoreUnavailableError("away")
        if self._data is None or name != "c/args":
            raise NotFoundError("expired")
        return self._data


@asynccontextmanager
async def delivery_of(bodies: Bodies, lost: list[AgentSaid] | None = None) -> AsyncGenerator[Delivery]:
    ended: list[AgentSaid] = [] if lost is None else lost
    delivery = Delivery(bodies.read, no_peers, lost_args=ended.append)
    task = asyncio.create_task(delivery.run())
    try:
        yield delivery
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_offer_carries_the_arguments_and_order_is_kept() -> None:
    told: list[ToAgent] = []
    async with delivery_of(Bodies()) as delivery:
        delivery.attach("n1", told.append)
        stop = Stop(gang_id="old")
        delivery.push([("n1", Offer(call_id="c", gang_id="g")), ("n1", stop), ("elsewhere", stop)], STATE)
        await wait_until_async(lambda: len(told) == 2, "both are told")
    assert isinstance(told[0], Offer)
    assert (told[0].args.data, told[0].args.size) == (b"args", 4)
    assert told[1] == stop


async def test_only_the_leads_start_carries_tickets_to_the_others() -> None:
    told: dict[str, list[ToAgent]] = {"n1": [], "n2": []}
    async with delivery_of(Bodies()) as delivery:
        for node_id, messages in told.items():
            delivery.attach(node_id, messages.append)
        delivery.push([(n, Start(gang_id="g", fence=1)) for n in told], STATE)
        await wait_until_async(lambda: all(told.values()), "both are told")
    assert told["n1"] == [Start(gang_id="g", fence=1, peer_tickets=("ticket for n2", "ticket for n3"))]
    assert told["n2"] == [Start(gang_id="g", fence=1)]


async def test_a_newer_session_takes_over_and_the_older_ones_end_does_not_detach_it() -> None:
    old: list[ToAgent] = []
    new: list[ToAgent] = []
    async with delivery_of(Bodies()) as delivery:
        send_old, send_new = old.append, new.append
        delivery.attach("n1", send_old)
        delivery.attach("n1", send_new)
        delivery.detach("n1", send_old)
        delivery.push([("n1", Stop())], STATE)
        await wait_until_async(lambda: new, "the new session is told")
        delivery.detach("n1", send_new)
        assert delivery.attached == ()
    assert old == []


async def test_while_the_store_is_away_an_offer_is_left_for_later_and_others_go_on() -> None:
    told: list[ToAgent] = []
    async with delivery_of(Bodies(away=1)) as delivery:
        delivery.attach("n1", told.append)
        delivery.push([("n1", Offer(call_id="c")), ("n1", Stop())], STATE)
        await wait_until_async(lambda: told, "Stop is told")
        assert told == [Stop()]
        delivery.push([("n1", Offer(call_id="c"))], STATE)
        await wait_until_async(lambda: len(told) == 2, "the offer is told")


async def test_a_call_whose_arguments_have_expired_is_ended_and_not_offered() -> None:
    lost: list[AgentSaid] = []
    async with delivery_of(Bodies(None), lost) as delivery:
        delivery.attach("n1", lambda _: None)
        delivery.push([("n1", Offer(call_id="c", attempt=2, fence=5, gang_id="g"))], STATE)
        await wait_until_async(lambda: lost, "the call is ended")
    message = lost[0].message
    assert isinstance(message, CallFinished)
    assert (message.call_id, message.attempt, message.fence, message.outcome) == ("c", 2, 5, Outcome.FAILED)
    assert message.error.cause is Cause.INFRASTRUCTURE
