"""The one small process of an embedded cluster: starts store, control plane and agent, restarts what dies, stops all.

Standard library only, one thread. It holds no user code and no open call; killing it takes its three programs with it,
and the next client starts everything again over the same files. Gangs are the keepers' business.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from phalanx.core.clock import Clock, SystemClock
from phalanx.core.errors import InvalidSpecError
from phalanx.embedded.activity import is_busy
from phalanx.embedded.clients import IdleWatch
from phalanx.embedded.devices import Simulated, simulated
from phalanx.embedded.keepers import stop_gangs
from phalanx.embedded.locks import lock_within
from phalanx.embedded.parts import Layout, Ports, agent_part, control_part, free_ports, store_part
from phalanx.embedded.paths import Home
from phalanx.embedded.process import Child, die_with_parent
from phalanx.embedded.record import Failure, Record, tail_of, write_json
from phalanx.embedded.version import build_stamp, installed_version

_START_TIMEOUT_MS = 60_000
_START_TICK_S = 0.01
_TICK_S = 2.0
_PART_STOP_S = 8.0
"""The agent ends its gangs in this time, grace included."""
_GANG_GRACE_MS = 3000
_MAX_LOG_BYTES = 20_000_000
_PORT_TAKEN = ("address already in use", "failed to bind", "errno 98")


class StartFailedError(Exception):
    """A part ended, or was not ready in time."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(slots=True)
class Supervisor:
    """Runs one cluster from start to stop. ``idle_ms`` without client or live call stops it."""

    home: Home
    idle_ms: int
    clock: Clock = field(default_factory=SystemClock)
    children: list[Child] = field(default_factory=list[Child])
    stopping: bool = False
    record: Record | None = None

    def run(self) -> int:
        """Returns the exit status when everything has been stopped. The locks go with the process."""
        self.home.make()
        alive = lock_within(self.home.alive_lock, 2.0)
        os.truncate(alive, 0)
        os.pwrite(alive, str(os.getpid()).encode(), 0)
        wakeup = _SignalPipe(self)
        try:
            self._start()
            self._watch(wakeup)
        except StartFailedError as e:
            write_json(self.home.failure, e.failure)
            return 1
        except InvalidSpecError as e:  # the machine's file has gone since it was asked for
            write_json(self.home.failure, Failure(part="agent", message=str(e), log=str(self.home.logs), tail=""))
            return 1
        finally:
            self.stop()
        return 0

    def _start(self) -> None:
        try:
            self._start_parts(free_ports())
        except StartFailedError as e:
            if e.failure.part != "control" or not any(text in e.failure.tail.lower() for text in _PORT_TAKEN):
                raise
            self._stop_parts()
            self._start_parts(free_ports())

    def _start_parts(self, ports: Ports) -> None:
        layout = Layout(home=self.home)
        like = simulated()
        self._make_folders(layout)
        parts = (store_part(layout), control_part(layout, ports), agent_part(layout, ports, simulated=like))
        self.children = [Child(part, arm=die_with_parent()) for part in parts]
        self._bring_up()
        self.record = self._describe(layout, like)
        write_json(self.home.record, self.record)

    def _make_folders(self, layout: Layout) -> None:
        folders = (layout.home.root / name for name in ("store", "control", "blobs", "agent"))
        for folder in (*folders, layout.agent_run):
            folder.mkdir(mode=0o700, exist_ok=True)

    def _bring_up(self) -> None:
        """Starts all three together and waits until all are ready."""
        until = self.clock.monotonic_ms() + _START_TIMEOUT_MS
        while not all(child.ready for child in self.children):
            now = self.clock.monotonic_ms()
            for child in self.children:
                if child.reap(now):
                    raise StartFailedError(_failure(child, f"the {child.part.name} ended with {child.last_exit}"))
                if child.may_start(now):
                    child.start(now)
            if self.stopping or now > until:
                late = next(child for child in self.children if not child.ready)
                why = "was told to stop before it was ready" if self.stopping else "was not ready within 60 s"
                raise StartFailedError(_failure(late, f"the {late.part.name} {why}"))
            select.select([], [], [], _START_TICK_S)

    def _describe(self, layout: Layout, like: Simulated) -> Record:
        control = json.loads(layout.control_ready.read_text(encoding="utf-8"))
        return Record(
            version=installed_version(),
            build=build_stamp(),
            pid=os.getpid(),
            address=control["address"],
            agents_address=control["agents_address"],
            page=control["page"],
            ca=control["ca"],
            token=layout.admin_token.read_text(encoding="utf-8").strip(),
            simulated_gpus=like.gpus,
            simulates=like.machine,
            run_dir=str(self.home.run),
            started_ms=self.clock.wall_ms(),
            pids=self._pids(),
        )

    def _watch(self, wakeup: _SignalPipe) -> None:
        """Restarts what dies until told to stop, or until nobody has used the cluster for long enough."""
        idle = IdleWatch(self.home, self.clock.monotonic_ms())
        while not self.stopping:
            now = self.clock.monotonic_ms()
            self._restart_dead(now)
            if idle.idle_ms(now) >= self.idle_ms:
                if is_busy(self.home.record):
                    idle.used(self.clock.monotonic_ms())
                elif idle.close_door() is not None:
                    return
            self._trim_logs()
            wakeup.wait(self._next_wait_s())

    def _restart_dead(self, now: int) -> None:
        for child in self.children:
            if child.reap(now):
                _say(f"the {child.part.name} ended with {child.last_exit}; it is started again")
            if child.may_start(now):
                child.start(now)
        self._update_record(now)

    def _update_record(self, now: int) -> None:
        if self.record is None:
            return
        failing = {child.part.name: count for child in self.children if (count := child.failing(now)) > 1}
        record = replace(self.record, pids=self._pids(), failing=failing)
        if record != self.record:
            self.record = record
            write_json(self.home.record, record)

    def _next_wait_s(self) -> float:
        if all(child.running for child in self.children):
            return min(_TICK_S, max(0.05, self.idle_ms / 1000))
        now = self.clock.monotonic_ms()
        soonest = min(child.next_start_ms for child in self.children if not child.running)
        return min(_TICK_S, max(_START_TICK_S, (soonest - now) / 1000))

    def stop(self) -> None:
        """Stops everything: new clients first, then the agent, its gangs, the control plane, the store."""
        self.home.record.unlink(missing_ok=True)
        self._stop_parts()
        if self.home.run.parent != self.home.root:
            shutil.rmtree(self.home.run, ignore_errors=True)

    def _stop_parts(self) -> None:
        for child in reversed(self.children):
            child.stop(_PART_STOP_S)
            if child.part.name == "agent":
                stop_gangs(Layout(home=self.home).agent_run, grace_ms=_GANG_GRACE_MS, clock=self.clock)
        self.children = []

    def _trim_logs(self) -> None:
        for child in self.children:
            _trim(child.part.log)

    def _pids(self) -> dict[str, int]:
        return {child.part.name: child.pid for child in self.children}


class _SignalPipe:
    """Turns SIGTERM, SIGINT and SIGCHLD into something that a bounded wait can wait for."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)

        def stop(_signum: int, _frame: object) -> None:
            supervisor.stopping = True

        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, stop)
        signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def wait(self, timeout_s: float) -> None:
        if select.select([self._read], [], [], timeout_s)[0]:
            self._read.recv(4096)


def _failure(child: Child, message: str) -> Failure:
    log = child.part.log
    return Failure(part=child.part.name, message=message, log=str(log), tail=tail_of(log))


def _trim(log: Path) -> None:
    """Keeps a log and one older one below the limit; the writers append, so that cutting it short is safe."""
    try:
        if log.stat().st_size <= _MAX_LOG_BYTES:
            return
    except FileNotFoundError:
        return
    shutil.copyfile(log, log.with_suffix(".log.1"))
    os.truncate(log, 0)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
