"""The benchmark of placement along the fabric: its cells are what it says, and ours is never farther than first fit."""

from __future__ import annotations

import random

from benchmarks.fabric import SIZES, cell, fill, first_fit, need_of, ours

from phalanx.core.topology.presets import preset
from phalanx_control.scheduler.cell_fabric import cell_fabric
from phalanx_control.scheduler.room import rooms_of


def test_along_the_fabric_is_never_farther_than_the_first_that_fit() -> None:
    state = cell(96, preset("hgx_h100"))
    rooms = rooms_of(state)
    fill(rooms, random.Random(3), 0.5)
    fabric = cell_fabric(state.fabric).fabric

    def farthest(nodes: tuple[str, ...]) -> int:
        return max((fabric.distance(nodes[0], other) for other in nodes[1:]), default=0)

    for size, _ in SIZES:
        near, first = ours(need_of(size), rooms), first_fit(need_of(size), rooms)
        assert len(near) == len(first)
        assert farthest(near) <= farthest(first)
