"""The machine itself: its name, its boot, its processors and memory, and the versions that gangs will meet."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """``boot_id`` changes with every boot: processes of another boot are gone. ``torch`` is empty where missing."""

    hostname: str
    boot_id: str
    cpus: int
    memory_bytes: int
    python: str
    torch: str
    agent_version: str


def read_host() -> HostFacts:
    """Returns the facts of this machine; what cannot be read is empty or 0."""
    return HostFacts(
        hostname=socket.gethostname(),
        boot_id=_read("/proc/sys/kernel/random/boot_id"),
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        python=".".join(platform.python_version_tuple()[:2]),
        torch=_version("torch"),
        agent_version=_version("phalanx") or "0.1.0",
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _version(package: str) -> str:
    """Reads a package's version from its metadata, without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
