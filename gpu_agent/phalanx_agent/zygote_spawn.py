"""Starting a zygote's process, and no more: standard library only, so that the agent can do it before its own imports.

Importing torch takes longer than anything else in an agent's start: whoever starts it first is ready first.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_SECRETS = ("PHALANX_TOKEN", "PHALANX_AGENT_", "PHALANX_CONTROL_", "PHALANX_JOIN")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteKey:
    """What makes two gangs share a zygote. ``light``: without torch and, where those forbid forks, preloads."""

    digest: str
    light: bool
    python: str
    preload: tuple[str, ...]

    @property
    def name(self) -> str:
        """The file name of its socket and log."""
        if self.light:
            return f"{self.digest}-light" if self.digest else "light"
        return self.digest or "base"


@dataclass(frozen=True, slots=True)
class Spawned:
    """A zygote that imports: its pid, the lifeline's writing end, its status line's reading end, and its socket."""

    key: ZygoteKey
    pid: int
    lifeline: int
    status: int
    path: Path


def spawn(key: ZygoteKey, directory: Path) -> Spawned:
    """Starts the process; its socket and its log are in ``directory``. Raises OSError."""
    path, log = directory / f"{key.name}.sock", directory / f"{key.name}.log"
    lifeline_reading, lifeline = os.pipe()
    status, status_writing = os.pipe()
    log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    command = [key.python, "-m", "phalanx_agent.zygote", "--socket", str(path), "--preload", ",".join(key.preload)]
    if key.light:
        command.append("--light")
    actions = [
        (os.POSIX_SPAWN_DUP2, lifeline_reading, 0),
        (os.POSIX_SPAWN_DUP2, log_fd, 1),
        (os.POSIX_SPAWN_DUP2, log_fd, 2),
        (os.POSIX_SPAWN_DUP2, status_writing, 3),
    ]
    try:
        pid = os.posix_spawn(key.python, command, _environment(), file_actions=actions, setsigmask=())
    except OSError:
        os.close(lifeline)
        os.close(status)
        raise
    finally:
        for fd in (lifeline_reading, status_writing, log_fd):
            os.close(fd)
    return Spawned(key, pid, lifeline, status, path)


def _environment() -> dict[str, str]:
    """The agent's, without its secrets; one thread each for the libraries that start some when imported."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_SECRETS)}
    kept.update(dict.fromkeys(_THREAD_VARIABLES, "1"), PYTORCH_NVML_BASED_CUDA_CHECK="1", PYTHONUNBUFFERED="1")
    kept["KMP_INIT_AT_FORK"] = "FALSE"
    return kept
