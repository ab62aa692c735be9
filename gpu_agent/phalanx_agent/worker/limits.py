"""What a rank may use: user, processors, threads, memory. Set before user code; a limit is named when it is hit."""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import pwd
import resource
import sys
from pathlib import Path

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


def pin(*, cpus: float, gang_id: str, local_rank: int) -> int:
    """Binds the rank to ``cpus`` processors of those allowed, spread by gang; 0: all. Returns how many it may use."""
    allowed = sorted(os.sched_getaffinity(0))
    if cpus <= 0:
        return len(allowed)
    count = min(len(allowed), max(1, math.ceil(cpus)))
    first = int.from_bytes(hashlib.sha256(gang_id.encode()).digest()[:4], "big") + local_rank * count
    os.sched_setaffinity(0, {allowed[(first + i) % len(allowed)] for i in range(count)})
    return count


def threads_for(*, usable: int, asked: float, local_ranks: int) -> int:
    """Returns the rank's share of threads: what was asked for, or an equal part of the machine."""
    return usable if asked > 0 else max(1, usable // local_ranks)


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
