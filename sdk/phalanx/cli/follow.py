"""The run view: follows a call until it ends, showing placement, why it waits, ranks, logs, progress and cost.

Two threads read states and logs into one queue; the main thread alone draws, so that Ctrl-C is its business only.
First Ctrl-C detaches, a second one within two seconds cancels; `cancel_on_interrupt` turns that round.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from phalanx.cli import text
from phalanx.cli.folding import Folded, OutLine, fold
from phalanx.cli.render import Screen
from phalanx.cli.run_state import Stage, elapsed_ms, placement_line, stage_of
from phalanx.core.clock import Clock, SystemClock
from phalanx.core.errors import GetTimeoutError
from phalanx.core.states import CallState
from phalanx.core.views import CallView
from phalanx.logs import LogLine

_TICK_S = 0.1
HOLD_MS = 200
"""Lines wait this long for the other ranks to write the same."""
_LAST_LOGS_MS = 2000
_SECOND_PRESS_S = 2.0


class Source(Protocol):
    """What the view asks for about one call."""

    @property
    def call_id(self) -> str: ...
    def states(self) -> Iterator[CallView]: ...
    def logs(self) -> Iterator[LogLine]: ...
    def now(self) -> CallView: ...
    def cancel(self) -> None: ...


class DetachedError(Exception):
    """The user let go of the call; it goes on."""


class _TerminatedError(Exception):
    """SIGTERM: let go."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A reader's last word: which one, and what went wrong."""

    what: str
    error: BaseException | None = None


@dataclass(slots=True)
class RunView:
    """Draws what it is told; asks for nothing itself."""

    screen: Screen
    clock: Clock = field(default_factory=SystemClock)
    ranks: frozenset[int] = frozenset()
    view: CallView | None = None
    _stage: Stage = field(default=Stage("", ""))
    _placed: str = ""
    _nodes: dict[str, int] = field(default_factory=dict[str, int])
    _lines: list[OutLine] = field(default_factory=list[OutLine])
    _first_ms: int = 0
    _verdict: CallView | None = None
    """The end of the call, which is told behind all that it wrote."""
    _passing: tuple[int, str] | None = None
    """The rank whose line is being rewritten, and how it looks now."""

    def on_state(self, view: CallView) -> None:
        """Tells a change of stage once, on its own line where there is no status line."""
        self.view = view
        for rank in view.ranks:
            self._nodes.setdefault(rank.node_id, len(self._nodes))
        placed = placement_line(view)
        if placed and placed != self._placed:
            self._placed = placed
            self._tell("placement", placed)
        stage = stage_of(view)
        if stage != self._stage:
            moved, self._stage = stage.state != self._stage.state, stage
            if CallState(view.state).terminal:
                self._verdict = view
            else:
                self._tell_stage(view, moved=moved)

    def on_log(self, line: LogLine) -> None:
        """Takes output in; it is shown, folded, at the next tick."""
        if line.passing:
            self._passing = (line.rank, line.text)
            return
        if self._passing is not None and self._passing[0] == line.rank:
            self._passing = None
        if not self._lines:
            self._first_ms = self.clock.monotonic_ms()
        node = self._nodes.setdefault(line.node_id, len(self._nodes))
        self._lines.append(OutLine(line.rank, node, line.stream, line.text))

    def tick(self, *, last: bool = False) -> None:
        """Shows the lines that came within HOLD_MS of each other, and redraws the status line."""
        now = self.clock.monotonic_ms()
        if self._lines and (last or now - self._first_ms >= HOLD_MS):
            lines, self._lines = self._lines, []
            for line in fold(lines):
                self._show(line)
        if self.view is not None and not CallState(self.view.state).terminal:
            self.screen.status(self.status(self.view))

    def finish(self) -> None:
        """Shows what is left, takes the status line away, and tells how the call ended."""
        self.tick(last=True)
        self.screen.clear_status()
        if self._verdict is not None:
            self._tell_stage(self._verdict, moved=True)
            self._verdict = None

    def status(self, view: CallView) -> str:
        """Returns what stands in the line that is redrawn."""
        parts = [self._stage.words, text.duration(elapsed_ms(view, self.clock.wall_ms()))]
        if view.cost.gpu_ms:
            parts.append(text.money(view.cost.money, view.cost.currency))
        status = f"{view.function}: " + " · ".join(parts)
        return f"[r{self._passing[0]}] {self._passing[1]}  ({status})" if self._passing is not None else status

    def _show(self, line: Folded) -> None:
        if self.ranks and not self.ranks.intersection(line.ranks):
            return
        if self.screen.look.json:
            ranks = [r for r in line.ranks if not self.ranks or r in self.ranks]
            event = {"event": "log", "ranks": ranks, "node": line.node, "stream": line.stream, "text": line.text}
            self.screen.emit(event)
        else:
            self.screen.log(line)

    def _tell_stage(self, view: CallView, *, moved: bool) -> None:
        if self.screen.look.json:
            self.screen.emit({"event": "state", "state": view.state, "what": self._stage.words, "call": view})
        elif moved or not (self.screen.live or view.state == CallState.RUNNING):
            self.screen.note(
                f"{_clock_time(self.clock)}{self.screen.state(view.state)}  {_detail(self._stage)}".rstrip()
            )

    def _tell(self, event: str, words: str) -> None:
        if self.screen.look.json:
            self.screen.emit({"event": event, "text": words})
        else:
            self.screen.note(words)


def follow(
    source: Source,
    screen: Screen,
    *,
    timeout_s: float | None = None,
    ranks: Iterable[int] = (),
    cancel_on_interrupt: bool = False,
    clock: Clock | None = None,
) -> CallView:
    """Shows a call until it has ended and returns its last view.

    Raises DetachedError when the user let go, GetTimeoutError after ``timeout_s``, and what the readers met.
    """
    clock = clock or SystemClock()
    view = RunView(screen, clock, frozenset(ranks))
    inbox: queue.SimpleQueue[CallView | LogLine | _Ended] = queue.SimpleQueue()
    _read("states", source.states, inbox)
    _read("logs", source.logs, inbox)
    until = clock.monotonic_ms() + round(timeout_s * 1000) if timeout_s else 0
    with _sigterm_raises():
        try:
            return _loop(source, view, inbox, clock, until)
        except _TerminatedError:
            _say_detached(source, screen)
            raise DetachedError from None
        except KeyboardInterrupt:
            screen.clear_status()
            return _interrupted(source, screen, cancel_first=cancel_on_interrupt)
        finally:
            view.finish()


def _loop(
    source: Source, view: RunView, inbox: queue.SimpleQueue[CallView | LogLine | _Ended], clock: Clock, until: int
) -> CallView:
    """1. take what came  2. show it  3. stop when the call has ended and its output is complete."""
    open_readers = {"states", "logs"}
    ended_ms = 0
    while True:
        for item in _take(inbox):
            if isinstance(item, _Ended):
                _note_end(item, open_readers)
            elif isinstance(item, CallView):
                view.on_state(item)
            else:
                view.on_log(item)
        view.tick()
        now = clock.monotonic_ms()
        last = view.view
        if last is not None and CallState(last.state).terminal:
            ended_ms = ended_ms or now
            if "logs" not in open_readers or now - ended_ms > _LAST_LOGS_MS:
                return last
        elif "states" not in open_readers:
            view.on_state(source.now())
        if until and now > until:
            raise GetTimeoutError(
                f"call {source.call_id} has not ended in time", hint=f"gpuctl logs -f {source.call_id}"
            )


def _take(inbox: queue.SimpleQueue[CallView | LogLine | _Ended]) -> Generator[CallView | LogLine | _Ended]:
    """Yields what is there, waiting one tick for the first."""
    try:
        yield inbox.get(timeout=_TICK_S)
        for _ in range(10_000):
            yield inbox.get_nowait()
    except queue.Empty:
        return


def _note_end(item: _Ended, open_readers: set[str]) -> None:
    open_readers.discard(item.what)
    if item.error is not None and item.what == "states":
        raise item.error


def _read(
    what: str,
    items: Callable[[], Iterator[CallView] | Iterator[LogLine]],
    inbox: queue.SimpleQueue[CallView | LogLine | _Ended],
) -> None:
    def run() -> None:
        try:
            for item in items():
                inbox.put(item)
        except Exception as e:  # noqa: BLE001 (a thread's boundary: the main thread raises it)
            inbox.put(_Ended(what, e))
        else:
            inbox.put(_Ended(what))

    threading.Thread(target=run, name=f"gpuctl-{what}", daemon=True).start()


def _interrupted(source: Source, screen: Screen, *, cancel_first: bool) -> CallView:
    """The first press has come. Waits two seconds for a second one, which means the other of detach and cancel."""
    if cancel_first:
        return _cancel(source, screen)
    _say_detached(source, screen)
    screen.note("press Ctrl-C again within 2 s to cancel it")
    try:
        threading.Event().wait(_SECOND_PRESS_S)
    except KeyboardInterrupt:
        return _cancel(source, screen)
    raise DetachedError


def _cancel(source: Source, screen: Screen) -> CallView:
    screen.note(f"cancelling {source.call_id}…")
    source.cancel()
    try:
        for view in source.states():
            if CallState(view.state).terminal:
                return view
    except KeyboardInterrupt:
        _say_detached(source, screen)
        raise DetachedError from None
    return source.now()


def _say_detached(source: Source, screen: Screen) -> None:
    screen.note(f"detached: {source.call_id} goes on")
    screen.note(f"  gpuctl logs -f {source.call_id}    to watch it again")
    screen.note(f"  gpuctl cancel {source.call_id}     to end it")


@contextlib.contextmanager
def _sigterm_raises() -> Generator[None]:
    """SIGTERM detaches, where this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_signum: int, _frame: object) -> None:
        raise _TerminatedError

    former = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _detail(stage: Stage) -> str:
    if stage.state == "assigned":
        return stage.words
    words = stage.words.removeprefix(stage.state).strip(" :")
    return words[1:-1] if words.startswith("(") and words.endswith(")") else words


def _clock_time(clock: Clock) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(clock.wall_ms() / 1000, UTC).astimezone().strftime("%H:%M:%S ")
