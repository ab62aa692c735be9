"""The line that says why a call does not run yet: when it is shown, what it says, and that it goes away."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from phalanx.core.clock import ManualClock
from phalanx.core.views import CallView
from phalanx.runner import Runner
from phalanx.waiting import PATIENCE_MS, PATIENCE_UNSEEN_MS, Waiting, patience_ms, words_of

FULL = CallView(call_id="c-1", state="queued", reason="needs 8 GPUs, 0 of 8 free", queue_position=1)
FREE = CallView(call_id="c-1", state="queued", reason="needs 8 GPUs, 6 of 8 free", queue_position=1)
RUNNING = CallView(call_id="c-1", state="running")
DONE = CallView(call_id="c-1", state="succeeded")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Watched:
    """A control plane that shows the views given for each time that somebody watches."""

    def __init__(self, *rounds: list[CallView]) -> None:
        self.rounds = list(rounds)
        self.bounds: list[int | None] = []

    def watch(self, _call_id: str, *, until_ms: int | None = None) -> Iterator[CallView]:
        self.bounds.append(until_ms)
        yield from self.rounds.pop(0)


def shown(stream: io.StringIO, *views: CallView) -> str:
    clock = ManualClock()
    with Waiting("c-1", clock, stream) as line:
        for view in views:
            clock.advance(6000)
            line.see(view)
    return stream.getvalue()


def runner_of(plane: Watched) -> Runner:
    client: Any = plane
    return Runner(client, clock=ManualClock())


def test_each_change_of_the_reason_is_one_line_and_then_it_has_started() -> None:
    assert shown(io.StringIO(), FULL, FULL, FREE, RUNNING, DONE).splitlines() == [
        "phalanx: call c-1 waiting: needs 8 GPUs, 0 of 8 free; position 1",
        "phalanx: call c-1 waiting: needs 8 GPUs, 6 of 8 free; position 1",
        "phalanx: call c-1 started after 24 s",
    ]


def test_on_a_terminal_one_line_is_rewritten_and_erased() -> None:
    text = shown(Terminal(), FULL, FREE, RUNNING)
    assert "\n" not in text
    assert text.count("\r\x1b[2K") == 3
    assert text.endswith("\r\x1b[2K")


def test_a_call_that_runs_at_once_says_nothing() -> None:
    assert shown(io.StringIO(), RUNNING, DONE) == ""


def test_the_line_goes_away_when_the_wait_is_broken_off() -> None:
    stream = Terminal()

    def views() -> Iterator[CallView]:
        yield FULL
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Waiting("c-1", ManualClock(), stream) as line:
        deque(map(line.see, views()))
    assert stream.getvalue().endswith("\r\x1b[2K")


def test_one_call_at_a_time_is_shown() -> None:
    first, second = io.StringIO(), io.StringIO()
    with Waiting("c-1", ManualClock(), first) as line:
        line.see(FULL)
        assert shown(second, FULL, RUNNING) == ""
    assert shown(second, FULL) != ""


def test_starting_ranks_are_counted_and_silence_of_the_control_plane_is_named() -> None:
    assert words_of(CallView(state="assigned", world_size=8, ready_ranks=3)) == "starting: 3 of 8 ranks are ready"
    assert words_of(CallView(state="queued", reason="waits its turn")) == "waiting its turn"
    assert words_of(CallView()) == "waiting: the control plane has not answered yet"


@pytest.mark.parametrize(
    ("said", "stream", "answer"),
    [
        ("", Terminal(), PATIENCE_MS),
        ("", io.StringIO(), PATIENCE_UNSEEN_MS),
        ("1", io.StringIO(), PATIENCE_MS),
        ("0", Terminal(), None),
    ],
)
def test_a_terminal_or_the_environment_asks_for_a_line_soon(
    monkeypatch: pytest.MonkeyPatch, said: str, stream: io.StringIO, answer: int | None
) -> None:
    for name in ("CI", "PHALANX_QUIET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PHALANX_PROGRESS", said)
    assert patience_ms(stream) == answer


def test_a_wait_of_more_than_two_seconds_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PHALANX_PROGRESS", "1")
    plane = Watched([FULL], [FULL, RUNNING, DONE])
    assert runner_of(plane).await_end("c-1") == DONE
    assert plane.bounds[1] is None
    assert "waiting: needs 8 GPUs" in capsys.readouterr().err


def test_a_call_that_ends_within_two_seconds_is_watched_once_and_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PHALANX_PROGRESS", "1")
    plane = Watched([FULL, DONE])
    assert runner_of(plane).await_end("c-1") == DONE
    assert len(plane.bounds) == 1
    assert capsys.readouterr().err == ""


def test_where_nobody_looks_only_a_long_wait_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PHALANX_PROGRESS", raising=False)
    plane = Watched([FULL, RUNNING, DONE])
    assert runner_of(plane).await_end("c-1") == DONE
    assert len(plane.bounds) == 1
    assert capsys.readouterr().err == ""
    plane = Watched([FULL], [FULL, RUNNING, DONE])
    assert runner_of(plane).await_end("c-1") == DONE
    assert "waiting: needs 8 GPUs" in capsys.readouterr().err


def test_quiet_means_one_watch_and_no_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("PHALANX_PROGRESS", raising=False)
    monkeypatch.setenv("PHALANX_QUIET", "1")
    plane = Watched([FULL, RUNNING, DONE])
    assert runner_of(plane).await_end("c-1") == DONE
    assert plane.bounds == [None]
    assert capsys.readouterr().err == ""
