"""An agent and the readers of its gangs' streams: one for each, and none for ever missing."""

from __future__ import annotations

from phalanx.core.frames import Kind
from phalanx.core.states import Outcome
from phalanx_agent.dataplane.facts import CallEnded, KeeperAttached
from phalanx_agent.dataplane.lead import LeadGang
from phalanx_agent.dataplane.loop import now_ns
from phalanx_agent.dataplane.streams import READER_WITHIN_MS
from tests.support.fake_keeper import FakeKeeper, hold
from tests.support.plane import GANG, TestPlane, new_call


def offered(plane: TestPlane) -> tuple[FakeKeeper, bytes]:
    keeper = plane.open(answer=hold, streams=True)
    plane.wait_for(KeeperAttached)
    call = new_call()
    plane.offer(call)
    assert keeper.wait_for(Kind.CALL)[0].meta["held"]
    return keeper, call


def test_an_offered_stream_is_held_until_its_one_reader_comes(plane: TestPlane) -> None:
    keeper, call = offered(plane)
    with plane.client() as reader, plane.client() as another:
        reader.send(Kind.CREDIT, call, taken=0)
        assert keeper.wait_for(Kind.CREDIT)[0].meta == {"taken": 0}
        another.send(Kind.CREDIT, call, taken=0)
        another.expect(Kind.UNKNOWN, call)
        keeper.finish(call, b"value", items=0)
        assert reader.expect(Kind.RESULT, call).body == b"value"
    assert plane.wait_for(CallEnded)[0].outcome is Outcome.SUCCEEDED


def test_a_stream_without_a_reader_is_closed(plane: TestPlane) -> None:
    keeper, call = offered(plane)
    gang = plane.plane.gang(GANG)
    assert isinstance(gang, LeadGang)
    gang.streams.check(now_ns() + (READER_WITHIN_MS + 1000) * 1_000_000)
    assert keeper.wait_for(Kind.CANCEL)[0].meta["reason"] == "closed"
    keeper.finish(call, b"", items=0, closed=True)
    ended = plane.wait_for(CallEnded)[0]
    assert (ended.outcome, ended.error.message) == (
        Outcome.CANCELLED,
        "the stream's reader left; its ranks had made 0 items",
    )


def test_a_readers_lost_connection_closes_its_stream(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold, streams=True)
    call = new_call()
    with plane.client(lane=True) as reader:
        reader.send(Kind.CALL, call, b"x")
        assert "held" not in keeper.wait_for(Kind.CALL)[0].meta
    assert keeper.wait_for(Kind.CANCEL)[0].meta["reason"] == "closed"
