"""The walls around a gang: a PID namespace with its own /proc where the kernel permits it, else a session.

Linux only. In the first case the keeper is pid 1 and its end is the end of everything inside. In the second it adopts
orphans (subreaper) and finds its descendants through /proc. Nothing here knows what runs inside.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from enum import StrEnum
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_MS_NOSUID_NODEV = 0x2 | 0x4
_MS_REC_PRIVATE = 0x4000 | 0x40000
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


class Walls(StrEnum):
    """How a gang is kept together, best first."""

    NAMESPACE = "namespace"
    USER_NAMESPACE = "user_namespace"
    SESSION = "session"

    @property
    def is_namespace(self) -> bool:
        return self is not Walls.SESSION


def candidates(*, changes_user: bool) -> tuple[Walls, ...]:
    """Returns what to try here, best first. A user namespace holds one user only, so it cannot change to another."""
    if os.geteuid() != 0:
        return (Walls.USER_NAMESPACE, Walls.SESSION)
    if changes_user:
        return (Walls.NAMESPACE, Walls.SESSION)
    return (Walls.NAMESPACE, Walls.USER_NAMESPACE, Walls.SESSION)


def leave_parent(walls: Walls) -> None:
    """Makes the next child the first process inside new walls. Raises OSError where the kernel refuses."""
    os.setsid()
    if not walls.is_namespace:
        return
    uid, gid = os.geteuid(), os.getegid()
    flags = _CLONE_NEWPID | _CLONE_NEWNS | _CLONE_NEWIPC
    if walls is Walls.USER_NAMESPACE:
        flags |= _CLONE_NEWUSER
    _check(_libc.unshare(flags), "unshare")
    if walls is Walls.USER_NAMESPACE:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def settle(walls: Walls) -> None:
    """In the keeper, first: own /proc and shared memory, or adoption of orphans. Raises OSError where refused."""
    if not walls.is_namespace:
        _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")
        return
    _mount(b"none", b"/", None, _MS_REC_PRIVATE)
    _mount(b"proc", b"/proc", b"proc", _MS_NOSUID_NODEV)
    with contextlib.suppress(OSError):
        _mount(b"shm", b"/dev/shm", b"tmpfs", _MS_NOSUID_NODEV, b"mode=1777")


def become_subreaper() -> None:
    """Makes orphaned descendants of this process its children."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def die_with_parent() -> None:
    """Asks for SIGKILL when the parent ends; cleared by a change of user, so call it after that."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def kill_everything(walls: Walls, number: int = signal.SIGKILL) -> bool:
    """Signals every process inside but the keeper. Returns False when there was none."""
    if walls.is_namespace:
        try:
            os.kill(-1, number)
        except ProcessLookupError:
            return False
        return True
    found = descendants(os.getpid())
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return bool(found)


def descendants(root: int) -> list[int]:
    """Returns the living processes below ``root``, zombies left out."""
    parents = {pid: stat[1] for pid, stat in _all_stats() if stat[0] != "Z"}
    found: list[int] = []
    level = {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += level
    return found


def in_session(leader: int) -> list[int]:
    """Returns the living processes of a session."""
    return [pid for pid, stat in _all_stats() if stat[3] == leader and stat[0] != "Z"]


def started_since(pids: list[int], uptime_ticks: int) -> list[int]:
    """Returns those of ``pids`` that began at ``uptime_ticks`` (clock ticks since boot) or later."""
    stats = dict(_all_stats())
    return [pid for pid in pids if pid in stats and stats[pid][2] >= uptime_ticks]


def _all_stats() -> list[tuple[int, tuple[str, int, int, int]]]:
    """Returns (pid, (state, parent, start in ticks, session)) of every process that /proc shows."""
    out: list[tuple[int, tuple[str, int, int, int]]] = []
    for name in os.listdir("/proc"):  # noqa: PTH208  strings are needed, and this runs when a gang ends
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError):
            rest = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            out.append((int(name), (rest[0], int(rest[1]), int(rest[19]), int(rest[3]))))
    return out


def _mount(source: bytes, target: bytes, kind: bytes | None, flags: int, data: bytes | None = None) -> None:
    _check(_libc.mount(source, target, kind, ctypes.c_ulong(flags), data), f"mount {target.decode()}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
