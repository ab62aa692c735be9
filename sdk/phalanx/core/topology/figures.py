"""What a link is worth: GB/s one way (10^9 bytes), for ranking. Not a promise, and never shown as measured.

Sources. NVLink per link, PCIe per lane, between sockets and "peer traffic over an Intel host bridge counts 6/5": the
constants of NCCL's topology search (src/graph/topo.h). They lie about 12 % below what public tests measure (12 links of
an A100: 240 here, 274 measured; PCIe 5.0 x16: 48 here, 54.7 to 56.5 measured); the order is right, which is all that a
choice needs. A PCIe lane carries 1.5, 3, 6, 12, 24 and 48 Gb/s in generations 1 to 6, so 16 lanes 3 to 96 GB/s.
Of that, a path keeps: one switch 1; several switches 23/24 (a hop's loss; ours, for ranking); a host bridge 5/6 (NCCL's
6/5); several host bridges of one NUMA node 3/4 (ours, for ranking); between sockets what the processors of that PCIe
generation carry there (Broadwell 6, Skylake 10, Sapphire Rapids 22, later ones 40).
As NCCL does, a missing PCIe speed counts as generation 3 where the GPU does not say better, and the width as 16.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from phalanx.core.topology.node import Gpu, Link, NodeTopology, Path

_NVLINK_MBYTE_S = ((100, 40_100), (90, 20_600), (87, 20_000), (86, 12_000), (80, 20_000), (70, 20_000), (60, 18_000))
"""By the least compute capability it holds for, MB/s per link."""
_NVLINK_UNKNOWN_MBYTE_S = 20_000
_OF_REPORTED = 0.8
"""What the table gives of the speed that links report themselves: 20 of 25, 40.1 of 50."""
_PCIE_X16_MBYTE_S = {1: 3_000, 2: 6_000, 3: 12_000, 4: 24_000, 5: 48_000, 6: 96_000}
_SOCKET_MBYTE_S = {1: 6_000, 2: 6_000, 3: 6_000, 4: 10_000, 5: 22_000, 6: 40_000}
_PCIE_OF_COMPUTE = ((100, 5), (90, 5), (80, 4))
_PCIE_UNKNOWN = 3
_SHARE = {
    Path.PIX: Fraction(1),
    Path.PXB: Fraction(23, 24),
    Path.PHB: Fraction(5, 6),
    Path.NODE: Fraction(3, 4),
    Path.SYS: Fraction(3, 4),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one node, in MB/s one way: per GPU for NVLink, by path for PCIe."""

    nvlink_mbyte_s: tuple[int, ...]
    path_mbyte_s: dict[Path, int]

    def link_mbyte_s(self, node: NodeTopology, i: int, j: int) -> int:
        """Returns what the GPUs at two positions move between each other; an unknown path counts as the farthest.

        Of a link that was measured to be slow, the part that it moves of what others like it do.
        """
        usual, slowed = self.usual_mbyte_s(node, i, j), known_link(node, i, j).slowed
        return usual if slowed is None else max(1, round(usual * slowed))

    def usual_mbyte_s(self, node: NodeTopology, i: int, j: int) -> int:
        """Returns what links like that move, whatever was measured."""
        link = known_link(node, i, j)
        if link.nvlinks:
            return link.nvlinks * min(self.nvlink_mbyte_s[i], self.nvlink_mbyte_s[j])
        return self.path_mbyte_s[link.path or Path.SYS]


def nvlink_mbyte_s(compute: int | None) -> int:
    """Returns MB/s one way of one NVLink by compute capability, as 90; an unknown one counts as NCCL counts it."""
    if compute is None:
        return _NVLINK_UNKNOWN_MBYTE_S
    return next((figure for least, figure in _NVLINK_MBYTE_S if compute >= least), _NVLINK_UNKNOWN_MBYTE_S)


def pcie_gen(node: NodeTopology) -> int:
    """Returns the PCIe generation: the node's, else that of its GPUs' compute capability, else 3."""
    if node.pcie_gen is not None:
        return min(max(node.pcie_gen, 1), 6)
    compute = min((gpu.compute for gpu in node.gpus if gpu.compute is not None), default=0)
    return next((gen for least, gen in _PCIE_OF_COMPUTE if compute >= least), _PCIE_UNKNOWN)


def figures_of(node: NodeTopology, *, nvlink_gbyte_s: float | None = None, gen: int | None = None) -> Figures:
    """Returns the figures of a node. Both parameters override what it says, as for a text that shows no models."""
    gen = pcie_gen(node) if gen is None else gen
    full = _PCIE_X16_MBYTE_S[gen]
    paths = {path: int(full * share) for path, share in _SHARE.items()}
    socket = _SOCKET_MBYTE_S[gen] if node.socket_gbyte_s is None else round(node.socket_gbyte_s * 1000)
    paths[Path.SYS] = max(1, min(paths[Path.SYS], socket))
    per_link = tuple(_per_link(gpu, nvlink_gbyte_s) for gpu in node.gpus)
    return Figures(per_link, paths)


def _per_link(gpu: Gpu, override_gbyte_s: float | None) -> int:
    if override_gbyte_s is not None:
        return round(override_gbyte_s * 1000)
    if gpu.compute is None and gpu.nvlink_gbyte_s:
        return round(gpu.nvlink_gbyte_s * _OF_REPORTED * 1000)
    return nvlink_mbyte_s(gpu.compute)


def known_link(node: NodeTopology, i: int, j: int) -> Link:
    """Returns what either direction of the matrix says of a pair: a table that was cut off may hold one only."""
    if not node.links:
        return Link()
    one, other = node.links[i][j], node.links[j][i]
    return Link(
        nvlinks=other.nvlinks if one.nvlinks is None else one.nvlinks,
        path=one.path or other.path,
        switched=other.switched if one.switched is None else one.switched,
        copies=False if False in (one.copies, other.copies) else one.copies or other.copies,
        measured_gbyte_s=_least(one.measured_gbyte_s, other.measured_gbyte_s),
        slowed=_least(one.slowed, other.slowed),
    )


def _least(*figures: float | None) -> float | None:
    return min((figure for figure in figures if figure is not None), default=None)
