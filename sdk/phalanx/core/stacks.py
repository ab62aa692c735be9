"""Where ranks stand: what faulthandler writes, as frames, and ranks that stand in one place together. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
_MORE_THREADS = "..."
_OF_PYTHON = re.compile(r"/lib/python3\.\d+/")
_OF_COLLECTIVES = "/torch/distributed/"


@dataclass(frozen=True, slots=True)
class Place:
    """One frame of a Python stack."""

    file: str
    line: int
    function: str

    @property
    def short(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line}"

    @property
    def shown(self) -> str:
        """The file as people know it, and the line: of an installed package without where packages are."""
        return f"{self.file.rpartition('/site-packages/')[2]}:{self.line}"

    @property
    def is_users(self) -> bool:
        """No frame of Python's own library or of an installed package."""
        return not _OF_PYTHON.search(self.file) and not self.file.startswith("<")

    @property
    def is_of_collectives(self) -> bool:
        """A frame of torch's own: a rank whose innermost one is that waits for other ranks."""
        return _OF_COLLECTIVES in self.file


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStack:
    """The main thread of one rank, innermost frame first; empty: it runs no user code, or did not answer."""

    rank: int
    node_id: str = ""
    places: tuple[Place, ...] = ()

    @property
    def where(self) -> Place | None:
        """The innermost frame of the user's own code, or of any where there is none."""
        return next((p for p in self.places if p.is_users), self.places[0] if self.places else None)


def main_thread(dump: str, *, caller: str = "", without: Sequence[str] = ()) -> tuple[Place, ...]:
    """Reads the main thread out of one dump or the last of several: what the file ``caller`` called, if it is there,
    leaving out files whose names begin as one of ``without``.

    faulthandler writes threads from the youngest to the oldest, which is the main one. Beyond the hundredth it writes
    none: then nothing is known of the main one.
    """
    places = _main(dump)
    called = next((i for i, p in enumerate(places) if p.file == caller), len(places))
    return tuple(p for p in places[:called] if not p.file.startswith(tuple(without)))


def caller_of(dump: str, file: str) -> str:
    """Returns the innermost function of ``file`` on the main thread of the same dump; empty where it is not there."""
    return next((p.function for p in _main(dump) if p.file == file), "")


def _main(dump: str) -> list[Place]:
    places: list[Place] = []
    for line in dump.splitlines():
        if _THREAD.match(line) or line == _MORE_THREADS:
            places = []
        elif (found := _FRAME.match(line)) is not None:
            number = found["line"]
            places.append(Place(found["file"], int(number) if number.isdigit() else 0, found["function"]))
    return places


def stack_text(places: Sequence[Place]) -> str:
    """Returns a stack as a traceback prints it, the innermost frame last; empty where none is known."""
    lines = [f'  File "{p.file}", line {p.line}, in {p.function}' for p in reversed(places)]
    return "\n".join(["Stack (most recent call last):", *lines]) if lines else ""


def alike(stacks: Sequence[RankStack]) -> list[tuple[tuple[int, ...], RankStack]]:
    """Returns the ranks that stand in the same place, with one of their stacks; in the order of their first ranks."""
    found: dict[tuple[Place, ...], list[RankStack]] = {}
    for stack in sorted(stacks, key=lambda s: s.rank):
        found.setdefault(stack.places, []).append(stack)
    return [(tuple(s.rank for s in group), group[0]) for group in found.values()]


def ranks_text(ranks: Sequence[int]) -> str:
    """Returns ``rank 1``, ``ranks 0 and 2`` or ``ranks 0-3,5``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    return f"ranks {','.join(parts)}"
