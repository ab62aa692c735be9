"""One played node: an identity and a session of its own, and a player in place of everything else that an agent has."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from phalanx.core.clock import Clock
from phalanx.core.files import replace_file
from phalanx.core.messages import FromAgent, Hello, Leave, NodeInfo, Report, ToAgent
from phalanx.core.played import PLAYED, played_model
from phalanx.core.topology.codec import to_json
from phalanx.core.topology.node import NodeTopology
from phalanx_agent.discovery.simulated import SimulatedGpus
from phalanx_agent.enrol import Enrolment, Identity
from phalanx_agent.fleet.orders import Orders, PlayedMachine
from phalanx_agent.fleet.player import Player
from phalanx_agent.session import Session

LEAVE_WITHIN_S = 5.0
NOTE = "played: no such machine is here, and no code runs on it"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFacts:
    """What all nodes of one fleet have in common. ``boot_id``: of this fleet, not of the machine."""

    boot_id: str
    epoch: int
    version: str


class PlayedNode:
    """Make it inside a running event loop; then ``run``, and ``leave`` to end it."""

    def __init__(
        self, machine: PlayedMachine, orders: Orders, facts: FleetFacts, *, folder: Path, clock: Clock
    ) -> None:
        """``folder``: does not exist yet."""
        self._clock = clock
        self._info = _describe(machine, facts)
        self._player = Player(call_ms=orders.call_ms)
        folder.mkdir(mode=0o700)
        token = folder / "join.token"
        replace_file(token, machine.join_token)
        self._session = Session(
            addresses=orders.control,
            enrolment=Enrolment(
                node_id=machine.node_id, state_dir=folder, ca=orders.ca, join_token_file=token, clock=clock
            ),
            clock=clock,
            node=self,
        )
        self._loop = asyncio.get_running_loop()
        self._alarm: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Keeps the session, for ever."""
        await self._session.run()

    async def leave(self, reason: str) -> None:
        """Ends the gangs and tells the control plane to forget the node; within twice LEAVE_WITHIN_S."""
        self._say(self._player.end_all(reason))
        await self._session.flush(LEAVE_WITHIN_S)
        self._session.say(Leave(reason=reason))
        await self._session.flush(LEAVE_WITHIN_S)

    # ---- session's side ----

    async def hello(self) -> Hello:
        return Hello(node=self._info, gangs=self._player.facts(self._clock.monotonic_ms()))

    async def report(self) -> tuple[Report, tuple[FromAgent, ...]]:
        """Says nothing of the GPUs: they never change, and Hello has them."""
        return Report(gangs=self._player.facts(self._clock.monotonic_ms())), ()

    def heard(self, message: ToAgent) -> None:
        self._say(self._player.handle(message, self._clock.monotonic_ms()))

    def identity_changed(self, identity: Identity) -> None:
        """There is no data plane that would show the certificate."""

    # ---- time ----

    def _tick(self) -> None:
        self._say(self._player.tick(self._clock.monotonic_ms()))

    def _say(self, words: tuple[FromAgent, ...]) -> None:
        for message in words:
            self._session.say(message, lambda said=message: self._player.stored(said))
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        due_ms = self._player.due_ms()
        wait_s = None if due_ms is None else max(0, due_ms - self._clock.monotonic_ms()) / 1000
        self._alarm = None if wait_s is None else self._loop.call_later(wait_s, self._tick)


def as_played(topology: NodeTopology) -> NodeTopology:
    """Returns the machine with models that say so."""
    gpus = tuple(replace(gpu, model=played_model(gpu.model)) for gpu in topology.gpus)
    return replace(topology, gpus=gpus, notes=(NOTE,))


def _describe(machine: PlayedMachine, facts: FleetFacts) -> NodeInfo:
    """Cores and memory stay unknown: of the machine that is played nobody has said them."""
    source = SimulatedGpus(node_id=machine.node_id, like=as_played(machine.topology))
    topology = source.topology()
    return NodeInfo(
        node_id=machine.node_id,
        hostname=machine.node_id,
        boot_id=facts.boot_id,
        agent_epoch=facts.epoch,
        agent_version=facts.version,
        pool=PLAYED,
        gpus=source.gpus(),
        topology=to_json(topology) if topology is not None else "",
    )
