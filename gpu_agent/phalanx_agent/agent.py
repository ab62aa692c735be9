"""The agent, put together: the supervisor decides, this file carries out, in the order in which things happened.

Events of the data plane's thread, of the session and of jobs all pass through `tell`, on the event loop. Gangs outlive
the agent: stopping it touches no keeper unless it was told to take them along.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx.core.clock import Clock
from phalanx.core.files import replace_file
from phalanx.core.messages import (
    CancelCall,
    FromAgent,
    GangFacts,
    Hello,
    NodeInfo,
    Offer,
    Prepare,
    Report,
    RevokeToken,
    Start,
    Stop,
    ToAgent,
    Welcome,
)
from phalanx.core.spec import EnvSpec
from phalanx.core.states import Phase
from phalanx.core.topology.codec import to_json
from phalanx_agent import gang_events as ev
from phalanx_agent.adoption import find_gangs
from phalanx_agent.calls import Calls, direct_report
from phalanx_agent.code import CodeStore
from phalanx_agent.dataplane.facts import (
    CallBegan,
    CallEnded,
    CallTurnedAway,
    DirectEnded,
    GangSnapshot,
    KeeperAttached,
    KeeperEnded,
    KeeperStuck,
    PlaneEvent,
    RankSaid,
)
from phalanx_agent.dataplane.server import DataPlane, PlaneSettings
from phalanx_agent.discovery.host import HostFacts
from phalanx_agent.discovery.ward import Tenancy
from phalanx_agent.discovery.watch import GpuWatch
from phalanx_agent.enrol import Enrolment, Identity
from phalanx_agent.launcher import Launcher, StartError
from phalanx_agent.logs import LogKeeper
from phalanx_agent.members import Members, Tools
from phalanx_agent.meter import Meter
from phalanx_agent.preflight import Preflight
from phalanx_agent.session import Session
from phalanx_agent.settings import Settings
from phalanx_agent.supervisor import LeaseState, Supervisor
from phalanx_agent.zygote_spawn import Spawned

log = logging.getLogger(__name__)

TICK_S = 0.5
TELL_TOPOLOGY_MS = 10_000
"""So long reports carry it after a change: one of them may meet a control plane that just then stops leading."""
_END_GANGS_WITHIN_S = 20.0


class Agent:
    """One node's daemon. Make it inside a running event loop; then ``run``.

    ``zygote``: the plain environment's, where it was started before.
    """

    def __init__(
        self, settings: Settings, *, clock: Clock, host: HostFacts, gpus: GpuWatch, zygote: Spawned | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._host = host
        self._gpus = gpus
        self._epoch = clock.wall_ms()
        self._loop = asyncio.get_running_loop()
        self._supervisor = Supervisor()
        self._meter = Meter(settings.state_dir / "journal.jsonl", clock=clock, boot_id=host.boot_id)
        self._preflight = Preflight(
            settings.preflight, gpus, state_dir=settings.state_dir, boot_id=host.boot_id, clock=clock
        )
        self._enrolment = Enrolment(
            node_id=settings.node_id,
            state_dir=settings.state_dir,
            ca=settings.ca,
            join_token_file=settings.join_token_file,
            clock=clock,
        )
        self._session = Session(addresses=settings.control, enrolment=self._enrolment, clock=clock, node=self)
        self._logs = LogKeeper(
            settings.run_dir / "gangs", node_id=settings.node_id, put=self._session.put_blob, clock=clock
        )
        self._plane = DataPlane(self._plane_settings(), clock=clock, emit=self._from_plane)
        self._launcher = Launcher(settings.run_dir, rank_user=settings.rank_user, ahead=zygote)
        self._members = Members(self._tools(), self.tell)
        self._calls = Calls(self._plane, self._session, self._members.owe)
        self._effects = self._effect_table()
        self._fingerprint = ""
        self._tell_topology_until_ms = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Adopts what is there, says that it is ready, and works until ``stop``.

        Raises what ended one of its jobs: an agent that cannot do all of its work ends, and the next one adopts its
        gangs.
        """
        self._plane.start(self._tls())
        (self._settings.state_dir / "data-port").write_text(str(self._plane.port))
        try:
            await self._adopt()
            async with asyncio.TaskGroup() as jobs:
                own = (self._session.run(), self._tick(), self._gpus.run(self), self._warm())
                running = [jobs.create_task(job) for job in own]
                self._write_ready_file()
                await stop.wait()
                if self._settings.end_gangs_on_exit:
                    await self._end_gangs()
                for job in running:
                    job.cancel()
        finally:
            await self._close()

    def tell(self, event: ev.Event) -> None:
        """Hands an event to the supervisor and carries out what it asks for. Event loop only."""
        for effect in self._supervisor.handle(event, self._clock.monotonic_ms()):
            self._perform(effect)

    # ---- session's side ----

    async def hello(self) -> Hello:
        gangs = await self._gang_facts()
        return Hello(node=self._node_info(), gangs=gangs)

    async def report(self) -> tuple[Report, tuple[FromAgent, ...]]:
        gangs = await self._gang_facts()
        direct = await asyncio.wrap_future(self._plane.take_direct())
        due = (direct_report(direct),) if direct else ()
        fresh = self._clock.monotonic_ms() < self._tell_topology_until_ms
        return Report(gangs=gangs, gpus=self._gpus.all(), topology=self._topology() if fresh else ""), due

    def heard(self, message: ToAgent) -> None:
        """Takes one message of the control plane; every one may be a repetition."""
        if isinstance(message, Welcome):
            self._plane.set_ticket_key(message.ticket_key)
        elif isinstance(message, RevokeToken):
            self._plane.revoke(message.token_id)
        elif isinstance(message, Prepare | Start | Stop | Offer | CancelCall):
            self.tell(message)

    def identity_changed(self, identity: Identity) -> None:
        if identity.fingerprint != self._fingerprint:
            self._fingerprint = identity.fingerprint
            self._plane.use_certificate(self._enrolment.tls_context())

    # ---- data plane's side ----

    def _from_plane(self, event: PlaneEvent) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the agent is gone
            self._loop.call_soon_threadsafe(self._on_plane, event)

    def _on_plane(self, event: PlaneEvent) -> None:
        match event:
            case CallBegan():
                self._calls.began(event)
            case CallEnded():
                self._calls.ended(event)
            case CallTurnedAway():
                self._calls.turned_away(event)
            case DirectEnded():
                self._session.say(direct_report([event]))
            case KeeperAttached():
                self._attached(event)
            case RankSaid(event="verified"):
                if self._preflight.heard(event):
                    self.gpus_changed()
            case KeeperEnded():
                self._busy_until_now(event)
                self.tell(event)
            case RankSaid() | KeeperStuck():
                self._rank_said(event)

    def _rank_said(self, event: RankSaid | KeeperStuck) -> None:
        if isinstance(event, RankSaid):
            self._meter.note_busy(event.gang_id, event.busy_ms)  # before a phase begins that is not busy
        self.tell(event)

    def _busy_until_now(self, event: KeeperAttached | KeeperEnded) -> None:
        """The keeper's own total: what its last call took until the end was in no report."""
        self._meter.catch_up(event.gang_id, dict(event.counters).get(Phase.BUSY.value, 0))

    def _attached(self, event: KeeperAttached) -> None:
        self._members.keeper_pids[event.gang_id] = event.keeper_pid
        self._busy_until_now(event)
        self._logs.open(event.gang_id)
        self.tell(event)

    # ---- GPUs' side ----

    def tenancy(self, uuid: str) -> Tenancy:
        """Returns who holds a GPU; a gang that is being ended still does."""
        holders = self._supervisor.holders(uuid)
        return Tenancy(
            workspaces=tuple(sorted({lease.prepare.workspace for lease in holders})),
            ending=any(lease.ending for lease in holders),
        )

    def gpu_failed(self, uuid: str, reason: str) -> None:
        self.tell(ev.GpuFailed(gpu=uuid, reason=reason))

    def gpu_noted(self, uuid: str, note: str) -> None:
        self.tell(ev.GpuNoted(gpu=uuid, note=note))

    def gpus_changed(self) -> None:
        self._tell_topology_until_ms = self._clock.monotonic_ms() + TELL_TOPOLOGY_MS
        self._session.hurry()

    # ---- effects ----

    def _perform(self, effect: ev.Effect) -> None:
        self._effects[type(effect)](effect)

    def _effect_table(self) -> dict[type, Callable[[Any], None]]:
        return {
            ev.Say: self._say,
            ev.PrepareMember: self._members.prepare,
            ev.AbandonPreparation: lambda e: self._members.abandon(e.gang_id),
            ev.LaunchGang: self._members.launch,
            ev.BlameGpu: lambda e: self._plane.blame(e.gang_id, e.reason),
            ev.StopGang: lambda e: self._plane.stop_gang(e.gang_id, e.reason, e.grace_ms, drain=e.drain),
            ev.KillKeeper: lambda e: self._members.kill_keeper(e.gang_id, e.pid),
            ev.ProveClean: self._prove_clean,
            ev.QueueCall: lambda e: self._calls.offer(e.offer),
            ev.TakeBack: lambda e: self._calls.cancel(e.cancel),
            ev.OpenMeter: lambda e: self._meter.open(e.gang_id, e.gpus),
            ev.EnterPhase: lambda e: self._meter.enter(e.gang_id, e.phase),
            ev.ForgetGang: lambda e: self._forget(e.gang_id),
            ev.Refused: lambda e: log.warning(
                "stale message refused", extra={"gang": e.gang_id, "fence": e.fence, "kind": e.what}
            ),
        }

    def _say(self, effect: ev.Say) -> None:
        stored: Callable[[], None] | None = None
        if effect.forget:
            gang_id = effect.forget
            stored = lambda: self.tell(ev.EndStored(gang_id=gang_id))  # noqa: E731
        self._session.say(effect.message, stored)

    def _prove_clean(self, effect: ev.ProveClean) -> None:
        self._members.owe(effect.gang_id, self._logs.store_all(effect.gang_id))
        self._members.prove_clean(effect, self._meter.counters)

    def _forget(self, gang_id: str) -> None:
        self._meter.close(gang_id)
        self._preflight.forget(gang_id)
        self._members.forget(gang_id)
        self._plane.close_gang(gang_id)
        self._logs.finish(gang_id)

    # ---- facts ----

    async def _gang_facts(self) -> tuple[GangFacts, ...]:
        snapshots = {s.gang_id: s for s in await asyncio.wrap_future(self._plane.snapshots())}
        out: list[GangFacts] = []
        for lease in self._supervisor.leases.values():
            fast = snapshots.get(lease.gang_id, GangSnapshot(gang_id=lease.gang_id))
            self._meter.note_busy(lease.gang_id, fast.busy_ms)
            out.append(
                GangFacts(
                    gang_id=lease.gang_id,
                    fence=lease.fence,
                    state=lease.state.value,
                    depth=fast.depth,
                    in_flight=fast.in_flight,
                    idle_ms=fast.idle_ms,
                    p95_wait_ms=fast.p95_wait_ms,
                    step=fast.step,
                    stall=fast.stall,
                    debug=fast.debug,
                    paused_ms=fast.paused_ms,
                    counters=self._meter.counters(lease.gang_id),
                    call_ids=fast.call_ids,
                )
            )
        return tuple(out)

    def _node_info(self) -> NodeInfo:
        host = self._host
        return NodeInfo(
            node_id=self._settings.node_id,
            hostname=host.hostname,
            boot_id=host.boot_id,
            agent_epoch=self._epoch,
            agent_version=host.agent_version,
            python=host.python,
            torch=host.torch,
            data_address=self._data_address(),
            unix_path=str(self._settings.unix_path),
            fingerprint=self._fingerprint,
            cpus=host.cpus,
            memory_bytes=host.memory_bytes,
            pool=self._settings.pool,
            gpus=self._gpus.all(),
            topology=self._topology(),
        )

    def _data_address(self) -> str:
        host = self._settings.advertise
        return f"[{host}]:{self._plane.port}" if ":" in host else f"{host}:{self._plane.port}"

    def _topology(self) -> str:
        topology = self._preflight.topology
        return to_json(topology) if topology is not None else ""

    # ---- life ----

    async def _adopt(self) -> None:
        """Takes over the gangs of a former agent, or says how they ended."""
        found = await asyncio.to_thread(find_gangs, self._settings.run_dir / "gangs")
        for gang in found:
            gang_id = gang.config.gang_id
            log.info("gang found", extra={"gang": gang_id, "alive": gang.alive})
            self._logs.open(gang_id)
            self._meter.open(gang_id, gang.config.member.gpus)
            self.tell(ev.Adopted(config=gang.config, alive=gang.alive, clean=gang.clean, error=gang.error))
            if gang.alive:
                await self._open_adopted(gang.config, gang.peer_tickets)
        self._meter.retain(g.config.gang_id for g in found)

    async def _open_adopted(self, config: Any, tickets: tuple[str, ...]) -> None:
        try:
            await self._members.open(config, tickets)
        except OSError as e:
            self.tell(ev.Launched(gang_id=config.gang_id, error=f"its keeper ended meanwhile: {e}"))

    async def _warm(self) -> None:
        """Starts the plain environment's zygote ahead of the first gang."""
        if not self._gpus.all():
            return
        try:
            await self._launcher.warm(EnvSpec())
        except StartError as e:
            log.warning("the zygote does not start", extra={"reason": str(e)})

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.tell(ev.Tick(silent_ms=self._session.silent_ms))
            self._plane.ping_keepers()
            if self._preflight.refresh():
                self.gpus_changed()

    async def _end_gangs(self) -> None:
        """Ends every gang and waits until the control plane knows, or a bound has passed."""
        for effect in self._supervisor.end_all("the agent is stopping", self._clock.monotonic_ms()):
            self._perform(effect)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_GANGS_WITHIN_S):
                while any(s.state is not LeaseState.ENDED for s in self._supervisor.leases.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        await self._session.flush(2.0)

    async def _close(self) -> None:
        await self._members.close()
        await self._logs.close()
        await self._launcher.close()
        await asyncio.to_thread(self._plane.stop)
        self._meter.stop()

    def _write_ready_file(self) -> None:
        path = self._settings.ready_file
        if path is None:
            return
        ready = {
            "pid": os.getpid(),
            "node_id": self._settings.node_id,
            "unix_path": str(self._settings.unix_path),
            "data_address": self._data_address(),
        }
        replace_file(path, json.dumps(ready))

    def _tls(self) -> Any:
        return self._enrolment.tls_context() if self._enrolment.identity is not None else None

    def _plane_settings(self) -> PlaneSettings:
        return PlaneSettings(
            node_id=self._settings.node_id,
            epoch=self._epoch,
            unix_path=self._settings.unix_path,
            host=self._settings.listen_host,
            port=self._settings.listen_port,
            former_port=_read_port(self._settings.state_dir / "data-port"),
            shells=self._settings.shells,
            open_spool=self._logs.open_spool,
        )

    def _tools(self) -> Tools:
        return Tools(
            node_id=self._settings.node_id,
            advertise=self._settings.advertise,
            run_dir=self._settings.run_dir,
            state_dir=self._settings.state_dir,
            launcher=self._launcher,
            code=CodeStore(self._settings.run_dir / "code", self._session.get_blob),
            gpus=self._gpus,
            preflight=self._preflight,
            plane=self._plane,
            supervisor=self._supervisor,
        )


def _read_port(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
