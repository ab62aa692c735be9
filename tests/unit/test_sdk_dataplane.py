"""One connection to a gang: many calls, threads that take turns reading, memory that comes back, losses told."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.core.clock import SystemClock
from phalanx.core.errors import AuthError, ConnectionFailedError
from phalanx.core.frames import Frame, Kind
from phalanx.core.ids import new_raw_id
from phalanx.core.serialization import pack, pack_arguments
from phalanx.core.views import GangAddress
from phalanx.dataplane import GangConnection
from phalanx.memfds import MemfdPool
from phalanx.outcomes import error_of_frame, value_of_frame
from phalanx.pending import Pending
from tests.support.fake_gang import Answer, FakeGang, body_of, echo
from tests.support.wait import wait_until

Make = Callable[[Answer], tuple[FakeGang, GangConnection]]


@pytest.fixture
def make() -> Iterator[Make]:
    opened: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="px") as folder:

        def gang(answer: Answer) -> tuple[FakeGang, GangConnection]:
            place = Path(folder) / str(len(opened))
            place.mkdir()
            fake = FakeGang(place, answer)
            connection = GangConnection(fake.address, client="test", pool=MemfdPool())
            opened.extend((connection, fake))
            return fake, connection

        yield gang
        for each in opened:
            each.close()


def call(connection: GangConnection, value: object, **options: Any) -> Pending:
    return connection.call(new_raw_id(), pack_arguments((value,), {}), **options)


def result(connection: GangConnection, pending: Pending) -> Any:
    connection.wait(pending)
    assert pending.frame is not None
    return value_of_frame(pending.frame, "rank0")


def test_a_call_gets_its_own_value(make: Make) -> None:
    _, connection = make(echo)
    assert result(connection, call(connection, {"a": 1})) == {"a": 1}


def test_replies_in_any_order_reach_their_calls(make: Make) -> None:
    held: list[Frame] = []

    def backwards(gang: FakeGang, frame: Frame) -> list[Frame]:
        held.append(frame)
        return [reply for f in reversed(held) for reply in echo(gang, f)] if len(held) == 5 else []

    _, connection = make(backwards)
    pending = [call(connection, i) for i in range(5)]
    assert [result(connection, p) for p in pending] == [0, 1, 2, 3, 4]


def test_many_threads_share_one_connection(make: Make) -> None:
    fake, connection = make(echo)
    wrong: list[object] = []

    def work(n: int) -> None:
        wrong.extend((n, i) for i in range(200) if result(connection, call(connection, (n, i))) != (n, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong
    assert not any(t.is_alive() for t in threads)
    assert fake.connections == 1


def test_a_waiting_thread_uses_no_other_thread(make: Make) -> None:
    _, connection = make(echo)
    result(connection, call(connection, "both sides have their threads"))
    before = threading.active_count()
    result(connection, call(connection, 1))
    assert threading.active_count() == before


def test_a_follower_takes_over_when_the_reader_has_its_own_reply(make: Make) -> None:
    release = threading.Event()

    def slow_second(gang: FakeGang, frame: Frame) -> list[Frame]:
        if len(gang.seen) == 3:
            release.wait(10)
        return echo(gang, frame)

    _, connection = make(slow_second)
    first, second = call(connection, "first"), call(connection, "second")
    got: list[Any] = []
    follower = threading.Thread(target=lambda: got.append(result(connection, second)))
    follower.start()
    assert result(connection, first) == "first"
    release.set()
    follower.join(10)
    assert got == ["second"]


def test_a_follower_that_is_done_passes_reading_on(make: Make) -> None:
    """The reader's own reply and the next follower's come in one read: the one after that must read from then on."""
    for _ in range(20):
        release = threading.Event()

        def two_then_one(gang: FakeGang, frame: Frame, release: threading.Event = release) -> list[Frame]:
            calls = [f for f in gang.seen if f.kind is Kind.CALL]
            if len(calls) == 3:
                release.wait(10)
                return [reply for f in calls[:2] for reply in echo(gang, f)]
            return [reply for f in calls[2:] for reply in echo(gang, f)] if len(calls) == 4 else []

        fake, connection = make(two_then_one)
        pending = [call(connection, i) for i in range(3)]
        waiting = [threading.Thread(target=connection.wait, args=(p,), daemon=True) for p in pending]
        for thread in waiting:
            thread.start()
        release.set()
        waiting[0].join(10)
        waiting[1].join(10)
        call(connection, "answers the third too")
        waiting[2].join(2)
        assert [p.done for p in pending] == [True, True, True], len(fake.seen)


def test_callbacks_are_called_by_a_thread_of_the_connection(make: Make) -> None:
    _, connection = make(echo)
    done: list[Pending] = []
    pending = [call(connection, i) for i in range(20)]
    for each in pending:
        connection.when_done(each, done.append)
    wait_until(lambda: len(done) == 20, "every callback was called")
    assert result(connection, call(connection, "still works")) == "still works"


def test_a_callback_on_a_call_that_is_done_is_called_at_once(make: Make) -> None:
    _, connection = make(echo)
    pending = call(connection, 1)
    connection.wait(pending)
    done: list[Pending] = []
    connection.when_done(pending, done.append)
    assert done == [pending]


def test_waiting_gives_up_at_its_bound_and_the_call_goes_on(make: Make) -> None:
    gate = threading.Event()

    def late(gang: FakeGang, frame: Frame) -> list[Frame]:
        gate.wait(10)
        return echo(gang, frame)

    _, connection = make(late)
    pending = call(connection, 1)
    assert not connection.wait(pending, until_ms=SystemClock().monotonic_ms() + 30)
    gate.set()
    assert result(connection, pending) == 1


def test_calls_that_may_wait_are_written_together(make: Make) -> None:
    fake, connection = make(echo)
    pending = [call(connection, i, flush=False) for i in range(50)]
    assert Kind.CALL not in fake.kinds()
    assert [result(connection, p) for p in pending] == list(range(50))


def test_large_arguments_travel_as_memory_that_is_used_again(make: Make) -> None:
    fake, connection = make(echo_sum)
    array = np.ones(1_000_000)
    for _ in range(5):
        assert result(connection, call(connection, array)) == 1_000_000
    calls = [f for f in fake.seen if f.kind is Kind.CALL]
    assert {f.meta["fds"][0]["slot"] for f in calls} == {1}


def test_memory_that_was_not_released_is_not_used_again(make: Make) -> None:
    def keep(gang: FakeGang, frame: Frame) -> list[Frame]:
        (reply,) = echo_sum(gang, frame)
        reply.meta["released"] = []
        return [reply]

    fake, connection = make(keep)
    for _ in range(3):
        result(connection, call(connection, np.ones(1_000_000)))
    assert [f.meta["fds"][0]["slot"] for f in fake.seen if f.kind is Kind.CALL] == [1, 2, 3]


@pytest.mark.parametrize("size", [10, 2_000_000], ids=["small", "large"])
def test_a_call_takes_its_own_timeout_along(make: Make, size: int) -> None:
    fake, connection = make(echo)
    for timeout_ms in (0, 700, 0):
        assert result(connection, call(connection, bytes(size), timeout_ms=timeout_ms)) == bytes(size)
    assert [frame.meta.get("timeout_ms") for frame in fake.seen if frame.kind is Kind.CALL] == [None, 700, None]


def test_a_stream_takes_its_own_timeout_along(make: Make) -> None:
    fake, connection = make(echo)
    connection.stream(new_raw_id(), pack_arguments((1,), {}), 700)
    wait_until(lambda: Kind.CALL in fake.kinds(), "it came")
    assert [frame.meta for frame in fake.seen if frame.kind is Kind.CALL] == [{"timeout_ms": 700}]


def test_above_the_pools_ceiling_large_arguments_travel_in_chunks(make: Make) -> None:
    fake, _ = make(echo_sum)
    connection = GangConnection(fake.address, client="small", pool=MemfdPool(ceiling_bytes=1 << 20))
    assert result(connection, call(connection, np.ones(1_000_000))) == 1_000_000
    assert not [f for f in fake.seen if f.kind is Kind.CALL and f.fds]
    connection.close()


def test_a_large_result_comes_as_private_memory_and_is_given_back(make: Make) -> None:
    fake, connection = make(large_result)
    array = result(connection, call(connection, 0))
    array[0] = 5
    wait_for(fake, Kind.ACK)
    assert Kind.RELEASE not in fake.kinds()
    del array
    result(connection, call(connection, 0))
    wait_for(fake, Kind.RELEASE)
    released = next(f for f in fake.seen if f.kind is Kind.RELEASE)
    assert released.meta == {"slots": [7]}


def test_outcomes_are_acknowledged_along_with_the_next_call(make: Make) -> None:
    fake, connection = make(echo)
    first = call(connection, 1)
    result(connection, first)
    assert Kind.ACK not in fake.kinds()
    result(connection, call(connection, 2))
    wait_for(fake, Kind.ACK)
    assert [f.id for f in fake.seen if f.kind is Kind.ACK] == [first.id]


def test_busy_and_failure_are_outcomes(make: Make) -> None:
    def grumpy(_gang: FakeGang, frame: Frame) -> list[Frame]:
        error = {"cause": "user_exception", "type_name": "m.E", "message": "no", "rank": 1, "ranks": [], "new": 1}
        return [Frame(Kind.FAILURE, frame.id, {"outcome": "failed", "error": error}, b"")]

    _, connection = make(grumpy)
    pending = call(connection, 1)
    connection.wait(pending)
    assert pending.frame is not None
    assert str(error_of_frame(pending.frame, "c-1")) == "m.E: no"


def test_a_lost_connection_ends_every_call_that_waits(make: Make) -> None:
    fake, connection = make(lambda _gang, _frame: [])
    pending = [call(connection, i) for i in range(3)]
    wait_until(lambda: len(fake.seen) == 4, "the calls arrived")
    fake.drop_clients()
    for each in pending:
        connection.wait(each)
        assert each.lost
        assert each.sent
    assert not connection.open
    late = call(connection, 9)
    assert late.lost
    assert not late.sent


def test_an_agent_that_ended_the_connection_is_noticed_before_the_next_call(make: Make) -> None:
    fake, connection = make(echo)
    result(connection, call(connection, 1))
    fake.drop_clients()

    def noticed() -> bool:
        connection.notice_end()
        return not connection.open

    wait_until(noticed, "the end was noticed")


def test_asking_for_an_id_gives_its_outcome_or_unknown(make: Make) -> None:
    fake, connection = make(echo)
    known = new_raw_id()
    fake.asked[known] = Frame(Kind.RESULT, known, {"busy_ms": 1}, pack("found").tobytes())
    assert result(connection, connection.ask(known)) == "found"
    unknown = connection.ask(new_raw_id())
    connection.wait(unknown)
    assert unknown.frame is not None
    assert unknown.frame.kind is Kind.UNKNOWN


def test_frames_that_make_no_sense_end_the_connection(make: Make) -> None:
    fake, connection = make(lambda _gang, frame: [Frame(Kind.RESULT, frame.id, {"x": "y" * 10})])
    pending = call(connection, 1)
    connection.wait(pending)
    assert pending.done
    fake.drop_clients()


def test_a_refused_ticket_is_an_auth_error(make: Make) -> None:
    fake, _ = make(echo)
    address = GangAddress(gang_id="g-1", unix_path=fake.address.unix_path, ticket="bad")
    with pytest.raises(AuthError, match="a wrong ticket"):
        GangConnection(address, client="test", pool=MemfdPool())


def test_an_agent_that_is_not_there_is_a_connection_error(tmp_path: Path) -> None:
    with pytest.raises(ConnectionFailedError, match="not reachable"):
        GangConnection(GangAddress(unix_path=str(tmp_path / "no")), client="test", pool=MemfdPool())


def test_no_descriptor_is_left_behind(make: Make) -> None:
    _, connection = make(large_result)
    result(connection, call(connection, np.ones(1_000_000)))
    before = open_descriptors()
    for _ in range(10):
        result(connection, call(connection, np.ones(1_000_000)))
    wait_until(lambda: open_descriptors() <= before, "descriptors were closed")


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def echo_sum(_gang: FakeGang, frame: Frame) -> list[Frame]:
    from phalanx.core.serialization import unpack

    (array,), _ = unpack(body_of(frame))
    released = [f["slot"] for f in frame.meta.get("fds") or []]
    return [Frame(Kind.RESULT, frame.id, {"busy_ms": 0, "released": released}, pack(float(array.sum())).tobytes())]


def large_result(_gang: FakeGang, frame: Frame) -> list[Frame]:
    data = pack(np.ones(300_000)).tobytes()
    fd = os.memfd_create("result")
    os.write(fd, data)
    return [Frame(Kind.RESULT, frame.id, {"busy_ms": 0, "fds": [{"size": len(data), "slot": 7}]}, b"", fds=[fd])]


def wait_for(fake: FakeGang, kind: Kind) -> None:
    wait_until(lambda: kind in fake.kinds(), f"{kind.name} arrived")
