"""What agents are told, once and again."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core import messages as m
from phalanx.core.spec import Limits
from phalanx.core.topology.presets import preset
from phalanx_control.lifecycle.outbox import messages_for, reconcile
from phalanx_control.state import commands as c
from phalanx_control.state.model import Gang
from tests.support.builders import ANA, World, call_id, node_info, spec
from tests.support.cells import looks_like

HASH = "ab" * 32


def world_with_gang(limits: Limits | None = None) -> tuple[World, Gang]:
    world = World(node_info("n1", gpus=2), node_info("n2", gpus=2))
    world.submit(1, world.register(spec(gpus=4, limits=limits)))
    world.schedule()
    return world, world.only_gang()


def kinds(messages: tuple[m.ToAgent, ...] | list[m.ToAgent]) -> list[str]:
    return [type(x).__name__ for x in messages]


def facts(gang: Gang, *calls: str) -> m.GangFacts:
    return m.GangFacts(gang_id=gang.id, fence=gang.fence, call_ids=calls)


def test_the_lead_is_asked_first_and_the_others_with_its_address() -> None:
    world, gang = world_with_gang()
    (first,) = world.messages_to("n1")
    assert isinstance(first, m.Prepare)
    assert (first.node_rank, first.rendezvous, first.fence, len(first.members)) == (0, "", gang.fence, 2)
    assert (first.workspace, first.user, first.placement) == ("default", "ana", gang.placement)
    assert world.messages_to("n2") == []
    world.say("n1", m.MemberPrepared(gang_id=gang.id, fence=gang.fence, rendezvous="n1:5"))
    (second,) = world.messages_to("n2")
    assert isinstance(second, m.Prepare)
    assert (second.node_rank, second.rendezvous) == (1, "n1:5")


def test_every_member_hears_that_the_gangs_nodes_have_only_sockets_in_common() -> None:
    node = preset("hgx_h100")
    down = replace(node, nics=tuple(replace(nic, up=False) for nic in node.nics))
    world = World(looks_like(node, "n1"), looks_like(down, "n2"))
    world.submit(1, world.register(spec(gpus=16)))
    world.schedule()
    gang = world.only_gang()
    lead, other = (member.member.node_id for member in gang.members)
    world.say(lead, m.MemberPrepared(gang_id=gang.id, fence=gang.fence, rendezvous="n1:5"))
    told = [x.networks_differ for each in (lead, other) for x in world.messages_to(each) if isinstance(x, m.Prepare)]
    assert told == ["the gang's nodes are on different networks: n1 has InfiniBand, n2 has no usable RDMA port"] * 2


def test_members_name_their_address_and_ranks() -> None:
    _, gang = world_with_gang()
    lead, other = (k.member for k in gang.members)
    assert (lead.data_address, lead.fingerprint, lead.first_rank, lead.ranks) == ("n1:7000", "fp-n1", 0, 2)
    assert (other.first_rank, other.gpus) == (2, ("n2-gpu0", "n2-gpu1"))


def test_all_are_started_together_and_the_lead_gets_the_call() -> None:
    world, gang = world_with_gang(Limits(grace_s=1.5))
    world.bring_up(gang)
    assert kinds(world.messages_to("n1")) == ["Prepare", "Start", "Offer"]
    assert kinds(world.messages_to("n2")) == ["Prepare", "Start"]
    offer = world.messages_to("n1")[-1]
    assert isinstance(offer, m.Offer)
    assert (offer.call_id, offer.attempt, offer.fence, offer.args) == (call_id(1), 1, 1, m.Body(size=3))
    world.cancel(call_id(1))
    assert world.messages_to("n1")[-1] == m.CancelCall(
        call_id=call_id(1), gang_id=gang.id, attempt=1, grace_ms=1500, fence=1
    )


def test_a_revoked_token_is_told_to_every_node() -> None:
    world, _ = world_with_gang()
    world.do(c.CreateToken(token_id="t", sha256=HASH, owner=ANA, role="member"))
    world.do(c.RevokeToken(token_id="t", owner=ANA))
    assert world.told[-2:] == [("n1", m.RevokeToken(token_id="t")), ("n2", m.RevokeToken(token_id="t"))]


def test_a_reconnecting_agent_is_told_what_it_still_has_to_do() -> None:
    world, gang = world_with_gang()
    assert kinds(reconcile(world.state, "n1", ())) == ["Prepare"]
    assert reconcile(world.state, "n2", ()) == ()
    world.say("n1", m.MemberPrepared(gang_id=gang.id, fence=gang.fence, rendezvous="n1:5"))
    assert reconcile(world.state, "n1", (facts(gang),)) == ()
    assert kinds(reconcile(world.state, "n2", ())) == ["Prepare"]
    world.say("n2", m.MemberPrepared(gang_id=gang.id, fence=gang.fence))
    assert kinds(reconcile(world.state, "n1", ())) == ["Start"]
    world.say("n1", m.MemberReady(gang_id=gang.id, fence=gang.fence))
    assert reconcile(world.state, "n1", (facts(gang),)) == ()
    assert kinds(reconcile(world.state, "n2", (facts(gang),))) == ["Start"]


def test_calls_that_the_lead_does_not_hold_are_offered_again() -> None:
    world, gang = world_with_gang()
    world.bring_up(gang)
    assert kinds(reconcile(world.state, "n1", ())) == ["Offer"]
    assert kinds(reconcile(world.state, "n1", (facts(gang),))) == ["Offer"]
    assert reconcile(world.state, "n1", (facts(gang, call_id(1)),)) == ()
    assert reconcile(world.state, "n2", (facts(gang),)) == ()
    world.cancel(call_id(1))
    assert kinds(reconcile(world.state, "n1", (facts(gang, call_id(1)),))) == ["CancelCall"]


def test_a_direct_call_is_never_offered() -> None:
    world, gang = world_with_gang()
    world.bring_up(gang)
    world.finish(call_id(1))
    world.start_direct(2, gang)
    assert reconcile(world.state, "n1", (facts(gang),)) == ()


def test_gangs_without_a_lease_are_to_be_ended() -> None:
    world, gang = world_with_gang()
    stale = m.GangFacts(gang_id=gang.id, fence=gang.fence + 1)
    stranger = m.GangFacts(gang_id="g-x", fence=5)
    told = reconcile(world.state, "n2", (stale, stranger))
    assert sorted((x.gang_id, x.fence) for x in told if isinstance(x, m.Stop)) == [
        (gang.id, gang.fence + 1),
        ("g-x", 5),
    ]


def test_a_draining_gang_is_stopped_again_until_it_has_ended() -> None:
    world, gang = world_with_gang()
    world.say("n1", m.MemberPrepared(gang_id=gang.id, fence=gang.fence, error="no"))
    world.end(gang, nodes=("n1",))
    assert reconcile(world.state, "n1", ()) == ()
    assert kinds(reconcile(world.state, "n2", ())) == ["Stop"]


def test_a_gang_reserved_and_given_up_in_one_batch_is_only_stopped() -> None:
    world = World(node_info("n1", gpus=2))
    world.submit(1, world.register(spec(gpus=2)))
    before = world.state
    world.schedule()
    world.cancel(call_id(1))
    batch = tuple(e for _, _, events in world.history[-2:] for e in events)
    told = messages_for(before, batch, world.state)
    assert kinds([message for _, message in told]) == ["Stop"]


def test_nothing_is_said_of_what_is_over_by_the_end_of_the_batch() -> None:
    world, gang = world_with_gang()
    start = world.state
    world.bring_up(gang)
    world.cancel(call_id(1))
    world.end(gang)
    batch = tuple(e for _, _, events in world.history for e in events)
    assert messages_for(start, batch, world.state) == ()
