"""Calls in a rank: unpack, run the user's function, pack, reply once, put the process back in order."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from phalanx.context import CancelledSignal, Context, install
from phalanx.core.frames import Frame, Kind
from phalanx.core.remote_errors import describe
from phalanx.core.serialization import Packed, pack, unpack
from phalanx.core.states import Cause
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.keeper.report import error_to_dict
from phalanx_agent.worker import group, outcomes, streams
from phalanx_agent.worker.breakpoints import Breakpoints
from phalanx_agent.worker.guard import ProcessState, flush_streams, say
from phalanx_agent.worker.link import Arguments, Link, Results
from phalanx_agent.worker.markers import Markers
from phalanx_agent.worker.output import Output
from phalanx_agent.worker.signals import WORDS, Stop, StopIdleError, Where
from phalanx_agent.worker.steps import Marks


@dataclass(frozen=True, slots=True)
class Callee:
    """The user's function."""

    function: Callable[..., Any]


@dataclass(slots=True)
class _Ran:
    """How the user's function ended."""

    value: Any = None
    error: BaseException | None = None
    flow: streams.Flow | None = None


@dataclass(slots=True)
class Server:
    """Runs calls until the keeper ends the gang. ``state`` is the process as it was before user code ran."""

    config: GangConfig
    context: Context
    callee: Callee
    link: Link
    stop: Stop
    markers: Markers
    marks: Marks
    breakpoints: Breakpoints
    state: ProcessState
    output: Output
    pid: int = field(default_factory=os.getpid)
    arguments: Arguments = field(default_factory=Arguments)
    results: Results = field(default_factory=Results)
    _exit_code: int | None = None
    _failed: bool = False
    """The last call: what the keeper had sent ahead comes again."""

    def serve(self) -> int:
        """Returns the exit code once a call asked for the process's end. Raises StopIdleError when asked to stop."""
        while self._exit_code is None:
            self.stop.idle()
            frame = self.link.receive()
            self.stop.where = Where.PLATFORM
            if frame.kind is Kind.CALL:
                self._begin(frame)
            elif frame.kind is Kind.RELEASE:
                self.results.release(frame.meta.get("slots", []))
        return self._exit_code

    def _begin(self, frame: Frame) -> None:
        if frame.meta.get("ahead"):
            if self._failed:
                return
            self.output.mark_boundary()
            if self.link.is_withdrawn(frame.id):
                self.link.send(Frame(Kind.FAILURE, frame.id, {"withdrawn": True}))
                return
        self._failed = False
        self._call(frame)

    def _call(self, frame: Frame) -> None:
        attempt = int(frame.meta.get("attempt", 1))
        install(lambda: replace(self.context, raw_call_id=frame.id, attempt=attempt))
        if attempt > 1 and self.context.rank == 0:
            say(f"phalanx: attempt {attempt}")
        self.markers.write("start", call=frame.id, attempt=attempt)
        ran = self._run(frame)
        if os.getpid() != self.pid:
            flush_streams()
            os._exit(0)
        self.breakpoints.over()
        self.marks.flush()
        self.markers.write("stop", call=frame.id, attempt=attempt)
        install(None)
        if isinstance(ran.error, StopIdleError):
            raise ran.error
        flush_streams()
        if ran.error is None:
            self._succeed(frame.id, ran)
        else:
            self._fail(frame.id, ran.error)
        del ran
        spoilt = self.state.restore() if self.config.world_size == 1 else ""
        if spoilt:
            raise StopIdleError(spoilt)
        self._give_back_late()

    def _run(self, frame: Frame) -> _Ran:
        try:
            return self._run_interruptibly(frame)
        except CancelledSignal as e:
            return _Ran(error=e)

    def _run_interruptibly(self, frame: Frame) -> _Ran:
        """Two nets: the stop exception may come at any instruction, also between the user's return and ours."""
        try:
            args, kwargs = unpack(self.arguments.open(frame))
            flow = self._flow(frame) if self.config.function.streams else None
            self.stop.user()
            value = contextvars.copy_context().run(self._call_user, flow, args, kwargs)
            self.stop.where = Where.PLATFORM
            return _Ran(value, flow=flow)
        except BaseException as e:  # noqa: BLE001  the user's boundary: everything is reported
            self.stop.where = Where.PLATFORM
            return _Ran(error=e)

    def _flow(self, frame: Frame) -> streams.Flow:
        sends = self.context.rank == 0 or self.config.function.returns == "all"
        return streams.Flow(self.link, self.stop, frame, sends=sends, alone=self.config.world_size == 1)

    def _call_user(self, flow: streams.Flow | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """In a copy of the context: what a call sets there, the next one does not see."""
        value = self.callee.function(*args, **kwargs)
        if inspect.iscoroutine(value):
            value = self._run_coroutine(value)
        if flow is None:
            return value
        return streams.run(flow, value, self._run_coroutine, name=self.config.function.name)

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        async def run() -> Any:
            self.stop.cancels_task(asyncio.get_running_loop(), asyncio.current_task())
            return await coroutine

        try:
            return asyncio.run(run())
        except asyncio.CancelledError as e:
            if self.stop.requested:
                raise CancelledSignal(WORDS) from e
            raise
        finally:
            self.stop.cancels_task(None, None)

    def _succeed(self, call: bytes, ran: _Ran) -> None:
        wanted = self.context.rank == 0 or self.config.function.returns == "all"
        try:
            packed = pack(ran.value, what="result") if wanted else Packed([b""], 0)
        except Exception as e:  # noqa: BLE001  a result that cannot travel is the call's error, whatever is raised
            self._fail(call, e)
            return
        body, meta, fds = self.results.body(packed)
        if ran.flow is not None:
            self.results.release(ran.flow.released)
            meta |= {"items": ran.flow.window.made} | ({"closed": True} if ran.flow.closed else {})
        ran.value = None
        del packed
        released = self.arguments.take_back() if self.arguments.lent else []
        if released:
            meta["released"] = [c.hex() for c in released]
        if self.config.world_size > 1:
            meta["seq"] = group.sequence_number()
            spoilt = self.state.restore()
            if spoilt:
                meta["leaves"] = spoilt
        self.link.send(Frame(Kind.RESULT, call, meta, body, fds=fds))
        if fds:
            self.results.sent([f["slot"] for f in meta["fds"]])

    def _fail(self, call: bytes, exc: BaseException) -> None:
        self._failed = True
        cause = outcomes.cause_of(exc, asked_to_stop=self.stop.requested)
        error = describe(exc, rank=self.context.rank, node_id=self.config.node_id, cause=cause)
        error = outcomes.with_own_paths(error, self.config.bundle_dir)
        peer = outcomes.is_peer_error(exc, world_size=self.config.world_size)
        exits = isinstance(exc, SystemExit) or self.stop.requested
        if exits:
            self._exit_code = error.exit_code
        if error.cause is Cause.CANCELLED:
            error = replace(error, pickled=b"")
        meta = {
            "error": error_to_dict(error),
            "peer": peer,
            "exits": exits,
            "seq": self._sequence(),
            "released": [c.hex() for c in self.arguments.take_back()],
        }
        self.link.send(Frame(Kind.FAILURE, call, meta, error.pickled))

    def _sequence(self) -> int:
        return group.sequence_number() if self.config.world_size > 1 else 0

    def _give_back_late(self) -> None:
        """Argument memory that outlived its call is told when its last view is gone."""
        for call_id in self.arguments.take_back() if self.arguments.lent else ():
            self.link.send(Frame(Kind.RELEASE, call_id))
