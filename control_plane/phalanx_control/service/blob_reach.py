"""Whether every replica of the cell sees the same blobs, so that a large body survives a fail-over.

Replicas tell each other the identity of their blob store with every forwarded request, proved with the cell's secret.
A standby whose store is not the leader's, and a leader that has heard of such a standby, refuse large bodies, unless
``--blobs-shared`` declares that it does not matter. A cell with one replica is never in doubt: agents and clients
reach its folder through it.
"""

from __future__ import annotations

import hmac

from phalanx.core.errors import NoBlobStoreError
from phalanx_control.certificates import derive

BLOBS_KEY = "px-blobs"


class BlobReach:
    """What this replica knows of the others' blob stores."""

    def __init__(self, cell_secret: bytes, identity: str, *, declared_shared: bool) -> None:
        self._secret = cell_secret
        self._identity = identity
        self._declared = declared_shared
        self._foreign: set[str] = set()

    @property
    def shared(self) -> bool:
        """False once another replica is known to use a different store."""
        return self._declared or not self._foreign

    def statement(self) -> str:
        """Returns what this replica tells the others, as metadata text."""
        return f"{self._identity}.{self._proof(self._identity)}"

    def heard(self, statement: str) -> None:
        """Takes another replica's statement; ignores one that the cell's secret did not make."""
        identity, _, proof = statement.partition(".")
        if identity != self._identity and hmac.compare_digest(proof.encode(), self._proof(identity).encode()):
            self._foreign.add(identity)

    def require(self, what: str) -> None:
        """Raises NoBlobStoreError when ``what`` could be lost with this replica."""
        if not self.shared:
            raise NoBlobStoreError(
                f"{what} is refused: the replicas of this cell keep large values in different folders",
                hint="start every replica with the same --blobs folder and --blobs-shared, or pass values up to 64 KiB",
            )

    def _proof(self, identity: str) -> str:
        return derive(self._secret, "blobs", identity).hex()
