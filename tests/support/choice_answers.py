"""The right answers on sets of GPUs that lie beside the sample topologies, the reference rows, and their nodes."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from itertools import combinations

from phalanx.core.topology.bitsets import mask_of
from phalanx.core.topology.figures import Figures, figures_of
from phalanx.core.topology.importers.nccl_xml import read_nccl_xml
from phalanx.core.topology.importers.topo_text import read_topo_text
from phalanx.core.topology.node import Gpu, Link, NodeTopology, Path
from tests.support.topologies import SAMPLES, cube_mesh, sample

NODE_SAMPLES = sorted(
    path.name for pattern in ("*.topo-m.txt", "*.nccl.xml") for path in SAMPLES.glob(pattern)
)  # fmt: skip
_ABOUT_CHOICE = ("best ", "same optimum", "after tie-breaks", "canonical", "one-GPU request", "link model")


def read_sample(name: str) -> NodeTopology:
    return (read_nccl_xml if name.endswith(".xml") else read_topo_text)(sample(name))


@dataclass(frozen=True, slots=True)
class Sets:
    """``masks``: all of them, or None where the answer only counts them."""

    count: int
    masks: frozenset[int] | None
    first: int | None = None


@dataclass(slots=True)
class BestSets:
    size: int
    by_links: Sets
    ring_mbyte_s: int
    pairs_mbyte_s: int
    canonical: int = 0
    after_ties: Sets | None = None
    robust: bool = False


@dataclass(slots=True)
class ChoiceAnswers:
    nvlink_gbyte_s: float = 0.0
    pcie_gen: int = 0
    best: list[BestSets] | None = None
    single: frozenset[int] | None = None

    def figures(self, node: NodeTopology) -> Figures:
        """As the answers were computed: NVLinks by the figure named there, which is 0 where there are none."""
        return figures_of(node, nvlink_gbyte_s=self.nvlink_gbyte_s, gen=self.pcie_gen)


def choice_answers(name: str) -> ChoiceAnswers:
    """Raises ValueError for a line about sets that nobody reads."""
    stem = name.rsplit(".", 1)[0]
    answers = ChoiceAnswers(best=[])
    for line in sample(f"{stem}.md").splitlines():
        if line.strip().startswith(_ABOUT_CHOICE):
            _read(answers, line.strip())
    return answers


def _read(answers: ChoiceAnswers, line: str) -> None:
    assert answers.best is not None
    key, _, value = line.partition(": ")
    if match := re.fullmatch(r"best (\d+)-set by links", key):
        answers.best.append(_best(int(match[1]), value))
    elif key.startswith("same optimum"):
        answers.best[-1].robust = value == "yes"
    elif key.startswith("after tie-breaks"):
        answers.best[-1].after_ties = _sets(value)
    elif key.startswith("canonical"):
        answers.best[-1].canonical = _one(value)
    elif key.startswith("one-GPU"):
        answers.single = frozenset(1 << int(at) for at in re.findall(r"GPU(\d+)", value))
    elif match := re.search(r"([\d.]+) GB/s per link, PCIe gen(\d)", value):
        answers.nvlink_gbyte_s, answers.pcie_gen = float(match[1]), int(match[2])
    else:
        raise ValueError(line)


def _best(size: int, value: str) -> BestSets:
    sets, _, figures = value.partition("; best ring bottleneck ")
    match = re.match(r"([\d.]+) GB/s, pair-bandwidth sum ([\d.]+) GB/s", figures)
    assert match is not None, value
    return BestSets(size, _sets(sets), round(float(match[1]) * 1000), round(float(match[2]) * 1000))


def _sets(value: str) -> Sets:
    if match := re.match(r"all (\d+) sets|(\d+) of \d+ sets|(\d+) sets, first", value):
        first = _one(value) if "first" in value else None
        return Sets(int(next(filter(None, match.groups()))), None, first)
    masks = frozenset(_one(each) for each in value.split(" or "))
    return Sets(len(masks), masks)


def _one(value: str) -> int:
    match = re.search(r"\{([\d,]+)\}", value)
    assert match is not None, value
    return mask_of(map(int, match[1].split(",")))


@dataclass(frozen=True, slots=True)
class ReferenceRow:
    """``sizes``: one after the other, without release. ``expected``: for each, what it must be; 0: none."""

    case: int
    node: str
    policy: str
    available: int | None
    """None: all."""
    required: int
    sizes: tuple[int, ...]
    expected: str


def reference_rows() -> list[ReferenceRow]:
    rows = csv.DictReader(sample("allocation_reference.csv").splitlines())
    return [
        ReferenceRow(
            int(row["case"]),
            row["node"],
            row["policy"],
            None if row["available"] == "all" else members(row["available"]),
            members(row["required"]),
            tuple(map(int, re.findall(r"\d+", row["size"]))),
            row["expected"],
        )
        for row in rows
    ]


def members(words: str) -> int:
    """Returns "0 2 4" as a set."""
    return mask_of(map(int, words.split()))


def reference_node(name: str) -> NodeTopology:
    """The nodes of the reference rows, from their description: NVLinks, PCIe switches and sockets, no network ports."""
    return {"dgx1_v100": dgx1_v100, "dgx1_p100": dgx1_p100, "rtx8000_x4": rtx8000_x4, "dgx2": dgx2}[name]()


def dgx1_v100() -> NodeTopology:
    node = read_topo_text(cube_mesh().text())
    counts = {(i, j): node.links[i][j].nvlinks or 0 for i in range(8) for j in range(i)}
    return linked(8, counts, sockets=(4, 4), switches=("01", "23", "45", "67"), compute=70, near=Path.PHB)


def dgx1_p100() -> NodeTopology:
    cliques = [*combinations(range(4), 2), *combinations(range(4, 8), 2), *((at, at + 4) for at in range(4))]
    counts = dict.fromkeys(((high, low) for low, high in cliques), 1)
    return linked(8, counts, sockets=(4, 4), switches=("02", "13", "46", "57"), compute=60, near=Path.PHB)


def rtx8000_x4() -> NodeTopology:
    return linked(4, {(3, 0): 2, (2, 1): 2}, sockets=(2, 2), switches=(), compute=75)


def dgx2() -> NodeTopology:
    counts = {(i, j): 6 for i in range(16) for j in range(i)}
    return linked(16, counts, sockets=(8, 8), switches=(), compute=70, switched=True)


def linked(
    count: int,
    nvlinks: dict[tuple[int, int], int],
    *,
    sockets: tuple[int, ...],
    switches: tuple[str, ...],
    compute: int | None = None,
    switched: bool | None = None,
    near: Path = Path.NODE,
) -> NodeTopology:
    """``nvlinks``: by pair, higher position first. ``switches``: the GPUs below each. ``near``: in a socket."""
    numa = [nth for nth, size in enumerate(sockets) for _ in range(size)]

    def link(i: int, j: int) -> Link:
        if i == j:
            return Link()
        shared = any({str(i), str(j)} <= set(switch) for switch in switches)
        path = Path.PIX if shared else near if numa[i] == numa[j] else Path.SYS
        number = nvlinks.get((max(i, j), min(i, j)), 0)
        return Link(nvlinks=number, path=path, switched=switched if number else None)

    gpus = tuple(Gpu(uuid=f"GPU-{at}", index=at, numa=(numa[at],), compute=compute) for at in range(count))
    return NodeTopology(gpus=gpus, links=tuple(tuple(link(i, j) for j in range(count)) for i in range(count)))
