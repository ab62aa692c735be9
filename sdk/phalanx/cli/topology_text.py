"""A node's topology as text for a terminal: its islands, who is on which NUMA node, the links, the nearest ports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from phalanx.cli.text import folded
from phalanx.core.topology.figures import Figures, figures_of, known_link
from phalanx.core.topology.names import links_of, told_apart
from phalanx.core.topology.node import Gpu, Health, Link, Nic, NicLink, NodeTopology
from phalanx.core.topology.nvlink_islands import islands
from phalanx.core.topology.verified import findings

UNKNOWN = "?"
_USUAL_WIDTH = 80
_WHOLE_FROM = 100
_NO_BRACKETS = str.maketrans("", "", "[]")


def drawing(name: str, topology: NodeTopology) -> Iterator[str]:
    """Yields the lines of one node."""
    ports = zip(topology.nics, told_apart(nic.name for nic in topology.nics), strict=True)
    topology = replace(topology, nics=tuple(replace(nic, name=called) for nic, called in ports))
    yield headline(name, topology)
    yield from _places(topology)
    if len(topology.gpus) > 1:
        yield ""
        yield from _matrix(topology)
    if topology.nics:
        yield ""
        yield from _ports(topology)
    yield from _verified(topology)
    for note in topology.notes:
        yield f"  note: {note}"


def headline(name: str, topology: NodeTopology) -> str:
    """Returns one line: what the node has."""
    models = sorted({gpu.model or "GPU" for gpu in topology.gpus})
    parts = [f"{len(topology.gpus)} x {', '.join(models)}" if topology.gpus else "no GPU"]
    if topology.pcie_gen is not None:
        parts.append(f"PCIe gen {topology.pcie_gen}")
    if topology.nvl_domain:
        parts.append(f"NVLink domain {topology.nvl_domain}")
    return f"{name}: {', '.join(parts)}"


def label(link: Link, model: str = "") -> str:
    """Returns a link as `nvidia-smi topo -m` writes it: ``NV18``, else the path, else a question mark.

    Links between GPUs of another maker have their own name: ``xGMI1``.
    """
    if link.nvlinks:
        own = links_of(model)
        return f"{'NV' if own == 'NVLink' else own}{link.nvlinks}"
    return str(link.path) if link.path is not None else UNKNOWN


def nearest_ports(topology: NodeTopology, at: int) -> list[tuple[Nic, NicLink]]:
    """Returns the ports that are closest to a GPU; empty where that is not known."""
    row = topology.nic_links[at] if at < len(topology.nic_links) else ()
    known = [
        (link.path.distance, nic, link) for nic, link in zip(topology.nics, row, strict=False) if link.path is not None
    ]
    best = min((distance for distance, _, _ in known), default=None)
    return [(nic, link) for distance, nic, link in known if distance == best]


def _places(topology: NodeTopology) -> Iterator[str]:
    """One line per NUMA node."""
    by_numa: dict[str, list[Gpu]] = {}
    for gpu in topology.gpus:
        by_numa.setdefault(_numa(gpu), []).append(gpu)
    width = max((len(name) for name in by_numa), default=0)
    for name, gpus in by_numa.items():
        yield f"  NUMA {name.ljust(width)}  {'  '.join(_gpu(gpu) for gpu in gpus)}"
    for island in islands(topology):
        if len(island) > 1:
            members = "-".join(str(topology.gpus[at].index) for at in island)
            switched = topology.links[island[0]][island[1]].switched
            own = links_of(topology.gpus[island[0]].model)
            yield f"  {own} island {members}{' through a switch' if switched else ''}"


def _gpu(gpu: Gpu) -> str:
    parts = f" ({len(gpu.mig)} MIG devices)" if gpu.mig else ""
    sick = f" [{gpu.health}{': ' + gpu.reason if gpu.reason else ''}]" if gpu.health is not Health.OK else ""
    return f"GPU {gpu.index}{parts}{sick}"


def _numa(gpu: Gpu) -> str:
    return ",".join(map(str, gpu.numa)) if gpu.numa else UNKNOWN


def _matrix(topology: NodeTopology) -> Iterator[str]:
    """The links as people know them, with GB/s one way by the model."""
    figures = figures_of(topology)
    heads = [f"GPU{gpu.index}" for gpu in topology.gpus]
    rows = [[_cell(topology, i, j, figures) for j in range(len(heads))] for i in range(len(heads))]
    width = max(len(cell) for row in [heads, *rows] for cell in row)
    first = max(len(head) for head in heads)
    gap = "  " if 2 + first + len(heads) * (width + 2) <= _USUAL_WIDTH else " "
    for head, row in zip(["GB/s", *heads], [heads, *rows], strict=True):
        yield f"  {head.ljust(first)}{gap}{gap.join(cell.rjust(width) for cell in row)}"


def _verified(topology: NodeTopology) -> Iterator[str]:
    """What gangs found when they tried the links: faults, and how much was tried at all."""
    pairs = [known_link(topology, i, j) for i in range(len(topology.links)) for j in range(i)]
    rates = [link.measured_gbyte_s for link in pairs if link.measured_gbyte_s is not None]
    if rates:
        whole = topology.all_reduce_gbyte_s
        more = f"; all-reduce over all GPUs {whole:.3g} GB/s" if whole is not None else ""
        yield f"  verified: {len(rates)} of {len(pairs)} pairs, {min(rates):g} to {max(rates):g} GB/s{more}"
    for sentence in findings(topology):
        yield f"  {sentence}"


def _cell(topology: NodeTopology, i: int, j: int, figures: Figures) -> str:
    if i == j:
        return "-"
    link = known_link(topology, i, j)
    mark = "!" if link.copies is False else "~" if link.slowed is not None else ""
    rate = figures.link_mbyte_s(topology, i, j) / 1000
    name = label(link, topology.gpus[i].model)
    return f"{name}{mark} {rate:.0f}" if rate >= _WHOLE_FROM else f"{name}{mark} {rate:g}"


def _ports(topology: NodeTopology) -> Iterator[str]:
    for at, gpu in enumerate(topology.gpus):
        near = nearest_ports(topology, at)
        if near:
            path = near[0][1].path
            yield f"  GPU{gpu.index} nearest port: {_named([nic for nic, _ in near])} at {path}"
    down = [nic.name for nic in topology.nics if nic.up is False]
    if down:
        yield f"  ports that are down: {', '.join(down)}"


def _named(nics: list[Nic]) -> str:
    """Several ports as fast as each other share one bracket."""
    rates = {nic.rate_gbit_s for nic in nics}
    rails = [str(nic.rail) for nic in nics if nic.rail is not None]
    if len(nics) == 1 or len(rates) > 1 or len(rails) not in (0, len(nics)):
        return ", ".join(_port(nic) for nic in nics)
    names = folded([nic.name for nic in nics])
    (rate,) = rates
    facts = [f"{rate:g} Gb/s each"] if rate is not None else []
    facts += [f"rails {folded(rails).translate(_NO_BRACKETS)}"] if rails else []
    return f"{names} ({', '.join(facts)})" if facts else names


def _port(nic: Nic) -> str:
    facts = [f"{nic.rate_gbit_s:g} Gb/s"] if nic.rate_gbit_s is not None else []
    facts += [f"rail {nic.rail}"] if nic.rail is not None else []
    return f"{nic.name} ({', '.join(facts)})" if facts else nic.name
