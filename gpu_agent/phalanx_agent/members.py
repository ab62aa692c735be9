"""Doing what the supervisor asks for one gang: preparing, launching, cleaning up. Decides nothing about states.

Every job is a task owned here; a job ends in one event to the supervisor, whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from phalanx.core.errors import PhalanxError
from phalanx.core.messages import GpuInfo, Prepare
from phalanx.core.states import GpuState
from phalanx_agent import gang_events as ev
from phalanx_agent import rendezvous
from phalanx_agent.adoption import write_peer_tickets
from phalanx_agent.code import CodeStore
from phalanx_agent.dataplane.facts import GangSpec, PeerSpec
from phalanx_agent.dataplane.server import DataPlane
from phalanx_agent.discovery.watch import GpuWatch
from phalanx_agent.equipping import Equipper
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.launcher import BuildError, Launcher, StartError
from phalanx_agent.preflight import Preflight
from phalanx_agent.supervisor import Supervisor

log = logging.getLogger(__name__)

BEFORE_LEASE_BOUND_MS = 5_000
_DRAIN_BOUND_S = 30.0


@dataclass(slots=True)
class Ready:
    """What preparation made, for the launch."""

    callable_path: Path
    bundle_dir: Path | None
    listener: socket.socket | None = None

    def close(self) -> None:
        if self.listener is not None:
            self.listener.close()
            self.listener = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What the jobs use."""

    node_id: str
    advertise: str
    run_dir: Path
    state_dir: Path
    launcher: Launcher
    code: CodeStore
    gpus: GpuWatch
    preflight: Preflight
    plane: DataPlane
    supervisor: Supervisor


class Members:
    """The jobs of all gangs of this node. ``tell`` hands an event to the supervisor."""

    def __init__(self, tools: Tools, tell: Callable[[ev.Event], None]) -> None:
        self._tools = tools
        self._tell = tell
        self._equipper = Equipper(tools.run_dir)
        self._ready: dict[str, Ready] = {}
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._owed: dict[str, set[asyncio.Task[None]]] = {}
        self.keeper_pids: dict[str, int] = {}

    def gang_dir(self, gang_id: str) -> Path:
        return self._tools.run_dir / "gangs" / gang_id

    # ---- jobs ----

    def prepare(self, effect: ev.PrepareMember) -> None:
        self._start(effect.prepare.gang_id, self._prepare(effect.prepare))

    def abandon(self, gang_id: str) -> None:
        """Ends a preparation, wherever it is, and closes the rendezvous."""
        job = self._jobs.pop(gang_id, None)
        if job is not None:
            job.cancel()
        ready = self._ready.pop(gang_id, None)
        if ready is not None:
            ready.close()

    def launch(self, effect: ev.LaunchGang) -> None:
        self._start(effect.prepare.gang_id, self._launch(effect))

    def prove_clean(self, effect: ev.ProveClean, counters: Callable[[str], Any]) -> None:
        self._start(effect.gang_id, self._clean(effect, counters))

    def owe(self, gang_id: str, job: Coroutine[Any, Any, None]) -> None:
        """Runs a job that must be over before the gang's end is told."""
        task = asyncio.create_task(job)
        self._owed.setdefault(gang_id, set()).add(task)
        task.add_done_callback(lambda t: self._owed.get(gang_id, set()).discard(t))

    def kill_keeper(self, gang_id: str, pid: int) -> None:
        log.error("keeper killed", extra={"gang": gang_id, "pid": pid})
        if pid > 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def forget(self, gang_id: str) -> None:
        self._owed.pop(gang_id, None)
        self.keeper_pids.pop(gang_id, None)

    async def close(self) -> None:
        jobs = [*self._jobs.values(), *(t for owed in self._owed.values() for t in owed)]
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        for ready in self._ready.values():
            ready.close()

    def _start(self, gang_id: str, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(job)
        self._jobs[gang_id] = task
        task.add_done_callback(lambda t: self._done(gang_id, t))

    def _done(self, gang_id: str, task: asyncio.Task[None]) -> None:
        if self._jobs.get(gang_id) is task:
            del self._jobs[gang_id]
        if not task.cancelled() and task.exception() is not None:
            log.error("gang job failed", exc_info=task.exception(), extra={"gang": gang_id})

    # ---- prepare ----

    async def _prepare(self, prepare: Prepare) -> None:
        gang_id = prepare.gang_id
        try:
            ready, address = await self._make_ready(prepare)
        except (PhalanxError, BuildError, StartError, OSError, ValueError, grpc.aio.AioRpcError) as e:
            self._tell(ev.Prepared(gang_id=gang_id, error=_reason(e)))
            return
        except Exception as e:
            log.exception("preparation failed", extra={"gang": gang_id})
            self._tell(ev.Prepared(gang_id=gang_id, error=f"{type(e).__name__}: {e}"))
            return
        self._ready[gang_id] = ready
        self._tell(ev.Prepared(gang_id=gang_id, rendezvous=address))

    async def _make_ready(self, prepare: Prepare) -> tuple[Ready, str]:
        """Numbered as the design does: code, environment, GPUs, and last the rendezvous."""
        callable_path, bundle_dir = await self._tools.code.get(prepare.function.code)
        await self._tools.launcher.build(prepare.function.env, lambda line: log.info("build", extra={"line": line}))
        if prepare.function.resources.gpus > 0:
            await self._tools.launcher.warm(prepare.function.env)
        await self._ensure_clean(prepare)
        ready = Ready(callable_path, bundle_dir)
        if prepare.node_rank == 0:
            ready.listener, address = rendezvous.bind(self._tools.advertise)
        else:
            await rendezvous.check(prepare.rendezvous)
            address = prepare.rendezvous
        return ready, address

    async def _ensure_clean(self, prepare: Prepare) -> None:
        """Raises OSError naming what is not clean, or was found broken while the gang was on its way here."""
        wrong = self._tools.preflight.wrong_pair(prepare.members[prepare.node_rank].gpus)
        if wrong:
            raise OSError(wrong)
        for uuid in prepare.members[prepare.node_rank].gpus:
            broken = self._tools.gpus.just_cordoned(uuid)
            if broken:
                raise OSError(f"GPU {uuid} is {GpuState.QUARANTINED.value}: {broken}")
            gpu = await self._prove(uuid, prepare.gang_id, bound_ms=BEFORE_LEASE_BOUND_MS)
            if gpu.state is not GpuState.FREE:
                raise OSError(f"GPU {uuid} is {gpu.state.value}: {gpu.reason}")

    async def _prove(self, uuid: str, gang_id: str, *, bound_ms: int) -> GpuInfo:
        sharers = self._tools.supervisor.holders(uuid, but=gang_id)
        ours = frozenset(pid for lease in sharers for pid in lease.pids)
        return await self._tools.gpus.prove_clean(uuid, ours=ours, shared=bool(sharers), bound_ms=bound_ms)

    # ---- launch ----

    async def _launch(self, effect: ev.LaunchGang) -> None:
        gang_id = effect.prepare.gang_id
        ready = self._ready.pop(gang_id, None)
        try:
            if ready is None:
                raise OSError("the preparation was given up")
            await self._launch_prepared(effect, ready)
        except (StartError, OSError, KeyError) as e:
            self._tell(ev.Launched(gang_id=gang_id, error=_reason(e)))
        except Exception as e:
            log.exception("launch failed", extra={"gang": gang_id})
            self._tell(ev.Launched(gang_id=gang_id, error=f"{type(e).__name__}: {e}"))
        else:
            self._tell(ev.Launched(gang_id=gang_id))
        finally:
            if ready is not None:
                ready.close()

    async def _launch_prepared(self, effect: ev.LaunchGang, ready: Ready) -> None:
        config = self.config(effect.prepare, ready, effect.rendezvous)
        config = self._tools.preflight.plan(config)
        config = await asyncio.to_thread(self._equipper.equip, config, self._tools.preflight.topology)
        self._tell(ev.Equipped(gang_id=config.gang_id, equipment=config.equipment))
        fd = ready.listener.fileno() if ready.listener is not None else None
        pid = await self._tools.launcher.start_gang(config, listen_fd=fd)
        self.keeper_pids[config.gang_id] = pid
        write_peer_tickets(self.gang_dir(config.gang_id), effect.peer_tickets)
        await self.open(config, effect.peer_tickets)

    async def open(self, config: GangConfig, peer_tickets: tuple[str, ...]) -> None:
        """Gives the gang to the data plane. Raises OSError when its keeper does not listen."""
        await asyncio.wrap_future(self._tools.plane.open_gang(self._spec(config, peer_tickets)))

    def config(self, prepare: Prepare, ready: Ready, address: str) -> GangConfig:
        checkpoints = self._tools.state_dir / "checkpoints" / prepare.function_id
        checkpoints.mkdir(parents=True, exist_ok=True)
        return GangConfig(
            gang_id=prepare.gang_id,
            fence=prepare.fence,
            function_id=prepare.function_id,
            function=prepare.function,
            workspace=prepare.workspace,
            user=prepare.user,
            node_id=self._tools.node_id,
            members=prepare.members,
            node_rank=prepare.node_rank,
            world_size=sum(m.ranks for m in prepare.members),
            rendezvous=address,
            simulated=self._tools.gpus.simulated,
            placement=prepare.placement,
            networks_differ=prepare.networks_differ,
            callable_path=str(ready.callable_path),
            bundle_dir=str(ready.bundle_dir or ""),
            checkpoint_dir=str(checkpoints) if len(prepare.members) == 1 else "",
        )

    def _spec(self, config: GangConfig, peer_tickets: tuple[str, ...]) -> GangSpec:
        directory = self.gang_dir(config.gang_id)
        lead = config.node_rank == 0
        others = config.members[1:] if lead else ()
        tickets = (*peer_tickets, *("" for _ in others))
        return GangSpec(
            gang_id=config.gang_id,
            fence=config.fence,
            function_id=config.function_id,
            keeper_socket=directory / "keeper.sock",
            lead=lead,
            peers=tuple(
                PeerSpec(node_id=m.node_id, data_address=m.data_address, fingerprint=m.fingerprint, ticket=tickets[i])
                for i, m in enumerate(others)
            ),
            returns_all=config.function.returns == "all",
            streams=config.function.streams,
            timeout_ms=round(config.function.limits.timeout_s * 1000),
            grace_ms=round(config.function.limits.grace_s * 1000),
            gpus_may_fail=bool(config.member.gpus) and not self._tools.gpus.static,
            call_journal=directory / "calls.jsonl",
        )

    # ---- clean ----

    async def _clean(self, effect: ev.ProveClean, counters: Callable[[str], Any]) -> None:
        owed = self._owed.get(effect.gang_id)
        while owed:
            await asyncio.wait(owed, timeout=_DRAIN_BOUND_S)
        try:
            bad = await self._look_at(effect)
        except Exception:
            log.exception("GPUs could not be looked at", extra={"gang": effect.gang_id})
            bad = [self._tools.gpus.quarantine(u, "could not be looked at after its lease") for u in effect.gpus]
        self._tell(ev.Cleaned(gang_id=effect.gang_id, quarantined=tuple(bad), counters=counters(effect.gang_id)))

    async def _look_at(self, effect: ev.ProveClean) -> list[GpuInfo]:
        lease = self._tools.supervisor.leases.get(effect.gang_id)
        left = await _end_left_over(lease.pids if lease is not None and not lease.clean else ())
        bad: list[GpuInfo] = []
        for uuid in effect.gpus:
            gpu = await self._prove(uuid, effect.gang_id, bound_ms=10_000)
            if left:
                gpu = self._tools.gpus.quarantine(uuid, f"processes {left} of the last gang cannot be ended")
            if gpu.state is not GpuState.FREE:
                bad.append(gpu)
        return bad


async def _end_left_over(pids: tuple[int, ...]) -> list[int]:
    """After a keeper's own death: ends ranks that outlived it. Returns those that are still there after 2 s."""
    left = [p for p in pids if p > 1 and _is_ours(p)]
    for pid in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    for _ in range(100):
        left = [p for p in left if _is_ours(p)]
        if not left:
            break
        await asyncio.sleep(0.02)
    return left


def _is_ours(pid: int) -> bool:
    """Says whether ``pid`` is alive and a process of the platform, not a stranger that was given the number since."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z" and b"phalanx_agent" in command


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
