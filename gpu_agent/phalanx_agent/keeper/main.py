"""A keeper's life: from the fork to the report's acknowledgement. The zygote calls it in a fresh child."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from phalanx.core.clock import Clock, SystemClock
from phalanx.core.states import Phase
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.keeper import namespaces, reasons
from phalanx_agent.keeper.absence import Absence
from phalanx_agent.keeper.agent import SOCKET_NAME, AgentLink, listen
from phalanx_agent.keeper.calls import CallBook
from phalanx_agent.keeper.counters import PhaseCounters
from phalanx_agent.keeper.ending import Ending
from phalanx_agent.keeper.gang import Gang
from phalanx_agent.keeper.leftovers import Leftovers
from phalanx_agent.keeper.loop import Loop, signals_to
from phalanx_agent.keeper.namespaces import Walls
from phalanx_agent.keeper.output import OutputPipe, Spool
from phalanx_agent.keeper.ranks import Nest, RankMain, RankProcess, spawn
from phalanx_agent.keeper.report import Evidence
from phalanx_agent.keeper.shells import ShellMain, Shells
from phalanx_agent.traces import tmp_prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperSetup:
    """What a new keeper is given. ``listen_fd`` −1: this node does not lead."""

    config: GangConfig
    gang_dir: Path
    walls: Walls
    listen_fd: int
    rank_main: RankMain
    shell_main: ShellMain
    accepting: Callable[[], None]
    """Called once, when keeper.sock takes connections."""


def run_keeper(setup: KeeperSetup) -> NoReturn:
    """Runs until the report is acknowledged. Whatever happens, nothing outlives it."""
    code = 1
    try:
        _Keeper(setup).run()
        code = 0
    except BaseException:  # noqa: BLE001  the process boundary: the log says why, and the ranks end
        traceback.print_exc()
        sys.stderr.flush()
        namespaces.kill_everything(setup.walls)
    finally:
        os._exit(code)


class _Keeper:
    """Puts the parts together and runs the loop."""

    def __init__(self, setup: KeeperSetup) -> None:
        self._setup = setup
        self._clock: Clock = SystemClock()
        self._leaving = False

    def run(self) -> None:
        host_proc_fd = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        listener = self._settle()
        spool = Spool(self._setup.gang_dir / "spool.log", self._clock)
        tmp_dir = _private_tmp(self._setup.config)
        self._setup.accepting()
        try:
            began_ms = self._clock.monotonic_ms()
            ranks = self._fork(tmp_dir, host_proc_fd)
            counters = PhaseCounters(Phase.START, began_ms)
            loop = Loop(self._clock)
            link, gang = self._assemble(loop, listener, ranks, counters=counters, spool=spool, tmp_dir=tmp_dir)
            self._watch(loop, gang, ranks)
            gang.agent_gone()
            while not self._leaving:
                loop.turn()
            link.close()
        finally:
            with contextlib.suppress(OSError):
                (self._setup.gang_dir / SOCKET_NAME).unlink()
            shutil.rmtree(tmp_dir, ignore_errors=True)

    def _settle(self) -> socket.socket:
        """Inside the walls, with the log as output and the socket bound."""
        namespaces.settle(self._setup.walls)
        null = os.open(os.devnull, os.O_RDONLY)
        log = os.open(self._setup.gang_dir / "keeper.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.close(null)
        os.close(log)
        return listen(str(self._setup.gang_dir))

    def _fork(self, tmp_dir: Path, host_proc_fd: int) -> list[RankProcess]:
        setup = self._setup
        nest = Nest(
            config=setup.config,
            gang_dir=setup.gang_dir,
            tmp_dir=tmp_dir,
            listen_fd=setup.listen_fd,
            host_proc_fd=host_proc_fd,
            has_parent_link=not setup.walls.is_namespace,
            rank_main=setup.rank_main,
        )
        ranks = [spawn(nest, local_rank) for local_rank in range(setup.config.member.ranks)]
        os.close(host_proc_fd)
        if setup.listen_fd >= 0:
            os.close(setup.listen_fd)
        return ranks

    def _assemble(
        self,
        loop: Loop,
        listener: socket.socket,
        ranks: list[RankProcess],
        *,
        counters: PhaseCounters,
        spool: Spool,
        tmp_dir: Path,
    ) -> tuple[AgentLink, Gang]:
        setup = self._setup
        grace_ms = int(setup.config.function.limits.disconnect_grace_s * 1000)
        ending = Ending(loop, self._clock, setup.walls, ranks, lambda clean: gang.all_gone(clean))  # noqa: PLW0108  made below
        shells = Shells(
            config=setup.config,
            tmp_dir=tmp_dir,
            has_parent_link=not setup.walls.is_namespace,
            shell_main=setup.shell_main,
        )
        gang = Gang(
            config=setup.config,
            gang_dir=setup.gang_dir,
            clock=self._clock,
            loop=loop,
            spool=spool,
            ranks=ranks,
            ending=ending,
            tell=lambda frame: link.send(frame),  # noqa: PLW0108  made below
            tell_soon=lambda frame, more: link.send_soon(frame, more),  # noqa: PLW0108  made below
            agent_keeps_up=lambda: link.keeps_up,
            leave=self._leave,
            shells=shells,
            leftovers=Leftovers(self._clock),
            counters=counters,
            book=CallBook(len(ranks)),
            evidence=Evidence(setup.config.node_id),
            absence=Absence(loop, self._clock, grace_ms, lambda ms: reasons.abandoned(gang, ms), self._leave),
        )
        link = AgentLink(loop, listener, on_attach=gang.attached, on_frame=gang.from_agent, on_gone=gang.agent_gone)
        return link, gang

    def _watch(self, loop: Loop, gang: Gang, ranks: list[RankProcess]) -> None:
        limits = self._setup.config.function.limits
        signals_to(loop, gang.reap, lambda: gang.stop("the keeper was asked to end", int(limits.grace_s * 1000)))
        for rank in ranks:
            loop.watch(rank.channel.fd, lambda events, r=rank: gang.rank_ready(r, events))
            for pipe in rank.pipes:
                loop.watch(pipe.fd, lambda _, p=pipe: _pipe(gang, p), first=True)
        if limits.startup_timeout_s:
            deadline = self._clock.monotonic_ms() + int(limits.startup_timeout_s * 1000)
            loop.at("startup", deadline, lambda: reasons.late(gang))
        gang.reap()

    def _leave(self) -> None:
        self._leaving = True


def _pipe(gang: Gang, pipe: OutputPipe) -> None:
    if pipe.fd >= 0:
        gang.pipe_ready(pipe)


def _private_tmp(config: GangConfig) -> Path:
    path = Path(tempfile.mkdtemp(prefix=tmp_prefix(config.gang_id)))
    if config.rank_user and os.geteuid() == 0:
        entry = pwd.getpwnam(config.rank_user)
        os.chown(path, entry.pw_uid, entry.pw_gid)
    return path
