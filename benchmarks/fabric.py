"""How long a placement takes in a large cell, and how near its nodes are: along the fabric, beside the first that fit.

    python -m benchmarks.fabric [--nodes 10000] [--load 0.7] [--seed 1] [--preset hgx_h100]

Nodes of one kind, 16 to a leaf, 16 leaves to a pod, as many pods as it takes. Gangs of sizes that people ask for come
and go at random until the load is reached; then each policy places the same requests on the same picture. Times are
those of the placement alone, after one of each size; what a scheduling pass does once is printed before them.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from phalanx.core import messages as m
from phalanx.core.ids import id_text
from phalanx.core.spec import FunctionSpec, Resources
from phalanx.core.topology.codec import to_json
from phalanx.core.topology.fabric import Domain, Fabric, FabricNode
from phalanx.core.topology.fabric_codec import fabric_to_json
from phalanx.core.topology.node import NodeTopology
from phalanx.core.topology.presets import preset
from phalanx_control.scheduler.cell_fabric import cell_fabric
from phalanx_control.scheduler.fit import find_place
from phalanx_control.scheduler.kinds import ANY_GPU
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import Rooms, rooms_of
from phalanx_control.state import events
from phalanx_control.state.apply import apply
from phalanx_control.state.model import Function, Gang, MemberState, Owner, State

NODES_PER_LEAF = 16
LEAVES_PER_POD = 16
AIM_MS = 5.0
SIZES = ((1, 30), (2, 20), (4, 20), (8, 15), (16, 8), (32, 4), (64, 2), (128, 1))
"""GPUs of a gang, and how often they are asked for."""
REQUESTS = 300
OWNER = Owner(user="bench")

Places = Callable[[Need, Rooms], tuple[str, ...]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--preset", default="hgx_h100")
    options = parser.parse_args()
    state = cell(options.nodes, preset(options.preset))
    started = time.perf_counter()
    rooms = rooms_of(state)
    print(f"{options.nodes} nodes like {options.preset}; first picture {_ms_since(started):.0f} ms")
    pictures = [_timed(lambda: rooms_of(state)) for _ in range(5)]
    firsts = [_first_placement(state) for _ in range(5)]
    print(f"a pass makes its picture in {statistics.median(pictures):.1f} ms")
    print(f"the first gang of a size looks at every node once: {statistics.median(firsts):.1f} ms; later ones do not\n")
    rng = random.Random(options.seed)
    gangs = fill(rooms, rng, options.load)
    print(f"{len(gangs)} gangs hold {_load(rooms):.0%} of the GPUs\n")
    needs = [need_of(size) for size in rng.choices(*zip(*SIZES, strict=True), k=REQUESTS)]
    print(f"{'':14}{'median ms':>10}{'p95 ms':>8}{'max ms':>8}   gangs of several nodes, by the level that holds them")
    for name, policy in (("along fabric", ours), ("first fit", first_fit)):
        print(measure(name, policy, needs, state, rooms))


def cell(nodes: int, look: NodeTopology) -> State:
    """Returns a state of nodes that look alike, in a fabric, with a function for each size."""
    state = apply(State(), events.FabricSet(fabric=fabric_to_json(fabric(nodes))), 0)
    for at in range(nodes):
        state = apply(state, events.NodeJoined(info=node(at, look)), 0)
    for size, _ in SIZES:
        spec = need_of(size).spec
        state = apply(
            state, events.FunctionRegistered(function=Function(id=spec.function_id, owner=OWNER, spec=spec)), 0
        )
    return state


def fabric(nodes: int) -> Fabric:
    leaves = -(-nodes // NODES_PER_LEAF)
    pods = -(-leaves // LEAVES_PER_POD)
    return Fabric(
        levels=("leaf", "pod"),
        domains=(
            *(Domain(id=f"pod-{at}", level="pod") for at in range(pods)),
            *(Domain(id=f"leaf-{at}", level="leaf", parent=f"pod-{at // LEAVES_PER_POD}") for at in range(leaves)),
        ),
        nodes=tuple(FabricNode(id=f"n{at}", domain=f"leaf-{at // NODES_PER_LEAF}") for at in range(nodes)),
    )


def node(at: int, look: NodeTopology) -> m.NodeInfo:
    name = f"n{at}"
    gpus = tuple(replace(gpu, uuid=f"GPU-{name}-{gpu.index}") for gpu in look.gpus)
    return m.NodeInfo(
        node_id=name,
        cpus=192,
        memory_bytes=2 * 10**12,
        gpus=tuple(m.GpuInfo(uuid=gpu.uuid, index=gpu.index, model=gpu.model) for gpu in gpus),
        topology=to_json(replace(look, gpus=gpus)),
    )


def need_of(gpus: int) -> Need:
    return Need(spec=FunctionSpec(name=f"f{gpus}", resources=Resources(gpus=gpus)), workspace="default")


def fill(rooms: Rooms, rng: random.Random, load: float) -> list[Gang]:
    """Lets gangs come, and a third of them go, until so many GPUs are held."""
    gangs: list[Gang] = []
    numbers = itertools.count()
    while _load(rooms) < load:
        for _ in range(max(1, len(rooms) // 20)):
            need = need_of(rng.choices(*zip(*SIZES, strict=True))[0])
            place = find_place(need, rooms)
            if place is None:
                return gangs
            members = tuple(MemberState(member=member) for member in place.members)
            raw = next(numbers).to_bytes(16, "big")
            gang = Gang(id=id_text("g", raw), fence=0, function_id=need.spec.function_id, owner=OWNER, members=members)
            rooms.put(gang, need.spec)
            gangs.append(gang)
            if rng.random() < 1 / 3:
                rooms.take_out(gangs.pop(rng.randrange(len(gangs))).id)
    return gangs


def ours(need: Need, rooms: Rooms) -> tuple[str, ...]:
    place = find_place(need, rooms)
    return tuple(member.node_id for member in place.members) if place is not None else ()


def first_fit(need: Need, rooms: Rooms) -> tuple[str, ...]:
    """The first nodes by name that have enough free, the fewest of them."""
    for count in need.node_counts(len(rooms)):
        each = need.gpus // count
        found: list[str] = []
        for room in rooms.values():
            if room.count_free(ANY_GPU) >= each:
                found.append(room.id)
            if len(found) == count:
                return tuple(found)
    return ()


def measure(name: str, policy: Places, needs: list[Need], state: State, rooms: Rooms) -> str:
    known = cell_fabric(state.fabric).fabric
    times: list[float] = []
    levels: Counter[str] = Counter()
    for size, _ in SIZES:
        policy(need_of(size), rooms)
    for need in needs:
        started = time.perf_counter()
        nodes = policy(need, rooms)
        times.append(_ms_since(started))
        if len(nodes) > 1:
            farthest = max(known.distance(nodes[0], other) for other in nodes[1:])
            levels[("nvlink", "leaf", "pod", "none")[farthest - 1]] += 1
    spread = ", ".join(f"{level} {levels[level]}" for level in ("leaf", "pod", "none") if levels[level])
    ordered = sorted(times)
    p95 = ordered[int(len(ordered) * 0.95)]
    return f"{name:14}{statistics.median(times):10.2f}{p95:8.2f}{ordered[-1]:8.2f}   {spread}"


def _first_placement(state: State) -> float:
    rooms = rooms_of(state)
    return _timed(lambda: find_place(need_of(16), rooms))


def _load(rooms: Rooms) -> float:
    gpus = sum(len(room.node.info.gpus) for room in rooms.values())
    return 1 - sum(room.count_free(ANY_GPU) for room in rooms.values()) / gpus


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return _ms_since(started)


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000


if __name__ == "__main__":
    main()
