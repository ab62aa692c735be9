"""What a choice of GPUs on one node comes to: the set its ring, and why it won, in sentences for people."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.topology.tables import Score, Tables


@dataclass(frozen=True, slots=True)
class Chosen:
    """``mask`` and ``ring`` hold positions in the tables' devices; ``ring`` is in the order of a best ring."""

    mask: int
    ring: tuple[int, ...]
    runner_up: int
    """The set that comes next; 0 where there was no choice."""
    tables: Tables
    free: int

    @property
    def uuids(self) -> tuple[str, ...]:
        """In ring order."""
        return tuple(self.tables.devices[at].uuid for at in self.ring)

    @property
    def score(self) -> Score:
        return Score.of(self.tables.score[self.mask])

    @property
    def ring_gbyte_s(self) -> float:
        """The slowest link of the ring, GB/s one way by the model; 0 for one GPU."""
        return self.tables.rings.bottleneck(self.mask) / 1000

    @property
    def why(self) -> str:
        """A sentence for people: what was chosen, and why the runner-up lost."""
        if self.mask.bit_count() == 1:
            return _of_single(self)
        return f"{_praise(self)}; {_against(self) if self.runner_up else 'no other set on the node fits'}"


def _praise(chosen: Chosen) -> str:
    names = "-".join(chosen.tables.devices[at].name for at in chosen.ring)
    score = chosen.score
    return f"ring {names} at {_gbyte_s(score.ring_mbyte_s)}, its pairs {_gbyte_s(score.pairs_mbyte_s)} together"


def _against(chosen: Chosen) -> str:
    tables = chosen.tables
    other = tables.names(chosen.runner_up)
    ours, theirs = chosen.score, Score.of(tables.score[chosen.runner_up])
    if ours.ring_mbyte_s != theirs.ring_mbyte_s:
        return f"{other} has a slower ring ({_gbyte_s(theirs.ring_mbyte_s)})"
    if ours.pairs_mbyte_s != theirs.pairs_mbyte_s:
        return f"{other} has as fast a ring but slower pairs ({_gbyte_s(theirs.pairs_mbyte_s)} together)"
    if ours.numa_nodes != theirs.numa_nodes:
        return f"{other} has links as fast but spans {theirs.numa_nodes} NUMA nodes instead of {ours.numa_nodes}"
    if ours.nic_closeness != theirs.nic_closeness:
        return f"{other} has links as fast but is farther from the network ports"
    if ours.rails != theirs.rails:
        return f"{other} has links as fast but shares network ports ({theirs.rails} instead of {ours.rails} rails)"
    return f"{other} is as good but {_tie_break(chosen)}"


def _tie_break(chosen: Chosen) -> str:
    tables = chosen.tables
    if tables.leftover[chosen.free ^ chosen.mask] != tables.leftover[chosen.free ^ chosen.runner_up]:
        return "would leave worse sets of 2, 4 and 8 to others"
    whole = tables.rules.usable
    if tables.leftover[whole ^ chosen.mask] != tables.leftover[whole ^ chosen.runner_up]:
        return "would leave worse sets to others once all of them are free"
    if tables.nearness[chosen.mask] != tables.nearness[chosen.runner_up]:
        return "is farther apart on PCIe"
    return "has higher indices"


def _of_single(chosen: Chosen) -> str:
    name = chosen.tables.names(chosen.mask)
    if not chosen.runner_up:
        return f"GPU {name}; no other one on the node fits"
    other = chosen.tables.names(chosen.runner_up)
    ours = chosen.tables.spoils(chosen.free, chosen.mask)
    theirs = chosen.tables.spoils(chosen.free, chosen.runner_up)
    if ours[0] != theirs[0]:
        return f"GPU {name} is in no complete pair; {other} is"
    if ours[1] != theirs[1]:
        return f"GPU {name} is of an island that is not whole anyway; taking {other} would break one"
    if ours[2] != theirs[2]:
        return f"GPU {name} leaves better sets of 2, 4 and 8 to others than {other}"
    if ours[3] != theirs[3]:
        return f"GPU {name} leaves better sets to others than {other} once all of them are free"
    if ours[4] != theirs[4]:
        return f"GPU {name} takes {_gbyte_s(ours[4])} of links away from others, {other} {_gbyte_s(theirs[4])}"
    return f"GPU {name} costs others as little as {other}, which has the higher index"


def _gbyte_s(mbyte_s: int) -> str:
    return f"{mbyte_s / 1000:.1f} GB/s"
