"""The pure core under thousands of random steps: nothing is held twice, gangs are placed whole, and the same inputs
give the same bytes. Each run prints its seed: `PHALANX_SEED=… pytest` plays it again.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from phalanx.core.errors import PhalanxError
from phalanx.core.spec import FunctionSpec, Limits
from phalanx.core.states import CallState, GangState, NodeState
from phalanx_control.metering.filed import sums_of
from phalanx_control.scheduler.accounts import Accounts
from phalanx_control.scheduler.room import rooms_of
from phalanx_control.state import commands as c
from phalanx_control.state.events import GangReserved, encode
from phalanx_control.state.model import Call, Gang, Owner
from phalanx_control.state.queries import leases, leases_by_gpu
from tests.support.builders import ANA, BOB, EVE, World, node_info, spec
from tests.support.pictures import check_picture
from tests.unit.test_metering_cost import BOOK

STEPS = 10_000
NODES = tuple(f"n{at}" for at in range(1, 9))
LIMITS = Limits(disconnect_grace_s=5, scaledown_window_s=5, startup_timeout_s=60)
SPECS = (
    *(spec(f"f{gpus:g}", gpus=gpus, limits=LIMITS) for gpus in (0.25, 0.5, 1, 2, 4, 8, 16)),
    spec("cores", gpus=0, cpus=8, limits=LIMITS),
    spec("pair", gpus=4, nodes=2, limits=LIMITS),
    spec("lean", gpus=1, cpus=20, launch="single", limits=LIMITS),
    replace(spec("spot", gpus=4, limits=LIMITS), preemptible=True),
    replace(spec("spots", gpus=1, limits=LIMITS), preemptible=True),
    replace(spec("urgent", gpus=2, limits=LIMITS), priority=3),
)
OWNERS = (ANA, BOB, EVE)
FILE_EVERY = 200


class Player:
    """Plays users, agents and nodes honestly, in a random order."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.world = World(*(node_info(name) for name in NODES))
        self._submitted = 0
        self._boots = 1
        self._lost: set[str] = set()
        self.digest = hashlib.sha256()
        self._moves: tuple[tuple[Callable[[], None], int], ...] = (
            (self.submit, 50),
            (self.bring_up, 25),
            (self.finish, 25),
            (self.end, 20),
            (self.cancel, 6),
            (self.lose, 2),
            (self.join, 3),
            (self.wait, 10),
            (self.govern, 1),
        )

    def step(self) -> None:
        moves, weights = zip(*self._moves, strict=True)
        self.dice.choices(moves, weights)[0]()
        check_limits(self.world, [e.gang for e in self.world.schedule() if isinstance(e, GangReserved)])

    # ---- moves ----

    def submit(self) -> None:
        if len(self.world.state.queue) > 30:
            return
        owner, asked = self.dice.choice(OWNERS), self.dice.choice(SPECS)
        self._submitted += 1
        try:
            function_id = self._register(asked, owner)
            self.world.submit(self._submitted, function_id, owner, timeout_ms=self.dice.choice((0, 0, 4_000, 60_000)))
        except PhalanxError:
            return  # too few nodes are left for any such gang

    def _register(self, asked: FunctionSpec, owner: Owner) -> str:
        self.world.register(asked, owner)
        found = self.world.state.functions.values()
        return next(f.id for f in found if f.spec == asked and f.owner.workspace == owner.workspace)

    def bring_up(self) -> None:
        for gang in self._gangs(GangState.RESERVED, GangState.PREPARING, GangState.STARTING):
            if not self._on_lost(gang):
                self.world.bring_up(gang)

    def finish(self) -> None:
        live = [
            call.id for gang in self._gangs(GangState.BUSY) if not self._on_lost(gang) for call in self._calls(gang)
        ]
        for each in self.dice.sample(live, min(len(live), 3)):
            if self.world.call(each).state is CallState.ASSIGNED:
                self.world.start(each)
            if self.world.call(each).state is CallState.RUNNING:
                self.world.finish(each)

    def end(self) -> None:
        for gang in self._gangs(GangState.DRAINING):
            waits = gang.drain and gang.calls
            there = tuple(m.member.node_id for m in gang.members if m.member.node_id not in self._lost)
            if there and not waits:
                self.world.end(gang, nodes=there)

    def cancel(self) -> None:
        live = [call for call in self.world.state.calls.values() if not call.state.terminal]
        if live:
            call = self.dice.choice(sorted(live, key=lambda call: call.id))
            self.world.cancel(call.id, call.owner)

    def lose(self) -> None:
        if len(self._lost) < len(NODES) // 2:
            name = self.dice.choice([name for name in NODES if name not in self._lost])
            self._lost.add(name)
            self.world.tick(c.NodeSilent(node_id=name, silent_ms=600_000, proved_gone=True))

    def join(self) -> None:
        if self._lost:
            name = self.dice.choice(sorted(self._lost))
            self._lost.discard(name)
            self._boots += 1
            self.world.hello(node_info(name, boot_id=f"boot-{self._boots}"))

    def wait(self) -> None:
        self.world.wait(self.dice.randrange(1, 3_000))
        idle = {g.id: self.dice.randrange(8_000) for g in self._gangs(GangState.READY)}
        self.world.idle_ms = idle
        self.world.tick()

    def govern(self) -> None:
        """Somebody else may have so much from now on; what is held stays."""
        limits = {name: self.dice.choice((4, 8, 16, 64)) for name in ("default", "other")}
        accounts = {name: {"limit": limit, "gpus": self.dice.choice((0, limit // 2))} for name, limit in limits.items()}
        users = {"default": {"users": {"ana": {"limit": self.dice.choice((2, 16))}}}}
        merged = {name: {**terms, **users.get(name, {})} for name, terms in accounts.items()}
        policy = self.dice.choice(("", json.dumps({"half_life": "10m", "workspaces": merged})))
        self.world.do(c.SetPolicy(policy=policy))

    # ---- looking ----

    def _gangs(self, *states: GangState) -> list[Gang]:
        return [g for g in sorted(self.world.state.gangs.values(), key=lambda g: g.fence) if g.state in states]

    def _calls(self, gang: Gang) -> list[Call]:
        return [self.world.call(each) for each in gang.calls[:1]]

    def _on_lost(self, gang: Gang) -> bool:
        return any(m.member.node_id in self._lost for m in gang.members)

    def take_down(self) -> None:
        """Adds what happened to the digest, and lets what is over leave the state, as the archive does."""
        for _, _, events in self.world.history:
            self.digest.update(encode(events))
        self.world.history.clear()
        self.world.told.clear()
        state = self.world.state
        self.world.do(c.ArchiveCalls(call_ids=tuple(sorted(state.ended))))
        over = [key for key, line in state.ledger.items() if line.closed_wall_ms and line.gang_id not in state.gangs]
        keys = tuple(sorted(over))
        sums = sums_of([state.ledger[key] for key in keys], "2023-11", BOOK)
        self.world.do(c.FileLines(keys=keys, sums=sums))


def check_gangs(player: Player) -> None:
    state = player.world.state
    for key, held in leases_by_gpu(state).items():
        assert sum(lease.share for lease in held) <= 1 + 1e-9, key
        assert len({lease.workspace for lease in held}) == 1, key
    for gang in state.gangs.values():
        asked = state.functions[gang.function_id].spec.resources
        gpus = [len(m.member.gpus) * m.member.share for m in gang.members]
        assert sum(gpus) == pytest.approx(asked.gpus), gang.id
        assert len({m.member.node_id for m in gang.members}) == len(gang.members)
        assert len(set(gpus)) == 1
    down = {node_id for node_id, node in state.nodes.items() if node.state is NodeState.LOST}
    fresh = [lease for lease in leases(state) if state.gangs[lease.gang_id].state is GangState.RESERVED]
    assert not any(lease.node_id in down for lease in fresh)


def check_limits(world: World, new: list[Gang]) -> None:
    """No gang brings one of its accounts beyond its limit, whatever they held when that was set."""
    if not new or not world.state.policy:
        return
    accounts = Accounts(world.state, rooms_of(world.state), world.log_ms)
    for gang in new:
        if not any(m.member.gpus for m in gang.members):
            continue
        path = accounts.path(gang.owner)
        for inner in (path[:length] for length in range(1, len(path) + 1)):
            limit = accounts.policy.account(inner).limit
            assert not limit or accounts.held(inner).gpus <= limit, (gang.id, inner, limit)


def play(seed: int, steps: int) -> tuple[str, int]:
    """Returns a digest of everything that happened, and how many gangs there were."""
    print(f"PHALANX_SEED={seed}")
    player = Player(seed)
    for at in range(steps):
        player.step()
        check_gangs(player)
        if at % FILE_EVERY == FILE_EVERY - 1:
            check_picture(player.world.state)
            player.take_down()
    player.take_down()
    return player.digest.hexdigest(), player.world.state.next_fence


def seeds(count: int) -> list[int]:
    said = os.environ.get("PHALANX_SEED")
    return [int(said)] if said else [random.SystemRandom().randrange(1 << 32) for _ in range(count)]


def test_a_few_hundred_random_steps_keep_what_must_hold_and_can_be_played_again() -> None:
    (seed,) = seeds(1)
    digest, gangs = play(seed, 400)
    assert gangs > 20
    assert play(seed, 400) == (digest, gangs)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_random_steps_keep_what_must_hold_and_can_be_played_again() -> None:
    (seed,) = seeds(1)
    digest, gangs = play(seed, STEPS)
    assert gangs > 500
    assert play(seed, STEPS) == (digest, gangs)
