"""What a rank may use: user, processors, threads, memory. Set before user code; a limit is named when it is hit."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import pwd
import resource
import sys
from pathlib import Path

from phalanx.core.topology.affinity import cpus_in
from phalanx.core.topology.equipment import RankEquipment

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""The system call's number: libc has no function for it."""
_MPOL_DEFAULT, _MPOL_PREFERRED = 0, 1
_WORD_BITS = 64
_NUMA_WORDS = 16

_BLAS_SETTERS = (
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
)


def become(user: str) -> None:
    """Gives up the agent's rights for those of ``user``; for good. Does nothing when not started by root."""
    if not user or os.geteuid() != 0:
        return
    entry = pwd.getpwnam(user)
    os.initgroups(user, entry.pw_gid)
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    os.environ.update(HOME=entry.pw_dir, USER=user, LOGNAME=user)


def settle(equipment: RankEquipment, *, local_ranks: int) -> int:
    """Binds the rank to its processors and lets it prefer the memory near them. Returns its share of threads.

    What the kernel refuses is told in the rank's output, and the rank goes on without.
    """
    cpus = cpus_in(equipment.cpus) if equipment.cpus else None
    try:
        if cpus:
            os.sched_setaffinity(0, cpus)
        if equipment.memory_numa is not None:
            prefer_memory(equipment.memory_numa)
    except OSError as e:
        sys.stderr.write(f"phalanx: the rank is not bound to processors {equipment.cpus} and their memory: {e}\n")
    usable = len(os.sched_getaffinity(0))
    return max(1, usable // (equipment.sharers if cpus else local_ranks))


def prefer_memory(numa: int | None) -> None:
    """Lets this thread's memory come from a NUMA node while that has any, else from any; None: the kernel's choice.

    Raises OSError where the kernel, or a container's filter, refuses, or has no such NUMA node.
    """
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None or sys.platform != "linux":
        raise OSError(errno.ENOSYS, f"not known how on {platform.machine()}")
    words = (ctypes.c_ulong * _NUMA_WORDS)()
    if numa is not None:
        if not 0 <= numa < _NUMA_WORDS * _WORD_BITS:
            raise OSError(errno.EINVAL, f"no NUMA node {numa}")
        words[numa // _WORD_BITS] = 1 << numa % _WORD_BITS
    mode, mask = (_MPOL_DEFAULT, None) if numa is None else (_MPOL_PREFERRED, words)
    size = ctypes.c_ulong(0 if numa is None else _NUMA_WORDS * _WORD_BITS + 1)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), ctypes.c_int(mode), mask, size) != 0:
        refused = ctypes.get_errno()
        raise OSError(refused, os.strerror(refused))


def set_threads(count: int) -> None:
    """Sets torch's and OpenBLAS's threads; the zygote kept both at one."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
    if "numpy" in sys.modules and count > 1:
        for path in _mapped("openblas"):
            _set_blas(path, count)


def limit_memory(memory_gb: float) -> None:
    """Lets the rank's private memory grow by ``memory_gb`` (10^9 bytes) from here; beyond, MemoryError is raised."""
    if memory_gb <= 0:
        return
    limit = private_bytes() + int(memory_gb * 1e9)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def private_bytes() -> int:
    """Returns the size of this process's private writable memory, as the kernel counts it for RLIMIT_DATA."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


def _mapped(part: str) -> set[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(None, 5)[5] for line in lines if part in line.rpartition("/")[2]}


def _set_blas(path: str, count: int) -> None:
    library = ctypes.CDLL(path)
    for name in _BLAS_SETTERS:
        setter = getattr(library, name, None)
        if setter is not None:
            setter(count)
            return
