"""The keeper's lanes: an outcome goes whole or not at all, and only to the client whose call it was."""

from __future__ import annotations

import os
import socket

import pytest

from phalanx.core.clock import SystemClock
from phalanx.core.frames import LANE_BITS, Assembler, Frame, Kind, encode_head
from phalanx_agent.keeper.lanes import LANE_BYTES, Lane, Lanes
from phalanx_agent.keeper.loop import Loop

CALL = bytes(range(16))
BODY_BYTES = LANE_BYTES - 64


def result(body: bytes = b"value", **meta: object) -> Frame:
    return Frame(Kind.RESULT, CALL, dict(meta), body)


def made(told: list[Frame] | None = None, loop: Loop | None = None) -> Lanes:
    """Lanes whose frames are all passed on to the agent, which hears what is in ``told``."""
    hear = (told if told is not None else list[Frame]()).append
    return Lanes(loop or Loop(SystemClock()), hear)


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


def deliver(lane: Lane, outcome: Frame) -> bool:
    encoded = lane.encoded(outcome)
    return encoded is not None and lane.send(encoded)


def test_an_outcome_arrives_as_one_frame() -> None:
    lanes = made()
    client = opened(lanes, 3)
    assert deliver(lane(lanes, 3), result(busy_ms=5))
    (frame,) = Assembler().feed(client.recv(1 << 16))
    assert (frame.kind, frame.id, frame.meta, frame.body) == (Kind.RESULT, CALL, {"busy_ms": 5}, b"value")


def test_call_without_a_lane() -> None:
    assert made().get(0) is None
    assert made().get(1) is None


@pytest.mark.parametrize(
    "outcome",
    [result(bytes(LANE_BYTES + 1)), result(released=[1]), Frame(Kind.RESULT, CALL, {"fds": []}, fds=[0])],
    ids=["large", "gives memory back", "in memory"],
)
def test_what_the_agent_must_handle_stays_with_it(outcome: Frame) -> None:
    lanes = made()
    client = opened(lanes, 1)
    assert not deliver(lane(lanes, 1), outcome)
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(1)


def test_a_client_that_does_not_read_gets_whole_frames_only() -> None:
    lanes = made()
    client = opened(lanes, 1)
    sent = 0
    while deliver(lane(lanes, 1), result(bytes(BODY_BYTES))):
        sent += 1
    assert 0 < sent < 1000
    assembler, frames = Assembler(), list[Frame]()
    while len(frames) < sent:
        frames += assembler.feed(client.recv(1 << 16))
    assert all(f.body == bytes(BODY_BYTES) for f in frames)
    assert deliver(lane(lanes, 1), result())


def test_a_client_that_has_gone_is_no_error() -> None:
    lanes = made()
    opened(lanes, 1).close()
    assert not deliver(lane(lanes, 1), result())
    assert not deliver(lane(lanes, 1), result())


def test_another_clients_lane_of_the_same_number_is_not_taken_for_the_first() -> None:
    lanes = made()
    opened(lanes, 1)
    held_by_a_call = lane(lanes, 1)
    lanes.change(Frame(Kind.LANE, flags=1 << LANE_BITS))
    second = opened(lanes, 1)
    assert not deliver(held_by_a_call, result())
    second.setblocking(False)
    with pytest.raises(BlockingIOError):
        second.recv(1)


def test_what_is_no_socket_is_closed_again() -> None:
    lanes = made()
    reading, writing = os.pipe()
    lanes.change(Frame(Kind.LANE, flags=1 << LANE_BITS, fds=[reading]))
    assert lanes.get(1) is None
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"x")
    os.close(writing)


def test_another_agent_closes_all() -> None:
    lanes = made()
    clients = [opened(lanes, n) for n in (1, 2)]
    lanes.close_all()
    assert [c.recv(1) for c in clients] == [b"", b""]


def close(lanes: Lanes, number: int) -> None:
    lanes.change(Frame(Kind.LANE, flags=number << LANE_BITS))


def test_what_was_sent_before_a_lanes_end_reaches_the_agent_before_the_end_does() -> None:
    told: list[Frame] = []
    lanes = made(told)
    client = opened(lanes, 2)
    client.sendall(encode_head(Frame(Kind.CALL, CALL)))
    close(lanes, 2)
    assert [(f.kind, f.lane) for f in told] == [(Kind.CALL, 2), (Kind.LANE, 2)]


def test_nothing_can_be_sent_into_a_closed_lane() -> None:
    lanes = made()
    client = opened(lanes, 1)
    close(lanes, 1)
    with pytest.raises(BrokenPipeError):
        client.send(encode_head(Frame(Kind.CALL, CALL)))


def test_a_lane_that_is_not_there_is_closed_all_the_same() -> None:
    told: list[Frame] = []
    close(made(told), 5)
    assert [(f.kind, f.lane) for f in told] == [(Kind.LANE, 5)]


@pytest.mark.parametrize("nonsense", [b"no frame, whatever else it is: more than 32 bytes", bytes(64)])
def test_a_client_that_sends_nonsense_loses_its_lane_only(nonsense: bytes) -> None:
    told: list[Frame] = []
    loop = Loop(SystemClock())
    lanes = made(told, loop)
    bad, good = opened(lanes, 1), opened(lanes, 2)
    bad.sendall(nonsense)
    loop.turn()
    assert bad.recv(1) == b""
    good.sendall(encode_head(Frame(Kind.CALL, CALL)))
    loop.turn()
    assert [(f.kind, f.lane) for f in told] == [(Kind.CALL, 2)]
