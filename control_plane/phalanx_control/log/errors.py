"""What can go wrong between the controller and the store.

ConnectionFailedError          (phalanx.core.errors: clients see UNAVAILABLE and try again)
├── StoreUnavailableError      the store does not answer or does not take writes; nothing was written
└── NotLeaderError             another replica leads; .address says which
PhalanxError
├── VolatileStoreError         the store would lose acknowledged writes
├── BodiesOverCapError         a workspace's bodies would exceed its cap; nothing was written
└── UnreadableLogError         a batch or snapshot that this version cannot read: it must not lead
LogError                       never leaves the controller
├── FencedOutError             another leader has taken over
├── OutOfOrderError            the batch is not the next one; .last_seq is what the store has
├── AppendUncertainError       the connection was lost: the batch is in the log, or it is not; or it is,
│                              and too few of the store's replicas are known to have it
└── LogLostError               the store has less than it acknowledged
"""

from __future__ import annotations

from phalanx.core.errors import ConnectionFailedError, PhalanxError


class StoreUnavailableError(ConnectionFailedError):
    hint = "try again; `gpuctl doctor` says what the store lacks"


class NotLeaderError(ConnectionFailedError):
    """``address`` is the leader's, empty while there is none."""

    hint = "try again: a leader is chosen within five seconds"

    def __init__(self, address: str) -> None:
        super().__init__(f"this replica does not lead; the leader is at {address or 'no known address yet'}")
        self.address = address


class VolatileStoreError(PhalanxError):
    code = "VOLATILE-STORE"


class BodiesOverCapError(PhalanxError):
    code = "WORKSPACE-FULL"

    def __init__(self, workspace: str, cap_bytes: int) -> None:
        super().__init__(
            f"workspace {workspace!r} has {cap_bytes:,} bytes of arguments and results in the store, its limit",
            hint="pass large values by blob, or wait until old results expire",
        )
        self.workspace = workspace


class UnreadableLogError(PhalanxError):
    code = "UNREADABLE-LOG"
    hint = "upgrade this replica; it serves reads of what it knew and does not lead"


class LogError(Exception):
    """The base of what the controller resolves by itself."""


class FencedOutError(LogError):
    def __init__(self, epoch: int, leader_id: str) -> None:
        super().__init__(f"epoch {epoch} of leader {leader_id or 'nobody'} stands in the store")
        self.epoch = epoch
        self.leader_id = leader_id


class OutOfOrderError(LogError):
    def __init__(self, seq: int, last_seq: int) -> None:
        super().__init__(f"batch {seq} does not follow {last_seq}, the last one in the store")
        self.last_seq = last_seq


class AppendUncertainError(LogError):
    pass


class LogLostError(LogError):
    pass
