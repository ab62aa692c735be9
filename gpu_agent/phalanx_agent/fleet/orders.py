"""What a fleet is told, as one line of JSON: where the control plane is, and which nodes to play. Data only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.core.topology.codec import from_json
from phalanx.core.topology.node import NodeTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedMachine:
    """One node: what it looks like, and the one-time token with which it enrols."""

    node_id: str
    topology: NodeTopology
    join_token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """``control``: host:port of the clients' ports. ``call_ms``: how long each call of a played gang takes.

    ``folder``: there, empty, for the nodes' keys, and gone when the fleet ends.
    """

    control: tuple[str, ...]
    ca: Path
    folder: Path
    call_ms: int
    machines: tuple[PlayedMachine, ...]


def read_orders(line: str) -> Orders:
    """Reads ``{"control", "ca", "folder", "call_ms", "topologies": {name: JSON}, "nodes": [[id, name, token]…]}``.

    Raises ValueError, KeyError or TypeError for anything else.
    """
    said: dict[str, Any] = json.loads(line)
    looks = {name: from_json(text) for name, text in said["topologies"].items()}
    return Orders(
        control=tuple(said["control"]),
        ca=Path(said["ca"]),
        folder=Path(said["folder"]),
        call_ms=int(said["call_ms"]),
        machines=tuple(
            PlayedMachine(node_id=node_id, topology=looks[name], join_token=token)
            for node_id, name, token in said["nodes"]
        ),
    )
