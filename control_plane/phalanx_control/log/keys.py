"""Every key of the store, named here and nowhere else.

All keys of a cell share one hash tag, so that a script may touch them together on a cluster. A key has a TTL or
stands in :attr:`Keys.permanent`; a test fixture fails on any other.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.errors import InvalidSpecError
from phalanx.core.spec import check_name

BODY_TTL_MS = 7 * 24 * 3600 * 1000
"""How long arguments and results stay readable; the workspace's usage counter lives as long as its youngest body."""
WORKSPACE_CAP_BYTES = 1 << 30
"""Bytes of bodies that one workspace may have in the store."""
LIVE_MAX_ENTRIES = 10_000
"""Length of the live stream, about; older facts are dropped."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one cell."""

    cell: str

    def __post_init__(self) -> None:
        check_name("cell name", self.cell)
        if set("{}:") & set(self.cell):
            raise InvalidSpecError(f"cell name {self.cell!r}: leave out braces and colons")

    @property
    def tag(self) -> str:
        return f"{{px:{self.cell}}}"

    @property
    def log(self) -> str:
        """Stream: one entry ``<seq>-0`` per batch."""
        return f"{self.tag}:log"

    @property
    def leader(self) -> str:
        """Hash: epoch, leader, beat, address."""
        return f"{self.tag}:leader"

    @property
    def live(self) -> str:
        """Capped stream of fast facts; may lose entries."""
        return f"{self.tag}:live"

    @property
    def snapshot(self) -> str:
        """Hash: seq and bytes of the newest snapshot, so that every replica can start, whatever folders it sees."""
        return f"{self.tag}:snapshot"

    @property
    def replicas(self) -> str:
        """Hash with a TTL: replica → schema version that it reads, and the store's ms until which that counts."""
        return f"{self.tag}:replicas"

    def body(self, name: str) -> str:
        """String with a TTL: the bytes of one argument or result."""
        return f"{self.tag}:body:{name}"

    def usage(self, workspace: str) -> str:
        """Hash with a TTL: bytes of a workspace's bodies by the time at which they expire."""
        return f"{self.tag}:usage:{workspace}"

    @property
    def permanent(self) -> frozenset[str]:
        """Keys without a TTL."""
        return frozenset({self.log, self.leader, self.live, self.snapshot})
