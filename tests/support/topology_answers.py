"""The right answers that lie beside the sample topologies, and the same facts of a node that was read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from phalanx.core.topology.importers.text import labels_of
from phalanx.core.topology.node import NodeTopology, Path
from phalanx.core.topology.nvlink_islands import islands
from tests.support.topologies import sample

Answers = dict[str, str]
_NOT_ABOUT_READING = (
    "#", "source", "hardware", "form", "trap", "best ", "same optimum", "after tie-breaks", "canonical",
    "one-GPU request", "link model",
)  # fmt: skip


def answers_of(name: str) -> Answers:
    """Returns what comes before the first colon, and after it, for every line that is about what the text says."""
    lines = (line.strip() for line in sample(name).splitlines())
    kept = (line.partition(":") for line in lines if line and not line.startswith(_NOT_ABOUT_READING))
    return {key: value.strip() for key, _, value in kept}


def check(node: NodeTopology, key: str, answer: str) -> None:
    """Raises AssertionError where the node says something else, and KeyError for a key that nobody knows."""
    for prefix, checker in _CHECKERS.items():
        if key.startswith(prefix):
            checker(node, key, answer)
            return
    raise KeyError(f"no check for {key!r}")


def word_of(node: NodeTopology, one: int, two: int) -> str:
    link = node.links[one][two]
    return f"NV{link.nvlinks}" if link.nvlinks else str(link.path)


def pairs(node: NodeTopology) -> list[tuple[int, int]]:
    count = len(node.gpus)
    return [(one, two) for one in range(count) for two in range(one + 1, count)]


def _gpus(node: NodeTopology, _key: str, answer: str) -> None:
    assert [gpu.index for gpu in node.gpus] == list(range(int(answer)))


def _nics(node: NodeTopology, _key: str, answer: str) -> None:
    count, _, names = answer.partition(" ")
    assert len(node.nics) == int(count)
    for nic, label in zip(node.nics, _nic_labels(names), strict=True):
        assert nic.name == label or label.startswith("NIC")


def _nic_labels(names: str) -> list[str]:
    return [name for name in names.strip("()").split(", ") if name]


def _classes(node: NodeTopology, _key: str, answer: str) -> None:
    found = Counter(word_of(node, one, two) for one, two in pairs(node))
    expected = {} if answer.startswith("none") else dict(each.split(" x") for each in answer.split("; "))
    assert found == {_modern(word): int(count) for word, count in expected.items()}


def _modern(word: str) -> str:
    return "SYS" if word == "SOC" else word


def _pairs_at(node: NodeTopology, key: str, answer: str) -> None:
    word = _modern(key.removeprefix("pairs at "))
    expected = [(int(one), int(two)) for one, two in re.findall(r"\((\d+),(\d+)\)", answer)]
    assert [pair for pair in pairs(node) if word_of(node, *pair) == word] == expected


def _nvlink(node: NodeTopology, _key: str, answer: str) -> None:
    if answer == "none visible":
        assert not any(node.links[one][two].nvlinks for one, two in pairs(node))
    elif match := re.match(r"all-to-all, NV(\d+) on every pair", answer):
        assert {node.links[one][two].nvlinks for one, two in pairs(node)} == {int(match[1])}
    else:
        sums = {f"GPU{at}": str(sum(link.nvlinks or 0 for link in row)) for at, row in enumerate(node.links)}
        assert answer.startswith("sum of NV# per GPU (matrix row sum): ")
        assert sums == dict(re.findall(r"(GPU\d+)=(\d+)", answer))


def _islands(node: NodeTopology, _key: str, answer: str) -> None:
    assert islands(node) == tuple(tuple(map(int, each.split(","))) for each in re.findall(r"\{([\d,]+)\}", answer))


def _numa(node: NodeTopology, _key: str, answer: str) -> None:
    expected = dict(each.split("=") for each in answer.split(" "))
    assert {f"GPU{gpu.index}": gpu.numa for gpu in node.gpus} == {
        label: None if word in ("unknown", "N/A") else labels_of(word) for label, word in expected.items()
    }


def _closest(node: NodeTopology, key: str, answer: str) -> None:
    gpu = int(key.removeprefix("closest nics of GPU"))
    names, word = re.fullmatch(r"(\S+) at ([A-Z]+)(?: \(no local NIC\))?", answer).groups()  # pyright: ignore[reportOptionalMemberAccess]
    paths = [link.path for link in node.nic_links[gpu]]
    nearest = min((path for path in paths if path), key=lambda path: path.distance)
    assert nearest == Path(_modern(word))
    found = [at for at, path in enumerate(paths) if path == nearest]
    labels = names.split(",")
    if labels[0].startswith("NIC"):
        assert found == [int(label[3:]) for label in labels]
    else:
        assert [node.nics[at].name for at in found] == labels


def _cpus(node: NodeTopology, _key: str, answer: str) -> None:
    expected: dict[str, str] = {}
    for group in answer.split("; "):
        names, _, cpus = group.partition(" -> ")
        expected.update(dict.fromkeys(names.split("+"), cpus))
    assert {f"GPU{gpu.index}": gpu.cpus for gpu in node.gpus} == expected


def _memory_numa(node: NodeTopology, _key: str, answer: str) -> None:
    expected = dict(re.findall(r"(GPU\d+)=(\d+)", answer))
    assert {f"GPU{gpu.index}": str(gpu.memory_numa) for gpu in node.gpus} == expected


_CHECKERS: dict[str, Callable[[NodeTopology, str, str], None]] = {
    "gpus": _gpus,
    "nics": _nics,
    "gpu pair classes": _classes,
    "pairs at ": _pairs_at,
    "nvlink islands": _islands,
    "nvlink": _nvlink,
    "numa of each gpu": _numa,
    "closest nics of GPU": _closest,
    "cpu affinity": _cpus,
    "gpu memory numa id": _memory_numa,
}
