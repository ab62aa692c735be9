"""A gang's logged calls on disk, so that a restarted agent knows whose outcomes its keeper holds.

One JSON line per call that the control plane knows, and one when its outcome is acknowledged. It guards against the
end of the agent, not of the machine: nothing is fsynced. A torn last line is ignored. Where the disk does not take a
line, or the gang's folder has gone with the gang, the agent goes on without it: a second loss would have to follow.
"""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path
from typing import IO, Any

from phalanx_agent.dataplane.calls import CallRecord, Origin, Step

log = logging.getLogger(__name__)


class CallJournal:
    """Appends to one file. With no path it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def opened(self, record: CallRecord) -> None:
        """The call was handed to the keeper, or became a logged one."""
        self._write(
            {
                "id": record.id.hex(),
                "direct": record.origin is not Origin.OFFERED,
                "attempt": record.attempt,
                "fence": record.fence,
                "timeout_ms": record.timeout_ms,
                "user": record.user,
            }
        )

    def closed(self, record: CallRecord) -> None:
        """Its outcome is durable elsewhere."""
        self._write({"done": record.id.hex()})

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # what it still held does not fit either
                self._file.close()
            self._file = None

    def _write(self, line: dict[str, Any]) -> None:
        if self._path is None:
            return
        try:
            if self._file is None:
                self._file = self._path.open("a", buffering=1)
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        except OSError as e:
            log.warning("a call was not noted on disk", extra={"journal": str(self._path), "reason": str(e)})


def open_calls(path: Path | None) -> list[CallRecord]:
    """Returns the calls that were handed to the keeper and not acknowledged, in order."""
    if path is None or not path.exists():
        return []
    records: dict[str, CallRecord] = {}
    for line in path.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
            if "done" in entry:
                records.pop(entry["done"], None)
            else:
                records[entry["id"]] = _record(entry)
        except (ValueError, KeyError, TypeError):
            continue
    return list(records.values())


def _record(entry: dict[str, Any]) -> CallRecord:
    return CallRecord(
        id=bytes.fromhex(entry["id"]),
        origin=Origin.ADOPTED if entry["direct"] else Origin.OFFERED,
        queue_key="adopted",
        user=str(entry["user"]),
        attempt=int(entry["attempt"]),
        fence=int(entry["fence"]),
        timeout_ms=int(entry["timeout_ms"]),
        step=Step.SENT,
        reported=True,
    )
