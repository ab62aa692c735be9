"""Rank prefixes, and folding of lines that several ranks wrote alike. Pure: lines in, lines out.

[r3 n1] loss 0.25          one rank, with the node's place in the gang
[r0-7] epoch 3             eight ranks wrote the same line
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OutLine:
    """One line of one rank, without its newline. ``node`` is the node's place in the gang."""

    rank: int
    node: int
    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class Folded:
    """One line as shown: of all ``ranks``, which are sorted."""

    ranks: tuple[int, ...]
    node: int
    stream: str
    text: str

    @property
    def prefix(self) -> str:
        """``[r3 n1]`` for one rank, ``[r0-2,5]`` for several."""
        if len(self.ranks) == 1:
            return f"[r{self.ranks[0]} n{self.node}]"
        return f"[r{spans(self.ranks)}]"


def fold(lines: Iterable[OutLine]) -> list[Folded]:
    """Folds lines that arrived together. Each rank's own order is kept; equal heads of several ranks become one."""
    queues: dict[int, deque[OutLine]] = {}
    for line in lines:
        queues.setdefault(line.rank, deque()).append(line)
    out: list[Folded] = []
    while queues:
        head = next(iter(queues.values()))[0]
        same = [rank for rank, queue in queues.items() if (queue[0].stream, queue[0].text) == (head.stream, head.text)]
        out.append(Folded(tuple(sorted(same)), head.node, head.stream, head.text))
        for rank in same:
            queues[rank].popleft()
            if not queues[rank]:
                del queues[rank]
    return out


def spans(numbers: Sequence[int]) -> str:
    """Writes sorted numbers as ranges: 0-2,5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
