"""GPUs that the hardware itself put out of use, kept over restarts of the agent: a restart heals nothing.

One file, `health.json` in the state directory, holds for this boot which GPUs are out and why, and their last XIDs. It
ends with the boot, with a reset that shows (the GPU's error counters begin anew), or when a person clears it:

    phalanx-agent clear-gpu --state-dir DIR UUID

which a running agent sees at its next look. Both change the file under a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phalanx.core.files import replace_file
from phalanx.core.states import GpuState
from phalanx_agent.discovery.health import DAY_MS, PastXid

log = logging.getLogger(__name__)

FILE = "health.json"
_XIDS_KEPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """``ecc_errors``: what the GPU had counted when it was put out of use; fewer later: it was reset."""

    state: GpuState
    reason: str
    xid: int
    ecc_errors: int = 0


class Cordons:
    """Times are monotonic milliseconds of this boot. Without a file that can be written, memory remains."""

    def __init__(self, path: Path, *, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._seen: tuple[int, int] = (0, 0)
        self._unread = False
        self._cordons: dict[str, Cordon] = {}
        self._past: dict[str, tuple[PastXid, ...]] = {}
        self.refresh()

    def get(self, uuid: str) -> Cordon | None:
        return self._cordons.get(uuid)

    def past(self, uuid: str) -> tuple[PastXid, ...]:
        return self._past.get(uuid, ())

    def refresh(self) -> None:
        """Reads the file again where somebody has changed it; where it cannot be read, all stays as it was."""
        try:
            seen = self._stamp()
            if seen != self._seen:
                self._cordons, self._past = _read(self._path, self._boot_id)
                self._seen = seen
        except OSError as e:
            if not self._unread:
                log.error("gpu health cannot be read", extra={"file": str(self._path), "reason": str(e)})  # noqa: TRY400
            self._unread = True
        else:
            self._unread = False

    def note(self, uuid: str, xid: PastXid) -> None:
        """Remembers an XID for a day."""
        with self._changing():
            kept = [past for past in self.past(uuid) if xid.at_ms - past.at_ms <= DAY_MS]
            self._past[uuid] = (*kept, xid)[-_XIDS_KEPT:]

    def put(self, uuid: str, cordon: Cordon) -> None:
        """Puts a GPU out of use. The first fault is the reason, whatever follows from it; only a loss says more."""
        known = self._cordons.get(uuid)
        if known is not None and (known.state is GpuState.DOWN or cordon.state is not GpuState.DOWN):
            return
        with self._changing():
            self._cordons[uuid] = cordon

    def lift(self, uuid: str) -> None:
        """Gives a GPU back to use, and forgets what it reported."""
        with self._changing():
            self._cordons.pop(uuid, None)
            self._past.pop(uuid, None)

    def all(self) -> dict[str, Cordon]:
        return dict(self._cordons)

    @contextlib.contextmanager
    def _changing(self) -> Generator[None]:
        """What is changed within the block is written after it. Not synced: after a power cut it is another boot."""
        try:
            lock = self._path.with_suffix(".lock").open("w")
        except OSError as e:
            yield
            log.error("gpu health is kept in memory only", extra={"file": str(self._path), "reason": str(e)})  # noqa: TRY400
            return
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.refresh()
            yield
            try:
                replace_file(self._path, json.dumps(self._as_json()))
            except OSError as e:
                log.error("gpu health is kept in memory only", extra={"file": str(self._path), "reason": str(e)})  # noqa: TRY400
            with contextlib.suppress(OSError):
                self._seen = self._stamp()

    def _as_json(self) -> dict[str, Any]:
        return {
            "boot_id": self._boot_id,
            "cordons": {uuid: asdict(cordon) for uuid, cordon in self._cordons.items()},
            "xids": {uuid: [asdict(past) for past in xids] for uuid, xids in self._past.items()},
        }

    def _stamp(self) -> tuple[int, int]:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return 0, 0
        return stat.st_ino, stat.st_mtime_ns


def boot_of(path: Path) -> str:
    """Returns the boot that the file is of; "" where there is none."""
    try:
        return str(json.loads(path.read_text())["boot_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _read(path: Path, boot_id: str) -> tuple[dict[str, Cordon], dict[str, tuple[PastXid, ...]]]:
    """Returns what the file holds, nothing where it is missing or broken. Raises OSError where it cannot be read."""
    try:
        data = json.loads(path.read_text())
        if data["boot_id"] != boot_id:
            return {}, {}
        cordons = {
            uuid: Cordon(
                state=GpuState(each["state"]),
                reason=str(each["reason"]),
                xid=int(each["xid"]),
                ecc_errors=int(each["ecc_errors"]),
            )
            for uuid, each in data["cordons"].items()
        }
        past = {
            uuid: tuple(
                PastXid(xid=int(p["xid"]), at_ms=int(p["at_ms"]), workspaces=tuple(map(str, p["workspaces"])))
                for p in xids
            )
            for uuid, xids in data["xids"].items()
        }
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return {}, {}
    return cordons, past
