"""Which ranks stand together on each axis of a plan: tensor, expert, data and pipeline parallel. Pure.

Tensor groups talk most and expert groups next, so these two are packed into nodes first, then into larger domains:
a group crosses a border only where too few ranks are left on one side. As many groups as can be stay whole at every
level. Data and pipeline parallel take what is left, in the order of the ranks, each pipeline stage side by side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from phalanx.core.errors import InvalidSpecError

Place = tuple[str, ...]
"""Where a rank is: the names of what it lies in, largest first, its node last. Of one length for all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Sizes of the groups. ``ep`` divides ``dp``: the experts are spread over that many of the data-parallel ranks."""

    tp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "ep", "dp", "pp"):
            if getattr(self, name) < 1:
                raise InvalidSpecError(f"{name}={getattr(self, name)}: give a whole number from 1")
        if self.dp % self.ep:
            raise InvalidSpecError(
                f"ep={self.ep} does not divide dp={self.dp}: experts are spread over the data-parallel ranks"
            )

    @property
    def world_size(self) -> int:
        return self.tp * self.dp * self.pp


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """``order[i]``: the rank at place i of the mesh, in which tp changes fastest, then dp (ep within it), then pp."""

    axes: Axes
    order: tuple[int, ...]

    def groups(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """Returns the groups of ranks along ``"tp"``, ``"ep"``, ``"dp"`` or ``"pp"``."""
        step, size = self._strides()[axis]
        block = step * size
        starts = (base + at for base in range(0, len(self.order), block) for at in range(step))
        return tuple(tuple(self.order[start + n * step] for n in range(size)) for start in starts)

    def _strides(self) -> dict[str, tuple[int, int]]:
        axes = self.axes
        return {
            "tp": (1, axes.tp),
            "ep": (axes.tp, axes.ep),
            "dp": (axes.tp, axes.dp),
            "pp": (axes.tp * axes.dp, axes.pp),
        }


def lay_out(axes: Axes, places: Sequence[Place]) -> Layout:
    """Returns which rank takes which place of the mesh.

    Args:
        axes: the sizes of the plan's groups.
        places: where each rank is, in rank order: the gang's nodes in the order of the fabric.

    Raises InvalidSpecError where the sizes do not make up the ranks.
    """
    if axes.world_size != len(places):
        raise InvalidSpecError(
            f"tp={axes.tp} x dp={axes.dp} x pp={axes.pp} is {axes.world_size} ranks, and the gang has {len(places)}"
        )
    ranks = [_Block((rank,), place) for rank, place in enumerate(places)]
    blocks = _packed(_packed(ranks, axes.tp), axes.ep)
    return Layout(axes=axes, order=tuple(rank for block in blocks for rank in block.ranks))


@dataclass(frozen=True, slots=True)
class _Block:
    """Ranks that stay together, and the smallest thing that holds all of them."""

    ranks: tuple[int, ...]
    place: Place


def _packed(blocks: Sequence[_Block], size: int) -> list[_Block]:
    """Joins blocks by ``size``, those of one node first, then what is left of each larger thing."""
    if size == 1:
        return list(blocks)
    made: list[_Block] = []
    left = list(blocks)
    for depth in range(max(len(block.place) for block in blocks), -1, -1):
        together: defaultdict[Place, list[_Block]] = defaultdict(list)
        for block in left:
            together[block.place[:depth]].append(block)
        rest: list[_Block] = []
        for place, alike in together.items():
            whole = len(alike) - len(alike) % size
            made += _joined(alike[:whole], size, place)
            rest += alike[whole:]
        left = sorted(rest, key=lambda block: block.ranks)
    return sorted(made, key=lambda block: block.ranks)


def _joined(blocks: Sequence[_Block], size: int, place: Place) -> Iterator[_Block]:
    for at in range(0, len(blocks), size):
        yield _Block(tuple(rank for block in blocks[at : at + size] for rank in block.ranks), place)
