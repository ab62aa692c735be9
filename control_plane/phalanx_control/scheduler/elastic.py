"""How large a gang becomes that takes between so many and so many GPUs: the most first. Pure."""

from __future__ import annotations

from collections.abc import Callable

from phalanx_control.scheduler.need import Need


def sizes(need: Need, *, largest: int, nodes_with: Callable[[int], int]) -> list[Need]:
    """Returns the need in each size that may fit: the most GPUs first, and of the same number the fewest nodes, or the
    most where it is to be spread.

    ``largest``: GPUs of a node at most. ``nodes_with``: how many nodes can give a part of so many GPUs.
    """
    found: list[tuple[int, int]] = []
    for each in range(1, min(largest, need.most) + 1):
        most = min(nodes_with(each), need.most // each)
        found += ((each * count, count) for count in _counts(need, most) if each * count >= need.least)
    spread = -1 if need.spec.resources.spread else 1
    return [need.sized(gpus, nodes=count) for gpus, count in sorted(found, key=lambda s: (-s[0], spread * s[1]))]


def _counts(need: Need, most: int) -> range:
    wanted = 1 if need.spec.launch == "single" or need.node else need.spec.resources.nodes
    if wanted:
        return range(wanted, wanted + 1) if wanted <= most else range(0)
    return range(1, most + 1)
