"""One child program of the supervisor: started with nothing inherited, ended with its parent, restarted with patience.

May only be used from a process with one thread: the child asks to be killed when the thread that forked it ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from phalanx.embedded.parts import Part, part_environment

_PR_SET_PDEATHSIG = 1
_BACKOFF_MS = (0, 100, 300, 1000, 2000, 5000)
_STEADY_MS = 30_000


@dataclass(slots=True)
class Child:
    """A part and its process. Times are monotonic milliseconds."""

    part: Part
    process: subprocess.Popen[bytes] | None = None
    started_ms: int = 0
    deaths: int = 0
    next_start_ms: int = 0
    last_exit: int = 0
    arm: Callable[[], None] | None = None
    """Runs in the forked child before its program: see `die_with_parent`."""

    @property
    def running(self) -> bool:
        return self.process is not None

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    def failing(self, now_ms: int) -> int:
        """Returns how often it has ended in a row; 0 once it has run for long enough."""
        return 0 if self.running and now_ms - self.started_ms > _STEADY_MS else self.deaths

    @property
    def ready(self) -> bool:
        return self.running and self.part.ready.exists()

    def may_start(self, now_ms: int) -> bool:
        """Says whether it is down and its turn has come."""
        return not self.running and now_ms >= self.next_start_ms

    def start(self, now_ms: int) -> None:
        """Starts it in a session of its own; its output goes to its log and to nowhere else."""
        self.part.ready.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log = os.open(self.part.log, flags, 0o600)
        try:
            self.process = subprocess.Popen(
                self.part.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=part_environment(),
                cwd="/",
                close_fds=True,
                start_new_session=True,
                preexec_fn=self.arm,  # noqa: PLW1509 (one thread: see the module's docstring)
            )
        finally:
            os.close(log)
        self.started_ms = now_ms

    def reap(self, now_ms: int) -> bool:
        """Notes its end, if it has ended, and when it may start again. Returns whether it had ended."""
        if self.process is None or self.process.poll() is None:
            return False
        self.last_exit = self.process.returncode
        self.process = None
        self.deaths = 0 if now_ms - self.started_ms > _STEADY_MS else self.deaths + 1
        self.next_start_ms = now_ms + _BACKOFF_MS[min(self.deaths, len(_BACKOFF_MS)) - 1 if self.deaths else 0]
        return True

    def stop(self, timeout_s: float) -> None:
        """SIGTERM, at most ``timeout_s`` seconds, SIGKILL. Returns when it is gone."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


def die_with_parent() -> Callable[[], None] | None:
    """Returns what a forked child runs before its program so that it is killed when its parent ends; None elsewhere."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arm
