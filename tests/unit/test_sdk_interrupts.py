"""Ctrl-C while a call is waited for: it is cancelled within a bound, the error says so, and work goes on."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx import connection
from phalanx.call import Call
from phalanx.core.errors import NotFoundError
from phalanx.core.frames import Frame, Kind
from phalanx.core.ids import id_text, new_raw_id
from phalanx.core.messages import Body
from phalanx.core.serialization import pack_arguments
from phalanx.core.views import CallView, GangAddress
from phalanx.definition import ById, Target
from phalanx.inputs import Plain
from phalanx.mapping import Mapper
from phalanx.runner import Runner
from tests.support.fake_client import install
from tests.support.fake_gang import FakeGang, echo
from tests.support.wait import wait_until

TARGET = Target("f-1", "slow")


def press_ctrl_c() -> None:
    """Interrupts the main thread, as the terminal would."""
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)


def press_ctrl_c_once_it_reads() -> None:
    """From another thread: a signal that comes just before a system call begins does not end that one."""
    seen: list[str] = []

    def main_thread_reads() -> bool:
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        frame = frames[threading.main_thread().ident or 0]
        seen.append(frame.f_code.co_name)
        return seen[-3:] == ["receive"] * 3

    wait_until(main_thread_reads, "the main thread reads what the gang says")
    press_ctrl_c()


class ControlPlane:
    """Knows the calls that were submitted; whoever watches one presses Ctrl-C and waits."""

    def __init__(self, gang: GangAddress | None = None) -> None:
        self.cancelled: list[str] = []
        self.on_cancel: Callable[[], None] = lambda: None
        self._gang = gang or GangAddress()
        self._submitted: set[str] = set()

    def gang_address(self, _function_id: str, *, gang_id: str = "") -> GangAddress:
        del gang_id
        return self._gang

    def submit(self, call_id: str, _function_id: str, _args: Body, **_options: object) -> str:
        self._submitted.add(call_id)
        return "queued"

    def watch(self, call_id: str, *, until_ms: int | None = None) -> Iterator[CallView]:
        assert until_ms is None or until_ms > 0
        yield CallView(call_id=call_id, state="queued")
        press_ctrl_c()
        threading.Event().wait(10)

    def cancel(self, call_id: str) -> CallView:
        self.on_cancel()
        if call_id not in self._submitted:
            raise NotFoundError("no such call")
        self.cancelled.append(call_id)
        return CallView(call_id=call_id, state="cancelling")

    def close(self) -> None:
        """Nothing is open."""


def interrupt_then_echo(press: Callable[[], None]) -> Callable[[FakeGang, Frame], list[Frame]]:
    """The first call is interrupted instead of answered, and is then known to have been cancelled."""
    seen: list[bytes] = []

    def answer(gang: FakeGang, frame: Frame) -> list[Frame]:
        seen.append(frame.id)
        if len(seen) > 1:
            return echo(gang, frame)
        gang.asked[frame.id] = Frame(Kind.FAILURE, frame.id, {"outcome": "cancelled", "error": {}})
        press()
        return []

    return answer


@pytest.fixture
def gang(request: pytest.FixtureRequest) -> Iterator[FakeGang]:
    press = getattr(request, "param", press_ctrl_c)
    with tempfile.TemporaryDirectory(prefix="px") as folder:
        fake = FakeGang(Path(folder), interrupt_then_echo(press))
        yield fake
        fake.close()


def run(runner: Runner, value: Any, raw_id: bytes | None = None) -> Any:
    return runner.run(TARGET, raw_id or new_raw_id(), pack_arguments((value,), {}))


def notes(caught: pytest.ExceptionInfo[BaseException]) -> str:
    return "\n".join(getattr(caught.value, "__notes__", ()))


@pytest.mark.parametrize("gang", [press_ctrl_c_once_it_reads], indirect=True)
def test_an_interrupted_direct_call_is_cancelled_at_its_gang_and_the_next_call_works(
    gang: FakeGang, capsys: pytest.CaptureFixture[str]
) -> None:
    plane: Any = ControlPlane(gang.address)
    runner, raw_id = Runner(plane), new_raw_id()
    with pytest.raises(KeyboardInterrupt) as caught:
        run(runner, 1, raw_id)
    call_id = id_text("c", raw_id)
    assert f"call {call_id}: its cancellation is accepted" in notes(caught)
    assert capsys.readouterr().err == f"phalanx: cancelling call {call_id}\n"
    wait_until(lambda: Kind.CANCEL in gang.kinds(), "the gang is told")
    assert [frame.id for frame in gang.seen if frame.kind is Kind.CANCEL] == [raw_id]
    assert run(runner, "next") == "next"
    runner.close()


def test_an_interrupted_durable_call_is_cancelled(capsys: pytest.CaptureFixture[str]) -> None:
    plane: Any = ControlPlane()
    raw_id = new_raw_id()
    with pytest.raises(KeyboardInterrupt) as caught:
        run(Runner(plane), 1, raw_id)
    assert plane.cancelled == [id_text("c", raw_id)]
    assert f"call {plane.cancelled[0]}: its cancellation is accepted" in notes(caught)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_second_ctrl_c_ends_the_waiting_and_says_how_to_cancel_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    plane: Any = ControlPlane()
    release = threading.Event()

    def hang() -> None:
        press_ctrl_c()
        release.wait(10)

    plane.on_cancel = hang
    raw_id = new_raw_id()
    with pytest.raises(KeyboardInterrupt) as caught:
        run(Runner(plane), 1, raw_id)
    assert not plane.cancelled
    release.set()
    by_hand = f"gpuctl cancel {id_text('c', raw_id)}"
    assert by_hand in capsys.readouterr().err
    assert by_hand in notes(caught)
    wait_until(lambda: plane.cancelled, "the cancellation is delivered all the same")


def test_interrupting_get_leaves_the_call_running_and_says_so() -> None:
    plane: Any = ControlPlane()
    install(plane)
    call_id = id_text("c", new_raw_id())
    with pytest.raises(KeyboardInterrupt) as caught:
        Call[Any](call_id).get()
    connection.disconnect()
    assert not plane.cancelled
    assert notes(caught) == f"call {call_id} goes on; gpuctl cancel {call_id}"


@pytest.mark.parametrize("order", [True, False])
def test_an_interrupted_map_cancels_everything_that_is_under_way(order: bool, gang: FakeGang) -> None:
    install(ControlPlane(gang.address))
    mapper = Mapper(ById(TARGET), Plain(range(1), lambda n: pack_arguments((n,), {})), window=4)
    with pytest.raises(KeyboardInterrupt) as caught:
        list(mapper.results(order=order))
    connection.disconnect()
    wait_until(lambda: Kind.CANCEL in gang.kinds(), "the gang is told")
    (cancelled,) = [id_text("c", frame.id) for frame in gang.seen if frame.kind is Kind.CANCEL]
    assert f"call {cancelled}: its cancellation is accepted" in notes(caught)
