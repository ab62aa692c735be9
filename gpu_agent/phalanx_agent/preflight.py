"""Whether the links of this node do what its topology says: which gangs verify them, and what is known of them.

The ranks try the links before user code (`worker/preflight.py`); here is decided who does, and what it means for the
node. What was found goes into the topology that everybody is told, so that no gang gets a pair whose copies came out
wrong, and slow ones come last.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from phalanx.core.clock import Clock
from phalanx.core.topology.figures import known_link
from phalanx.core.topology.node import Gpu, NodeTopology
from phalanx.core.topology.verified import PairCheck, findings, kind_of, pair_of, with_checks
from phalanx_agent.dataplane.facts import RankSaid
from phalanx_agent.discovery.watch import GpuWatch
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.preflight_book import FILE, PairBook
from phalanx_agent.preflight_modes import VARIABLE, Mode

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Told:
    """The topology that everybody knows, and what it was made from."""

    bare: NodeTopology | None
    topology: NodeTopology | None


class Preflight:
    """Lives on the event loop, but for `plan` and `topology`, which read only."""

    def __init__(self, mode: Mode, gpus: GpuWatch, *, state_dir: Path, boot_id: str, clock: Clock) -> None:
        self._mode = mode
        self._gpus = gpus
        self._clock = clock
        self._book = PairBook(state_dir / FILE, boot_id=boot_id)
        self._asked: dict[str, GangConfig] = {}
        self._told = self._now()

    @property
    def topology(self) -> NodeTopology | None:
        """What connects the node's GPUs, with what was verified of it.

        Figures that only differ as measurements do leave it as it is: each change is written into the cell's log.
        """
        if self._told.bare is not self._gpus.topology:
            self._told = self._now()
        return self._told.topology

    def plan(self, config: GangConfig) -> GangConfig:
        """Returns the gang with what its ranks are to try. Raises OSError where its function says nonsense about it."""
        mode, member = self._mode_of(config), config.member
        if mode is Mode.OFF or member.ranks < 2 or len(set(member.gpus)) != member.ranks:
            return config
        slots = combinations(range(member.ranks), 2)
        pairs = [(a, b) for a, b in slots if mode is not Mode.BOOT or not self._knows(member.gpus[a], member.gpus[b])]
        if not pairs:
            return config
        kinds = self._kinds(member.gpus)
        planned = replace(config, preflight=mode.value, pairs=tuple((a, b, kinds(a, b)) for a, b in pairs))
        self._asked[config.gang_id] = planned
        return planned

    def heard(self, said: RankSaid) -> bool:
        """Takes what a gang's ranks found, once, if they were asked; says whether the topology changed."""
        config = self._asked.pop(said.gang_id, None)
        if config is None:
            return False
        asked = {(a, b) for a, b, _ in config.pairs}
        gpus, now_ms = config.member.gpus, self._clock.wall_ms()
        checks = [
            PairCheck(gpus=pair_of(gpus[a], gpus[b]), gbyte_s=gbyte_s, copies=copies, at_ms=now_ms)
            for a, b, copies, gbyte_s in said.pairs
            if (a, b) in asked
        ]
        whole = len(config.members) == 1 and len(gpus) == len(self._gpus.all())
        self._book.note(checks, said.all_reduce_gbyte_s if whole else None)
        return self._look_again()

    def forget(self, gang_id: str) -> None:
        self._asked.pop(gang_id, None)

    def refresh(self) -> bool:
        """Sees what a person cleared; says whether the topology changed."""
        return self._book.refresh() and self._look_again()

    def wrong_pair(self, uuids: Sequence[str]) -> str:
        """Returns why these GPUs may not be in one gang; "" where they may."""
        for check in self._book.wrong():
            if set(check.gpus) <= set(uuids):
                return f"copies between {check.gpus[0]} and {check.gpus[1]} come out wrong"
        return ""

    def _mode_of(self, config: GangConfig) -> Mode:
        asked = dict(config.function.env.variables).get(VARIABLE, "")
        if not asked:
            return self._mode
        try:
            return Mode(asked)
        except ValueError:
            known = ", ".join(Mode)
            raise OSError(f"{VARIABLE}={asked[:40]!r} of {config.function.name}: give one of {known}") from None

    def _knows(self, one: str, other: str) -> bool:
        return pair_of(one, other) in self._book.checks

    def _kinds(self, uuids: Sequence[str]) -> _Kinds:
        topology = self._gpus.topology
        return _Kinds(topology, [_place(topology, uuid) for uuid in uuids])

    def _look_again(self) -> bool:
        """Makes the topology anew where the book says other pairs, other verdicts or another all-reduce than it."""
        now = self._now()
        before, after = self.topology, now.topology
        if _verdicts(before) == _verdicts(after):
            return False
        for sentence in _findings(after) - _findings(before):
            log.warning("link found faulty", extra={"reason": sentence})
        self._told = now
        return True

    def _now(self) -> _Told:
        bare = self._gpus.topology
        return _Told(bare, self._annotated(bare))

    def _annotated(self, bare: NodeTopology | None) -> NodeTopology | None:
        checks = self._book.checks.values()
        if bare is None and checks:
            bare = _only_gpus(self._gpus)
        if bare is None:
            return None
        rate = self._book.all_reduce_gbyte_s
        return with_checks(bare, checks, simulated=self._gpus.simulated, all_reduce_gbyte_s=rate)


@dataclass(frozen=True, slots=True)
class _Kinds:
    """What connects GPUs, named by their place in a gang."""

    topology: NodeTopology | None
    places: list[int]

    def __call__(self, a: int, b: int) -> str:
        i, j = self.places[a], self.places[b]
        return kind_of(known_link(self.topology, i, j)) if self.topology is not None and min(i, j) >= 0 else ""


def _place(topology: NodeTopology | None, uuid: str) -> int:
    try:
        return topology.position(uuid) if topology is not None else -1
    except KeyError:
        return -1


def _only_gpus(gpus: GpuWatch) -> NodeTopology:
    """A node of which nobody knows how its GPUs are connected."""
    return NodeTopology(gpus=tuple(Gpu(uuid=gpu.uuid, index=gpu.index, model=gpu.model) for gpu in gpus.all()))


def _findings(topology: NodeTopology | None) -> frozenset[str]:
    return frozenset(findings(topology)) if topology is not None else frozenset()


def _verdicts(topology: NodeTopology | None) -> tuple[Iterable[tuple[bool | None, bool]], bool] | None:
    if topology is None:
        return None
    links = tuple((link.copies, link.slowed is not None) for row in topology.links for link in row)
    return links, topology.all_reduce_gbyte_s is not None
