"""What user code sees of its node's topology. Nothing is read or parsed before it asks."""

from __future__ import annotations

from pathlib import Path

from phalanx.core.topology.node import NodeTopology


class NodeView:
    """``path``: the file that the agent wrote; "" where the topology is not known. ``gpus``: UUIDs of the gang here."""

    def __init__(self, path: str, gpus: tuple[str, ...]) -> None:
        self._path = path
        self._gpus = gpus
        self._topology: NodeTopology | None = None

    def read(self) -> NodeTopology | None:
        """Returns the topology of the gang's GPUs here, in rank order; None where it is not known."""
        if self._topology is None and self._path:
            from phalanx.core.topology.codec import from_json  # few functions ask
            from phalanx.core.topology.errors import UnreadableTopologyError
            from phalanx.core.topology.restricted import restricted

            try:
                self._topology = restricted(from_json(Path(self._path).read_text(encoding="utf-8")), self._gpus)
            except (OSError, UnreadableTopologyError):
                self._path = ""
        return self._topology
