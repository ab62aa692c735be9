"""The admission queue: fairness, the window, how many calls are sent ahead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.frames import SENT_AHEAD
from phalanx_agent.dataplane.admission import MAX_QUEUED_BYTES, WINDOW, AdmissionQueue, retry_ms
from phalanx_agent.dataplane.calls import CallRecord, Origin


def record(client: str, number: int = 0, *, body: bytes = b"") -> CallRecord:
    return CallRecord(id=number.to_bytes(16, "big"), origin=Origin.DIRECT, queue_key=client, body=body)


def drain(queue: AdmissionQueue) -> list[str]:
    out: list[str] = []
    while (popped := queue.pop()) is not None:
        out.append(popped.queue_key)
    return out


def test_clients_take_turns_whatever_one_of_them_queues() -> None:
    queue = AdmissionQueue()
    for client in "aaaabbc":
        queue.push(record(client))
    assert drain(queue) == list("abcabaa")


@given(st.lists(st.sampled_from("abc")))
def test_nothing_is_lost_and_each_client_keeps_its_order(clients: list[str]) -> None:
    queue = AdmissionQueue()
    pushed = [record(c, i) for i, c in enumerate(clients)]
    for item in pushed:
        queue.push(item)
    popped = [queue.pop() for _ in clients]
    assert {id(p) for p in popped} == {id(p) for p in pushed}
    for client in "abc":
        mine = [p.id for p in popped if p is not None and p.queue_key == client]
        assert mine == sorted(mine)
    assert len(queue) == 0


def test_short_calls_fill_the_whole_window_and_long_ones_do_not_queue() -> None:
    queue = AdmissionQueue()
    queue.measured(1)
    assert queue.window() == WINDOW
    long = AdmissionQueue()
    long.measured(10_000)
    assert not long.may_enter(in_flight=1, head_age_ms=0, body_bytes=0)
    assert long.may_enter(in_flight=0, head_age_ms=0, body_bytes=0)


def test_the_running_calls_age_counts_before_anything_was_measured() -> None:
    queue = AdmissionQueue()
    assert queue.may_enter(in_flight=1, head_age_ms=10, body_bytes=0)
    assert not queue.may_enter(in_flight=1, head_age_ms=600, body_bytes=0)


def test_a_draining_gang_takes_nothing_in() -> None:
    queue = AdmissionQueue()
    queue.draining = True
    assert not queue.may_enter(in_flight=0, head_age_ms=0, body_bytes=0)


def test_bodies_that_wait_are_bounded() -> None:
    queue = AdmissionQueue()
    assert not queue.may_enter(in_flight=0, head_age_ms=0, body_bytes=MAX_QUEUED_BYTES + 1)


def test_only_short_calls_are_sent_ahead() -> None:
    queue = AdmissionQueue()
    assert queue.send_ahead == 1
    queue.measured(1)
    assert queue.send_ahead == SENT_AHEAD
    for _ in range(20):
        queue.measured(100)
    assert queue.send_ahead == 1


def test_a_call_can_be_taken_out_of_the_middle() -> None:
    queue = AdmissionQueue()
    items = [record("a", i) for i in range(3)]
    for item in items:
        queue.push(item)
    assert queue.remove(items[1])
    assert not queue.remove(items[1])
    assert [queue.pop(), queue.pop(), queue.pop()] == [items[0], items[2], None]


def test_busy_clients_are_asked_back_within_bounds() -> None:
    assert retry_ms(0, None) == 20
    assert retry_ms(10_000, 1000.0) == 5000
