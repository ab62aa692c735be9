"""A program that runs one controller on a store until it is killed: ``python -m tests.support.lead URL NAME``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from phalanx.core.clock import SystemClock
from phalanx_control.controller import Controller
from phalanx_control.controller_rules import Rules
from phalanx_control.log.redis_log import RedisLog
from tests.support.replicas import no_peers
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]


class LeaderProcess:
    """A replica in a process of its own, ended by its pid."""

    def __init__(self, url: str, name: str) -> None:
        actions = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1)]
        argv = [sys.executable, "-m", "tests.support.lead", url, name]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.pid = os.posix_spawn(sys.executable, argv, environment, file_actions=actions)

    def kill(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """Ends the process and waits for it."""
        if self.pid:
            os.kill(self.pid, sig)
            wait_until(self._is_gone, f"replica process {self.pid} has ended")

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _is_gone(self) -> bool:
        if self.pid and os.waitpid(self.pid, os.WNOHANG)[0] == self.pid:
            self.pid = 0
        return not self.pid


async def main(url: str, name: str) -> None:
    log = RedisLog(url, cell="t")
    rules = Rules(sign_peers=no_peers)
    await Controller(log, SystemClock(), replica_id=name, address=f"{name}:1", rules=rules).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
