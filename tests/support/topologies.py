"""Nodes of our own, printed as `nvidia-smi topo -m` prints them, and the sample folder where there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2].parent / "shared" / "topologies"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample topologies are not beside this checkout")
HEADINGS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_LEGEND = ("X    = Self", "SYS  = across sockets", "NODE = across host bridges", "PHB  = one host bridge")
Cells = Callable[[str, str], str]


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


@dataclass(frozen=True, slots=True)
class Printed:
    """What the tool would show. ``cells``: word for two different labels."""

    labels: tuple[str, ...]
    cells: Cells
    affinity: Mapping[str, Sequence[str]]
    headings: tuple[str, ...] = HEADINGS
    nvlink_in_legend: bool = True
    nic_names: Mapping[str, str] | None = None

    def rows(self) -> list[str]:
        return ["\t" + "\t".join((*self.labels, *self.headings)), *(self._row(label) for label in self.labels)]

    def _row(self, label: str) -> str:
        links = [" X " if label == other else self.cells(label, other) for other in self.labels]
        return "\t".join((label, *links)) + "\t" + _affinity(self.affinity.get(label, ()))

    def legend(self) -> list[str]:
        words = [*_LEGEND, *(["NV#  = so many NVLinks"] if self.nvlink_in_legend else [])]
        names = [f"  {label}: {name}" for label, name in (self.nic_names or {}).items()]
        return [
            "",
            "Legend:",
            "",
            *(f"  {word}" for word in words),
            *(["", "NIC Legend:", "", *names] if names else []),
        ]

    def text(self) -> str:
        return "\n".join((*self.rows(), *self.legend(), ""))

    def spaced(self) -> str:
        """As pasted where tabs were lost."""
        return self.text().expandtabs(8)


def _affinity(words: Sequence[str]) -> str:
    """One tab after a blank or a long CPU list, two after a short one; two after the NUMA nodes."""
    if not words:
        return ""
    cpus, rest = words[0], words[1:]
    return cpus + ("\t\t" if 0 < len(cpus) < 8 else "\t") + "\t\t".join(rest)


def gpus(count: int) -> tuple[str, ...]:
    return tuple(f"GPU{at}" for at in range(count))


def symmetric(pairs: Mapping[tuple[str, str], str], other: Cells) -> Cells:
    return lambda one, two: pairs.get((one, two)) or pairs.get((two, one)) or other(one, two)


def _half(label: str, size: int) -> int:
    return int(label[3:]) // size


def _pairs(word: str, names: str) -> dict[tuple[str, str], str]:
    return {(f"GPU{pair[0]}", f"GPU{pair[1]}"): word for pair in names.split()}


def cube_mesh() -> Printed:
    """Eight V100s, six NVLinks each: two quads, joined by four pairs. One NIC for two GPUs; old driver."""
    nvlinks = {**_pairs("NV2", "03 04 12 15 23 47 56 67"), **_pairs("NV1", "01 02 13 26 37 45 46 57")}
    near = {"mlx5_0": 0, "mlx5_2": 2, "mlx5_1": 1, "mlx5_3": 3}

    def other(one: str, two: str) -> str:
        places = [near[each] if each in near else _half(each, 2) for each in (one, two)]
        if places[0] == places[1] and (one in near or two in near):
            return "PIX"
        return "PHB" if places[0] // 2 == places[1] // 2 else "SYS"

    affinity = {label: ("0-19,40-59" if _half(label, 4) == 0 else "20-39,60-79",) for label in gpus(8)}
    return Printed((*gpus(8), *near), symmetric(nvlinks, other), affinity, headings=HEADINGS[:1])


def switched_node() -> Printed:
    """Eight GPUs behind NVSwitches, one NIC each, NUMA nodes 0 and 2."""
    nics = tuple(f"NIC{at}" for at in range(8))

    def cell(one: str, two: str) -> str:
        if one[:3] == two[:3] == "GPU":
            return "NV18"
        if one[3:] == two[3:]:
            return "PXB"
        return "NODE" if _half(one, 4) == _half(two, 4) else "SYS"

    places = ("0-55,112-167", "0", "N/A"), ("56-111,168-223", "2", "N/A")
    affinity = {label: places[_half(label, 4)] for label in gpus(8)}
    names = {nic: f"mlx5_{at + 4}" for at, nic in enumerate(nics)}
    return Printed((*gpus(8), *nics), cell, affinity, nic_names=names)


def pcie_node() -> Printed:
    """Four GPUs without NVLink, two on each socket."""

    def cell(one: str, two: str) -> str:
        return "PIX" if _half(one, 2) == _half(two, 2) else "SYS"

    affinity = {label: (f"{_half(label, 2) * 8}-{_half(label, 2) * 8 + 7}", str(_half(label, 2))) for label in gpus(4)}
    return Printed(gpus(4), cell, affinity, headings=HEADINGS[:2])


def grace_tray() -> Printed:
    """Four GPUs whose memory is NUMA nodes of its own."""
    places = [
        ("0-71", "0,3-5", str(2 + 8 * at)) if at < 2 else ("72-143", "1,19-21", str(2 + 8 * at)) for at in range(4)
    ]
    affinity = dict(zip(gpus(4), places, strict=True))
    return Printed(gpus(4), lambda _one, _two: "NV18", affinity)


PRINTED: Mapping[str, Callable[[], Printed]] = {
    "cube_mesh": cube_mesh,
    "switched_node": switched_node,
    "pcie_node": pcie_node,
    "grace_tray": grace_tray,
}

NVLINK_STATUS = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa)
\t Link 0: 25 GB/s
\t Link 1: 25 GB/s
\t Link 2: <inactive>
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb)
\t Link 0: 25 GB/s
\t Link 1: 14.062 GB/s
\t Link 2: half asleep
GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-cccc)
NVML: Unable to retrieve NVLink information as all links are inActive
GPU 3: NVIDIA L4 (UUID: GPU-dddd)
\t NVML: Unable to retrieve NVLink information: Not Supported
GPU 4: NVIDIA A100-SXM4-40GB (UUID: GPU-eeee)
"""

MIG_LIST = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)
  MIG 1g.10gb     Device  0: (UUID: MIG-0001)
  MIG 3g.40gb     Device  1: (UUID: MIG-0002)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb)
  MIG 2c.3g.40gb  Device  0: (UUID: MIG-GPU-bbbb/7/1)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-cccc)
"""
