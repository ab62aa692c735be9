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
    reached, todo = {start}, [start]
    while todo:
        row = topology.links[todo.pop()] if topology.links else ()
        near = [at for at, link in enumerate(row) if link.nvlinks and at not in reached]
        reached.update(near)
        todo.extend(near)
    return reached
