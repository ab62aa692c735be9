"""What a forked rank is given: plain data and descriptors. Made by the keeper, used by the worker."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

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

    @property
    def rank(self) -> int:
        """The rank in the whole gang."""
        return self.config.member.first_rank + self.local_rank
