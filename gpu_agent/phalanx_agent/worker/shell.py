"""Becomes a shell beside a rank: with its user, environment and folder, on the terminal that the keeper made."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import termios
import traceback
from pathlib import Path
from typing import NoReturn

from phalanx.core.topology.equipment import Equipment, from_text
from phalanx_agent.keeper.namespaces import die_with_parent
from phalanx_agent.keeper.setup import ShellSetup
from phalanx_agent.worker import limits
from phalanx_agent.worker.environment import set_environment
from phalanx_agent.worker.guard import close_all_but

_SHELLS = ("bash", "sh")


def run_shell(setup: ShellSetup) -> NoReturn:
    """Replaces this process, a fork of the keeper's, by the shell. Its terminal says what kept it from that."""
    try:
        _take_terminal(setup.terminal_fd)
        _become(setup)
        command = setup.request.command
        program = next(found for name in _SHELLS if (found := shutil.which(name, path=os.defpath)))
        os.execv(program, [program, "-c", command] if command else [program])  # noqa: S606
    except BaseException:  # noqa: BLE001  the process boundary
        traceback.print_exc()
    finally:
        os._exit(126)


def _take_terminal(fd: int) -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.setsid()
    fcntl.ioctl(fd, termios.TIOCSCTTY, 0)
    for target in (0, 1, 2):
        os.dup2(fd, target)
    close_all_but({0, 1, 2})


def _become(setup: ShellSetup) -> None:
    config = setup.config
    equipment = from_text(config.equipment) if config.equipment else Equipment()
    limits.become(config.rank_user)
    if setup.has_parent_link:
        die_with_parent()
    os.umask(0o022)
    try:
        os.chdir(setup.cwd)
    except OSError:
        os.chdir(setup.tmp_dir)
    set_environment(config, setup.rank, setup.local_rank, tmp_dir=setup.tmp_dir, equipment=equipment)
    os.environ["TERM"] = setup.request.term
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
