"""What user code may change in its process and a later call must not notice: put back after each call.

Working directory, umask, standard streams, signal handlers and mask, timers, soft limits, processors, environment
variables, the collector of garbage, import path, `sys.argv`, and what torch has of its own. The platform's own
descriptors live at high numbers, where nothing that closes "all" descriptors up to the usual limit finds them.
"""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports]  without the enum lookups that cost 1 µs per signal
import contextlib
import fcntl
import gc
import io
import os
import resource
import signal
import sys
from dataclasses import dataclass, field
from typing import Any

from phalanx_agent.worker.torch_state import TorchState

LOWERED = "a call lowered a hard limit of its process for good (setrlimit): the gang is not used again"
SLOWED = "a call lowered its process's priority for good (nice): the gang is not used again"

HIGH_FD = 12_000
_LIMITS = (
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_CORE,
    resource.RLIMIT_STACK,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_DATA,
)
_SIGNALS = tuple(int(s) for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP) and int(s) < 32)


def move_high(fd: int) -> int:
    """Moves a descriptor above HIGH_FD, or as high as the hard limit allows, and returns its new number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = HIGH_FD
    if hard != resource.RLIM_INFINITY and hard < HIGH_FD + 256:
        lowest = max(64, hard - 128)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    os.close(fd)
    return high


def close_all_but(kept: set[int]) -> None:
    """Closes every descriptor that is not in ``kept``: what a fork inherited is none of the rank's business."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        fd = int(name)
        if fd not in kept:
            with contextlib.suppress(OSError):
                os.close(fd)


def _current_mask() -> frozenset[int]:
    return frozenset(map(int, _signal.pthread_sigmask(signal.SIG_BLOCK, ())))


@dataclass(slots=True)
class ProcessState:
    """A snapshot, and the way back to it. ``streams`` are the platform's copies of descriptors 0, 1 and 2."""

    streams: tuple[int, int, int]
    _identities: tuple[tuple[int, int], ...]
    _objects: tuple[Any, Any, Any]
    _cwd: str
    _cwd_fd: int
    _umask: int
    _handlers: dict[int, Any]
    _limits: dict[int, tuple[int, int]]
    _environ: dict[bytes, bytes]
    _path: list[str] = field(default_factory=lambda: list(sys.path))
    _argv: list[str] = field(default_factory=lambda: list(sys.argv))
    _mask: frozenset[int] = field(default_factory=_current_mask)
    _processors: set[int] = field(default_factory=lambda: os.sched_getaffinity(0))
    _priority: int = field(default_factory=lambda: os.getpriority(os.PRIO_PROCESS, 0))
    _recursion: int = field(default_factory=sys.getrecursionlimit)
    _torch: TorchState | None = field(default_factory=TorchState.take)

    @staticmethod
    def take(streams: tuple[int, int, int]) -> ProcessState:
        umask = os.umask(0o022)
        os.umask(umask)
        return ProcessState(
            streams,
            tuple(_identity(fd) for fd in streams),
            (sys.stdin, sys.stdout, sys.stderr),
            os.getcwd(),  # noqa: PTH109
            move_high(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)),
            umask,
            {s: _signal.getsignal(s) for s in _SIGNALS},
            {which: resource.getrlimit(which) for which in _LIMITS},
            dict(_raw_environ()),
        )

    def restore(self) -> str:
        """Puts back whatever differs. Returns why the process cannot be used again; "" where it can.

        Buffered output was written before.
        """
        self._restore_streams()
        if _cwd_or_none() != self._cwd:
            os.fchdir(self._cwd_fd)
        os.umask(self._umask)
        for which, was in self._handlers.items():
            if was is not None and _signal.getsignal(which) != was:
                _signal.signal(which, was)
        if _raw_environ() != self._environ:
            _restore_environ(self._environ)
        whole = True
        for which, limits in self._limits.items():
            if resource.getrlimit(which) != limits:
                whole = _set_limit(which, limits) and whole
        self._restore_interpreter()
        if not whole:
            return LOWERED
        return self._restore_scheduling() or self._restore_torch()

    def _restore_torch(self) -> str:
        if self._torch is None and "torch" in sys.modules:
            self._torch = TorchState.take(late=True)
        return self._torch.restore() if self._torch is not None else ""

    def _restore_interpreter(self) -> None:
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            if _signal.getitimer(timer)[0]:
                _signal.setitimer(timer, 0)
        if _current_mask() != self._mask:
            _signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        if sys.path != self._path:
            sys.path[:] = self._path
        if sys.argv != self._argv:
            sys.argv = list(self._argv)
        if sys.getrecursionlimit() != self._recursion:
            sys.setrecursionlimit(self._recursion)
        if not gc.isenabled():
            gc.enable()

    def _restore_scheduling(self) -> str:
        if os.sched_getaffinity(0) != self._processors:
            os.sched_setaffinity(0, self._processors)
        if os.getpriority(os.PRIO_PROCESS, 0) == self._priority:
            return ""
        try:
            os.setpriority(os.PRIO_PROCESS, 0, self._priority)
        except OSError:
            return SLOWED
        return ""

    def _restore_streams(self) -> None:
        for fd, identity in enumerate(self._identities):
            if _identity(fd) != identity:
                os.dup2(self.streams[fd], fd)
        stdin, stdout, stderr = self._objects
        same = sys.stdin is stdin and sys.stdout is stdout and sys.stderr is stderr
        if not same or stdin.closed or stdout.closed or stderr.closed:
            self._objects = tuple(o if not o.closed else open_stream(i) for i, o in enumerate(self._objects))  # pyright: ignore[reportAttributeAccessIssue]
            sys.stdin, sys.stdout, sys.stderr = self._objects


def open_stream(fd: int) -> Any:
    """Returns a text stream over descriptor 0, 1 or 2 that keeps nothing back and never owns the descriptor."""
    if fd == 0:
        return open(0, encoding="utf-8", errors="replace", closefd=False)
    raw = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)  # pyright: ignore[reportArgumentType]  as `python -u` does


def flush_streams() -> None:
    """Writes out what sits in Python's buffers; a stream that the user broke is left alone."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001, S112  the user's stream may raise anything
            continue


def say(line: str) -> None:
    """Writes a line of the platform's own among what the rank writes to its standard error."""
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())


def _set_limit(which: int, limits: tuple[int, int]) -> bool:
    """Sets soft and hard limit. Returns False for a hard one that was lowered: only root may raise it again."""
    try:
        resource.setrlimit(which, limits)
    except (ValueError, OSError):
        return False
    return True


def _identity(fd: int) -> tuple[int, int]:
    try:
        status = os.fstat(fd)
    except OSError:
        return (-1, -1)
    return status.st_dev, status.st_ino


def _cwd_or_none() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return None


def _raw_environ() -> dict[bytes, bytes]:
    return os.environ._data  # pyright: ignore[reportAttributeAccessIssue]


def _restore_environ(was: dict[bytes, bytes]) -> None:
    for name in [n for n in os.environb if n not in was]:
        del os.environb[name]
    for name, value in was.items():
        if os.environb.get(name) != value:
            os.environb[name] = value
