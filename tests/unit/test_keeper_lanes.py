"""The keeper's lanes: an outcome goes whole or not at all, and only to the client whose call it was."""

from __future__ import annotations

import os
import socket

import pytest

from phalanx.core.frames import LANE_BITS, Assembler, Frame, Kind
from phalanx_agent.keeper.lanes import LANE_BYTES, Lane, Lanes

CALL = bytes(range(16))


def result(body: bytes = b"value", **meta: object) -> Frame:
    return Frame(Kind.RESULT, CALL, dict(meta), body)


def opened(lanes: Lanes, number: int) -> socket.socket:
    """Opens a lane as the agent does. Returns the client's end."""
    ours, theirs = socket.socketpair()
    lanes.change(Frame(Kind.LANE, flags=number << LANE_BITS, fds=[os.dup(theirs.fileno())]))
    theirs.close()
    ours.settimeout(5)
    return ours


def lane(lanes: Lanes, number: int) -> Lane:
    found = lanes.get(number)
    assert found is not None
    return found


def test_an_outcome_arrives_as_one_frame() -> None:
    lanes = Lanes()
    client = opened(lanes, 3)
    assert lane(lanes, 3).deliver(result(busy_ms=5))
    (frame,) = Assembler().feed(client.recv(1 << 16))
    assert (frame.kind, frame.id, frame.meta, frame.body) == (Kind.RESULT, CALL, {"busy_ms": 5}, b"value")


def test_call_without_a_lane() -> None:
    assert Lanes().get(0) is None
    assert Lanes().get(1) is None


@pytest.mark.parametrize(
    "outcome",
    [result(bytes(LANE_BYTES + 1)), result(released=[1]), Frame(Kind.RESULT, CALL, {"fds": []}, fds=[0])],
    ids=["large", "gives memory back", "in memory"],
)
def test_what_the_agent_must_handle_stays_with_it(outcome: Frame) -> None:
    lanes = Lanes()
    client = opened(lanes, 1)
    assert not lane(lanes, 1).deliver(outcome)
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(1)


def test_a_client_that_does_not_read_gets_whole_frames_only() -> None:
    lanes = Lanes()
    client = opened(lanes, 1)
    sent = 0
    while lane(lanes, 1).deliver(result(bytes(LANE_BYTES))):
        sent += 1
    assert 0 < sent < 1000
    assembler, frames = Assembler(), list[Frame]()
    while len(frames) < sent:
        frames += assembler.feed(client.recv(1 << 16))
    assert all(f.body == bytes(LANE_BYTES) for f in frames)
    assert lane(lanes, 1).deliver(result())


def test_a_client_that_has_gone_is_no_error() -> None:
    lanes = Lanes()
    opened(lanes, 1).close()
    assert not lane(lanes, 1).deliver(result())
    assert not lane(lanes, 1).deliver(result())


def test_another_clients_lane_of_the_same_number_is_not_taken_for_the_first() -> None:
    lanes = Lanes()
    opened(lanes, 1)
    held_by_a_call = lane(lanes, 1)
    lanes.change(Frame(Kind.LANE, flags=1 << LANE_BITS))
    second = opened(lanes, 1)
    assert not held_by_a_call.deliver(result())
    second.setblocking(False)
    with pytest.raises(BlockingIOError):
        second.recv(1)


def test_what_is_no_socket_is_closed_again() -> None:
    lanes = Lanes()
    reading, writing = os.pipe()
    lanes.change(Frame(Kind.LANE, flags=1 << LANE_BITS, fds=[reading]))
    assert lanes.get(1) is None
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"x")
    os.close(writing)


def test_another_agent_closes_all() -> None:
    lanes = Lanes()
    clients = [opened(lanes, n) for n in (1, 2)]
    lanes.close_all()
    assert [c.recv(1) for c in clients] == [b"", b""]
