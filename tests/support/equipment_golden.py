"""What the ranks of whole and half nodes get on a machine, as text: the golden files of `tests/golden/nccl_env`.

``python -m tests.support.equipment_golden`` writes them anew; look at the difference before it is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from phalanx.core.topology.choice import choose
from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.importers.detect import read_node
from phalanx.core.topology.nccl_env import GangOnNode, Network, network_of
from phalanx.core.topology.node import NodeTopology
from phalanx.core.topology.outcome import Chosen
from phalanx.core.topology.presets import PRESETS, preset
from phalanx.core.topology.tables import build_tables
from tests.support.topologies import SAMPLES

GOLDEN = Path(__file__).parents[1] / "golden" / "nccl_env"
INTERFACE, ADDRESS = "eth7", "10.0.0.1:4000"


def sample_nodes() -> dict[str, NodeTopology]:
    """Every sample that describes a node with GPUs and network ports; none where the folder is absent."""
    return dict(_samples()) if SAMPLES.is_dir() else {}


def preset_nodes() -> dict[str, NodeTopology]:
    return {name: preset(name) for name in PRESETS}


def _samples() -> Iterator[tuple[str, NodeTopology]]:
    for path in sorted(SAMPLES.iterdir()):
        if path.suffix not in (".txt", ".xml"):
            continue
        try:
            node = read_node(path.read_text(errors="replace"))
        except UnreadableTopologyError:
            continue
        if node.gpus and node.nics:
            yield path.name.removesuffix(path.suffix), node


def gang_on(node: NodeTopology, size: int, *, nodes: int = 2, interface: str = INTERFACE) -> GangOnNode:
    """A gang of the best ``size`` GPUs of each of ``nodes`` nodes that look like this one."""
    chosen = choose(build_tables(node), (1 << len(node.gpus)) - 1, size)
    assert isinstance(chosen, Chosen), chosen
    return GangOnNode(
        node=node,
        gpus=tuple((at,) for at in chosen.ring),
        ranks=size * nodes,
        nodes=nodes,
        interface=interface,
        address=ADDRESS,
    )


def sizes_of(node: NodeTopology) -> tuple[int, ...]:
    """The whole node, and half of it where that is not the same; more than 16 GPUs are not chosen from tables."""
    count = len(node.gpus)
    return (count, count // 2) if count > 1 else (count,)


def golden_text(node: NodeTopology) -> str:
    parts = [_part(gang_on(node, size), size, len(node.gpus)) for size in sizes_of(node)]
    return "\n".join(line for part in parts for line in part)


def _part(gang: GangOnNode, size: int, count: int) -> Iterator[str]:
    assert gang.node is not None
    found: Network = network_of(gang)
    yield f"2 nodes x {size} of {count} GPUs"
    for rank, (gpus, near) in enumerate(zip(gang.gpus, found.near, strict=True)):
        ports = " ".join(gang.node.nics[at].name for at in near.ports) or "-"
        yield f"  rank {rank}: GPU {gang.node.gpus[gpus[0]].index}: {ports} ({near.why})"
    for each in found.variables:
        yield f"  {each.name}{'=' + each.value if each.value else ''}"
        yield f"      {each.why}"
    yield ""


def nodes() -> Mapping[str, NodeTopology]:
    return {**preset_nodes(), **sample_nodes()}


def main() -> None:
    for name, node in nodes().items():
        (GOLDEN / f"{name}.txt").write_text(golden_text(node))


if __name__ == "__main__":
    main()
