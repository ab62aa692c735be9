"""Starting rank processes and knowing what became of them. Forks; runs no user code itself."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from phalanx.core.logrecords import STDERR, STDOUT
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.keeper.channel import Channel
from phalanx_agent.keeper.output import OutputPipe
from phalanx_agent.keeper.setup import RankSetup

RankMain = Callable[[RankSetup], NoReturn]
_STACK_BYTES = 64 * 1024
_BOUNDARY_BYTES = 23
SOCKET_BYTES = 1 << 20


@dataclass(slots=True)
class RankProcess:
    """One local rank as its keeper sees it. ``host_pid`` is its number outside the namespace."""

    rank: int
    pid: int
    host_pid: int
    channel: Channel
    pipes: list[OutputPipe]
    stack_path: Path
    look_fd: int = -1
    """Where its reader is asked for its collectives."""
    alive: bool = True
    started: bool = False
    """Its stack can be asked for."""
    ready: bool = False
    exits: bool = False
    """It said that it is about to exit."""
    loaned_slots: dict[bytes, list[int]] = field(default_factory=dict[bytes, list[int]])

    dumped_to: int = 0
    """So much of its stack file was asked for."""

    def stack(self) -> str:
        """Returns what a crash left in its stack file."""
        return self.dump_from(self.dumped_to)

    def dump_from(self, offset: int) -> str:
        """Returns what its stack file holds from ``offset`` on, of much the end."""
        try:
            return self.stack_path.read_bytes()[offset:][-_STACK_BYTES:].decode("utf-8", "replace")
        except OSError:
            return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nest:
    """Where ranks are forked: shared by all of a gang on this node."""

    config: GangConfig
    gang_dir: Path
    tmp_dir: Path
    listen_fd: int
    host_proc_fd: int
    has_parent_link: bool
    rank_main: RankMain


def spawn(nest: Nest, local_rank: int) -> RankProcess:
    """Forks one rank. Returns in the keeper only."""
    config = nest.config
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    looks, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    out_reading, out_writing = os.pipe()
    err_reading, err_writing = os.pipe()
    stack_path = nest.gang_dir / f"rank{config.member.first_rank + local_rank}.stack"
    stack_fd = os.open(stack_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    boundary = b"\0" + os.urandom(_BOUNDARY_BYTES)
    setup = RankSetup(
        config=config,
        local_rank=local_rank,
        socket_fd=theirs.fileno(),
        look_fd=reader.fileno(),
        stdout_fd=out_writing,
        stderr_fd=err_writing,
        listen_fd=nest.listen_fd if config.member.first_rank + local_rank == 0 else -1,
        stack_fd=stack_fd,
        host_proc_fd=nest.host_proc_fd,
        tmp_dir=nest.tmp_dir,
        has_parent_link=nest.has_parent_link,
        boundary=boundary,
    )
    pid = os.fork()
    if pid == 0:
        nest.rank_main(setup)
    theirs.close()
    reader.close()
    for fd in (out_writing, err_writing, stack_fd):
        os.close(fd)
    rank = setup.rank
    pipes = [
        OutputPipe(out_reading, rank=rank, stream=STDOUT, boundary=boundary),
        OutputPipe(err_reading, rank=rank, stream=STDERR, boundary=boundary),
    ]
    return RankProcess(rank, pid, pid, Channel(ours), pipes, stack_path, looks.detach())


def reap() -> list[tuple[int, int, int]]:
    """Collects every dead child. Returns (pid, exit code, signal) of each."""
    dead: list[tuple[int, int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return dead
        if pid == 0:
            return dead
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        dead.append((pid, 0 if number else os.WEXITSTATUS(status), number))


def signal_all(ranks: list[RankProcess], number: signal.Signals) -> None:
    """Signals every rank that has not been collected."""
    for rank in ranks:
        if rank.alive:
            os.kill(rank.pid, number)


def oom_kills() -> int:
    """Returns how many processes this kernel has ever killed for memory; 0 where it does not say."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)


def append_durably(path: Path, value: dict[str, object]) -> None:
    """Appends one JSON line and waits for the disk. A full disk must not keep a gang alive, so that is not an error."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        os.write(fd, json.dumps(value, separators=(",", ":")).encode() + b"\n")
        os.fsync(fd)
    except OSError:
        return
    finally:
        os.close(fd)
