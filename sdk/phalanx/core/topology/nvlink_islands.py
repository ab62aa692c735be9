"""Which GPUs of a node reach each other over NVLink, directly or through others."""

from __future__ import annotations

from phalanx.core.topology.node import NodeTopology


def islands(topology: NodeTopology) -> tuple[tuple[int, ...], ...]:
    """Returns positions in `gpus`, each in one island, lowest first. A link that is unknown joins nothing."""
    left = list(range(len(topology.gpus)))
    found: list[tuple[int, ...]] = []
    while left:
        island = _reached(topology, left[0])
        found.append(tuple(sorted(island)))
        left = [at for at in left if at not in island]
    return tuple(found)


def _reached(topology: NodeTopology, start: int) -> set[int]:
    reached: set[int] = set()
    fresh = {start}
    while fresh:
        reached |= fresh
        rows = [topology.links[at] for at in fresh] if topology.links else []
        fresh = {at for row in rows for at, link in enumerate(row) if link.nvlinks} - reached
    return reached
