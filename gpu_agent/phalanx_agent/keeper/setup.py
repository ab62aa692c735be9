"""What a forked rank is given: plain data and descriptors. Made by the keeper, used by the worker."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from phalanx_agent.gang_config import GangConfig

STACK_SIGNAL = signal.SIGRTMAX - 2
"""Dumps all stacks into the rank's stack file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSetup:
    """One rank's start. Descriptors are owned by the rank from the fork on; −1 where there is none.

    ``local_rank`` counts within the node. ``host_proc_fd`` is a directory of the /proc that the agent sees.
    """

    config: GangConfig
    local_rank: int
    socket_fd: int
    look_fd: int
    stdout_fd: int
    stderr_fd: int
    listen_fd: int
    stack_fd: int
    host_proc_fd: int
    tmp_dir: Path
    has_parent_link: bool
    """True where the keeper's death does not end the namespace, so the rank must ask for a signal."""
    boundary: bytes
    """What the rank writes into its output before a call that it begins by itself."""

    @property
    def rank(self) -> int:
        """The rank in the whole gang."""
        return self.config.member.first_rank + self.local_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellRequest:
    """What somebody wants beside a rank: a shell, or ``command`` in one. ``plain``: no person types there."""

    command: str = ""
    term: str = "dumb"
    rows: int = 24
    columns: int = 80
    plain: bool = False

    @classmethod
    def of(cls, meta: dict[str, Any]) -> Self:
        return cls(
            command=str(meta.get("command", "")),
            term=str(meta.get("term") or "dumb")[:64],
            rows=whole(meta.get("rows")) or 24,
            columns=whole(meta.get("columns")) or 80,
            plain=bool(meta.get("plain")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSetup:
    """One shell's start, in the fork. ``cwd`` is where its rank works; the terminal is the shell's from here on."""

    config: GangConfig
    rank: int
    local_rank: int
    terminal_fd: int
    cwd: str
    tmp_dir: Path
    has_parent_link: bool
    request: ShellRequest


def whole(said: Any) -> int:
    """Returns the number that somebody said; 0 where it is none."""
    return said if isinstance(said, int) else 0
