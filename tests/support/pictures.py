"""The kept picture of a cell against one that is made anew: they must show the same, down to what is chosen on them."""

from __future__ import annotations

from typing import Any

from phalanx_control.scheduler.fit import candidates_for, find_place
from phalanx_control.scheduler.fleet import picture_of
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.reserve import reservation_for
from phalanx_control.scheduler.room import NodeRoom, Rooms, Usable, rooms_of
from phalanx_control.state.model import State
from tests.support.builders import spec

_ASKED = (
    {"gpus": 1},
    {"gpus": 2},
    {"gpus": 4},
    {"gpus": 8},
    {"gpus": 2, "isolation": "node"},
    {"gpus": 2, "fabric": "nvlink"},
    {"gpus": 3, "max_gpus": 12},
)
_FRACTIONS = tuple(Need(spec=spec(gpus=share), workspace="default") for share in (0.25, 0.5))
_NEEDS = tuple(Need(spec=spec(**asked), workspace="default") for asked in _ASKED)  # pyright: ignore[reportArgumentType]


def check_picture(state: State) -> None:
    """Asserts that what is kept from earlier states shows this one."""
    kept, anew = picture_of(state), rooms_of(state)
    assert {name: _shown(room) for name, room in kept.items()} == {name: _shown(room) for name, room in anew.items()}
    assert {i: held.gang for i, held in kept.gangs.items()} == dict(state.gangs)
    empty = Usable()
    assert {k: v for k, v in kept.lines.items() if v != empty} == {k: v for k, v in anew.lines.items() if v != empty}
    for need in _NEEDS:
        for count in need.node_counts(len(kept)):
            assert _offered(need, kept, count) == _offered(need, anew, count)
        assert reservation_for(state, need, kept, state.log_ms) == reservation_for(state, need, anew, state.log_ms)
        assert find_place(need, kept) == find_place(need, anew)
    for need in _FRACTIONS:
        assert find_place(need, kept) == find_place(need, anew)


def _shown(room: NodeRoom) -> Any:
    gpus = [(g.info, g.usable, round(g.taken, 6), g.whole, g.holders, g.workspaces) for g in room.gpus]
    counts = (room.cpu_gangs, room.gangs, room.gpu_gangs, room.isolated, round(room.cpus, 6), round(room.memory_bytes))
    return room.node, room.at, room.spot, counts, gpus


def _offered(need: Need, rooms: Rooms, count: int) -> Any:
    found = candidates_for(need, rooms, count)
    buckets = {spot: ({*bucket.nodes}, bucket.held) for spot, bucket in found.buckets.items() if bucket.nodes}
    return len(found), sorted(found.names()), buckets
