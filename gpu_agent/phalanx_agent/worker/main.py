"""A rank, from its fork to its end: become what the function asked for, join the group, then run calls one by one.

The main thread runs user code; beside it sleeps the recorder's reader. Whatever user code does, exactly one reply goes
out per call, and only from the process that was forked as the rank.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from phalanx.context import Context
from phalanx.core.errors import PhalanxError
from phalanx.core.frames import NO_ID, Frame, Kind
from phalanx.core.remote_errors import describe
from phalanx.core.topology.equipment import Equipment, RankEquipment, from_text
from phalanx.core.topology.verified import Verified
from phalanx.loader import load_callable
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.keeper.namespaces import die_with_parent
from phalanx_agent.keeper.report import error_to_dict
from phalanx_agent.keeper.setup import STACK_SIGNAL, RankSetup
from phalanx_agent.worker import cuda, group, limits, outcomes, recorder
from phalanx_agent.worker.breakpoints import Breakpoints
from phalanx_agent.worker.calls import Callee, Server
from phalanx_agent.worker.environment import set_environment
from phalanx_agent.worker.guard import ProcessState, close_all_but, flush_streams, move_high, open_stream
from phalanx_agent.worker.link import KeeperGoneError, Link
from phalanx_agent.worker.markers import Markers
from phalanx_agent.worker.node_view import NodeView
from phalanx_agent.worker.output import Output
from phalanx_agent.worker.signals import Stop, StopIdleError
from phalanx_agent.worker.steps import Marks, collectives_of


def run_rank(setup: RankSetup) -> NoReturn:
    """The whole life of one rank's process. Ends it, whatever happens."""
    code = 1
    try:
        code = _Rank(setup).run()
    except KeeperGoneError:
        code = 1
    except BaseException:  # noqa: BLE001  the process boundary: the log shows it and the keeper sees the exit
        traceback.print_exc()
    finally:
        flush_streams()
        os._exit(code)


@dataclass(frozen=True, slots=True)
class _Fds:
    """The rank's descriptors at high numbers. ``streams`` are copies of 0, 1, 2."""

    socket: int
    look: int
    listen: int
    stack: int
    streams: tuple[int, int, int]
    host_pid: int


class _Rank:
    def __init__(self, setup: RankSetup) -> None:
        self._setup = setup
        self._config: GangConfig = setup.config
        self._stop = Stop()
        self._fds = _take_descriptors(setup)
        self._link = Link(self._fds.socket)
        self._breakpoints = Breakpoints(self._link, bundle_dir=setup.config.bundle_dir)
        self._equipment = from_text(setup.config.equipment) if setup.config.equipment else Equipment()

    def run(self) -> int:
        """Returns the exit code."""
        try:
            server = self._start()
        except StopIdleError:
            return _exit_code_after_handlers(0)
        except (KeeperGoneError, MemoryError):
            raise
        except BaseException as e:  # noqa: BLE001  user modules are imported here; the keeper is told and ends the gang
            self._tell_startup_failure(e)
            return _exit_code_after_handlers(1)
        try:
            code = server.serve()
        except StopIdleError as e:
            self._event("leaves", because=str(e))
            code = 0
        return _exit_code_after_handlers(code)

    def _start(self) -> Server:
        """Everything before READY, in this order: limits, code, GPU, group, memory limit."""
        setup, config, rank = self._setup, self._config, self._setup.rank
        _reset_inherited(self._fds.stack)
        limits.become(config.rank_user)
        if setup.has_parent_link:
            die_with_parent()
        os.umask(0o022)
        os.chdir(setup.tmp_dir)
        set_environment(config, rank, setup.local_rank, tmp_dir=setup.tmp_dir, equipment=self._equipment)
        tempfile.tempdir = None  # imports in the zygote made it look already
        self._stop.install()
        self._event("started", pid=self._fds.host_pid)
        threads = limits.settle(self._own_equipment(), local_ranks=config.member.ranks)
        limits.set_threads(threads)
        standing = group.prepare(config)
        callee = self._load()
        self._breakpoints.install()  # one while a file is imported has nobody to attach to it yet
        device = cuda.device_name(config, setup.local_rank)
        cuda.make_context(device, share=config.member.share, announce=lambda: self._event("context"))
        joined = group.join(config, standing, rank=rank, device=device, listen_fd=self._fds.listen)
        grouped = config.world_size > 1 and bool(joined.backend)
        recorder.start(self._fds.look, self._fds.stack, grouped=grouped, before=group.begin_program())
        verified = self._verify(joined.backend, device) if joined.verifies else None
        limits.set_threads(threads)
        limits.limit_memory(config.function.resources.memory_gb)
        marks = Marks(self._event, collectives_of(joined.backend, config.world_size), time.time_ns)
        server = self._server(callee, device, verified, marks)
        self._event("ready", backend=joined.backend)
        return server

    def _load(self) -> Callee:
        config = self._config
        data = Path(config.callable_path).read_bytes()
        bundle = Path(config.bundle_dir) if config.bundle_dir else None
        function = load_callable(data, bundle_dir=bundle)
        return Callee(function)

    def _verify(self, backend: str, device: str) -> Verified | None:
        """Tries what connects the gang's GPUs, tells the agent, and refuses to run where copies come out wrong."""
        from phalanx_agent.worker import verifying  # few gangs are verified

        seen = verifying.verify(self._config, self._setup.rank, device if backend == "nccl" else "cpu")
        if self._setup.local_rank == 0:
            self._event("verified", **seen.as_meta())
        seen.refuse_wrong()
        return seen.verified

    def _server(self, callee: Callee, device: str, verified: Verified | None, marks: Marks) -> Server:
        setup, config = self._setup, self._config
        gpus = self._own_gpus()
        markers = Markers(
            os.environ.get("PHALANX_MARKER_DIR", ""), config, rank=setup.rank, pid=self._fds.host_pid, gpus=gpus
        )
        context = Context(
            rank=setup.rank,
            world_size=config.world_size,
            local_rank=setup.local_rank,
            node_rank=config.node_rank,
            device=device,
            placement=config.placement,
            gpus=config.all_gpus,
            function=config.function.name,
            checkpoint_dir=config.checkpoint_dir,
            stop_requested=lambda: self._stop.requested,
            report_progress=marks.mark,
            read_topology=NodeView(self._equipment.topology, config.member.gpus).read,
            verified=verified,
        )
        gc.collect()
        gc.freeze()
        return Server(
            config=config,
            context=context,
            callee=callee,
            link=self._link,
            stop=self._stop,
            markers=markers,
            marks=marks,
            breakpoints=self._breakpoints,
            state=ProcessState.take(self._fds.streams),
            output=Output(self._fds.streams[1:], setup.boundary),
        )

    def _own_equipment(self) -> RankEquipment:
        ranks = self._equipment.ranks
        return ranks[self._setup.local_rank] if self._setup.local_rank < len(ranks) else RankEquipment()

    def _own_gpus(self) -> tuple[str, ...]:
        member = self._config.member
        if len(member.gpus) == member.ranks:
            return (member.gpus[self._setup.local_rank],)
        return member.gpus

    def _event(self, event: str, **more: Any) -> None:
        self._link.send(Frame(Kind.RANK, NO_ID, {"event": event, **more}))

    def _tell_startup_failure(self, exc: BaseException) -> None:
        error = describe(exc, rank=self._setup.rank, node_id=self._config.node_id, cause=outcomes.cause_of(exc))
        error = outcomes.with_own_paths(error, self._config.bundle_dir)
        flush_streams()
        peer = outcomes.is_peer_error(exc, world_size=self._config.world_size)
        meta = {"error": error_to_dict(error), "peer": peer}
        self._link.send(Frame(Kind.FAILURE, NO_ID, meta, b"" if isinstance(exc, PhalanxError) else error.pickled))


def _take_descriptors(setup: RankSetup) -> _Fds:
    """Moves the rank's descriptors out of user code's way, fills 0 to 2, and closes all that the fork inherited."""
    try:
        host_pid = int(os.readlink("self", dir_fd=setup.host_proc_fd))
    except OSError:
        host_pid = os.getpid()
    socket_fd, look_fd, stack_fd = (move_high(fd) for fd in (setup.socket_fd, setup.look_fd, setup.stack_fd))
    listen_fd = move_high(setup.listen_fd) if setup.listen_fd >= 0 else -1
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (setup.stdout_fd, 1), (setup.stderr_fd, 2)):
        os.dup2(source, target)
    streams = (move_high(null), move_high(setup.stdout_fd), move_high(setup.stderr_fd))
    close_all_but({0, 1, 2, socket_fd, look_fd, stack_fd, listen_fd, *streams})
    sys.stdin, sys.stdout, sys.stderr = open_stream(0), open_stream(1), open_stream(2)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # pyright: ignore[reportConstantRedefinition]
    return _Fds(socket_fd, look_fd, listen_fd, stack_fd, streams, host_pid)


def _reset_inherited(stack_fd: int) -> None:
    """Signals as a fresh Python has them; crashes and the stack signal write into the stack file."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    faulthandler.enable(file=stack_fd, all_threads=True)
    faulthandler.register(STACK_SIGNAL, file=stack_fd, all_threads=True, chain=False)


def _exit_code_after_handlers(code: int) -> int:
    """Runs what user code registered with atexit. The keeper's grace bounds it; threads are not waited for."""
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    return code
