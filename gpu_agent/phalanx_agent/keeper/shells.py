"""Shells beside ranks: forked by the keeper, so inside the gang's walls, on a pseudo-terminal. Runs none itself."""

from __future__ import annotations

import os
import termios
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from phalanx_agent.gang_config import GangConfig
from phalanx_agent.keeper.ranks import RankProcess
from phalanx_agent.keeper.setup import ShellRequest, ShellSetup
from phalanx_agent.keeper.terminals import resize

ShellMain = Callable[[ShellSetup], NoReturn]
_OFLAG, _LFLAG = 1, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Shells:
    """Of one gang on this node. ``shell_main`` becomes the shell, in the fork."""

    config: GangConfig
    tmp_dir: Path
    has_parent_link: bool
    shell_main: ShellMain

    def start(self, rank: RankProcess, request: ShellRequest) -> tuple[int, int]:
        """Returns the shell's pid and the keeper's side of its terminal. Raises OSError."""
        ours, theirs = os.openpty()
        try:
            resize(ours, request.rows, request.columns)
            if request.plain:
                _make_plain(theirs)
            setup = ShellSetup(
                config=self.config,
                rank=rank.rank,
                local_rank=rank.rank - self.config.member.first_rank,
                terminal_fd=theirs,
                cwd=f"/proc/{rank.pid}/cwd",
                tmp_dir=self.tmp_dir,
                has_parent_link=self.has_parent_link,
                request=request,
            )
            pid = os.fork()
            if pid == 0:
                self.shell_main(setup)
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        os.set_blocking(ours, False)
        return pid, ours


def _make_plain(fd: int) -> None:
    """What a program reads is not made for eyes: no carriage returns in the output, and no echo."""
    attributes = termios.tcgetattr(fd)
    attributes[_OFLAG] &= ~termios.OPOST
    attributes[_LFLAG] &= ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSANOW, attributes)
