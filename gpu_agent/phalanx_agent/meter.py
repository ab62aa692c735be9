"""How long each leased GPU was in which phase: cumulative milliseconds, from the monotonic clock, kept in a journal.

A counter only grows, so reports may be lost, doubled or reordered. The journal lets a restarted agent go on from where
the last one was: monotonic time runs on through the restart, so the time between belongs to the phase that was open.
After a reboot it does not, and the lease stays at what was written.

While a gang serves calls it is idle_warm, and `note_busy` moves time from idle_warm to busy: many short calls cost one
line a second, not two each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.core.clock import Clock
from phalanx.core.files import replace_file
from phalanx.core.messages import Counter
from phalanx.core.states import Phase

_COMPACT_AT_BYTES = 1 << 20
_BUSY_LINE_EVERY_MS = 1000


@dataclass(slots=True)
class _Lease:
    gpus: tuple[str, ...]
    phase: Phase
    since_ms: int
    counted: dict[str, int] = field(default_factory=dict[str, int])
    busy_source_ms: int = 0
    written_ms: int = 0

    def observe(self, now_ms: int, *, busy_ms: int = 0) -> None:
        """Counts the time since the last look; ``busy_ms`` of it at most was busy."""
        elapsed = max(0, now_ms - self.since_ms)
        self.since_ms = max(self.since_ms, now_ms)
        busy = min(max(0, busy_ms), elapsed) if self.phase is Phase.IDLE_WARM else 0
        self._count(Phase.BUSY, busy)
        self._count(self.phase, elapsed - busy)

    def _count(self, phase: Phase, ms: int) -> None:
        if ms:
            self.counted[phase.value] = self.counted.get(phase.value, 0) + ms


class Meter:
    """Counts for every lease of the node. Opening, phases and closing are on disk within one fsync."""

    def __init__(self, path: Path, *, clock: Clock, boot_id: str) -> None:
        """Reads the journal. Raises OSError where the directory cannot be written."""
        self._clock = clock
        self._boot_id = boot_id
        self._path = path
        self._leases = _read(path, boot_id, clock.monotonic_ms())
        self._file = path.open("ab")
        if path.stat().st_size:
            self._file.write(b"\n")
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="meter")
        self._size = path.stat().st_size
        self._compact_if_grown()

    def open(self, gang_id: str, gpus: Iterable[str]) -> None:
        """Begins a lease in its prepare phase; one that is open already goes on."""
        if gang_id not in self._leases:
            self._leases[gang_id] = _Lease(tuple(gpus), Phase.PREPARE, self._clock.monotonic_ms())
            self._write(gang_id)

    def enter(self, gang_id: str, phase: Phase) -> None:
        """The gang is in ``phase`` from now on."""
        lease = self._leases.get(gang_id)
        if lease is None or lease.phase is phase:
            return
        lease.observe(self._clock.monotonic_ms())
        lease.phase = phase
        self._write(gang_id)

    def note_busy(self, gang_id: str, total_ms: int) -> None:
        """Calls were at the ranks for ``total_ms`` since the agent attached to this gang's keeper."""
        lease = self._leases.get(gang_id)
        if lease is None:
            return
        self._observe_busy(gang_id, lease, total_ms - lease.busy_source_ms)
        lease.busy_source_ms = max(lease.busy_source_ms, total_ms)

    def catch_up(self, gang_id: str, keeper_busy_ms: int) -> None:
        """After a restart, or at the gang's end: the keeper's own total says how much of the time since was busy."""
        lease = self._leases.get(gang_id)
        if lease is not None:
            lease.busy_source_ms = 0
            self._observe_busy(gang_id, lease, keeper_busy_ms - lease.counted.get(Phase.BUSY.value, 0))

    def counters(self, gang_id: str) -> tuple[Counter, ...]:
        """Returns milliseconds so far, per GPU and phase. A CPU function holds no GPU and has none."""
        lease = self._leases.get(gang_id)
        if lease is None:
            return ()
        if lease.phase is not Phase.IDLE_WARM:
            lease.observe(self._clock.monotonic_ms())
        return tuple(
            Counter(gpu=gpu, phase=Phase(phase), ms=ms) for gpu in lease.gpus for phase, ms in lease.counted.items()
        )

    def close(self, gang_id: str) -> None:
        """The lease is over and stored elsewhere."""
        if self._leases.pop(gang_id, None) is not None:
            self._append({"gang": gang_id, "closed": True}, durable=True)

    def retain(self, gang_ids: Iterable[str]) -> None:
        """Drops leases of gangs that no longer exist here."""
        for gang_id in set(self._leases) - set(gang_ids):
            self.close(gang_id)

    def stop(self) -> None:
        """Writes what is counted so far, and closes the journal."""
        for gang_id, lease in self._leases.items():
            lease.observe(self._clock.monotonic_ms())
            self._write(gang_id)
        self._writer.shutdown(wait=True)
        self._file.close()

    def _observe_busy(self, gang_id: str, lease: _Lease, busy_ms: int) -> None:
        now = self._clock.monotonic_ms()
        lease.observe(now, busy_ms=busy_ms)
        if now - lease.written_ms >= _BUSY_LINE_EVERY_MS:
            self._write(gang_id, durable=False)

    def _write(self, gang_id: str, *, durable: bool = True) -> None:
        lease = self._leases[gang_id]
        lease.written_ms = self._clock.monotonic_ms()
        self._append(self._line(gang_id, lease), durable=durable)

    def _line(self, gang_id: str, lease: _Lease) -> dict[str, Any]:
        return {
            "gang": gang_id,
            "boot": self._boot_id,
            "gpus": lease.gpus,
            "phase": lease.phase.value,
            "at_ms": lease.since_ms,
            "counted": dict(lease.counted),
        }

    def _append(self, line: dict[str, Any], *, durable: bool) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        self._size += len(data)
        self._writer.submit(self._write_bytes, data, durable)
        self._compact_if_grown()

    def _write_bytes(self, data: bytes, durable: bool) -> None:
        self._file.write(data)
        self._file.flush()
        if durable:
            os.fdatasync(self._file.fileno())

    def _compact_if_grown(self) -> None:
        """Rewrites a journal that has grown, with one line per open lease."""
        if self._size < _COMPACT_AT_BYTES:
            return
        lines = [json.dumps(self._line(g, lease), separators=(",", ":")) + "\n" for g, lease in self._leases.items()]
        self._size = sum(map(len, lines))
        self._writer.submit(self._rewrite, "".join(lines))

    def _rewrite(self, text: str) -> None:
        replace_file(self._path, text, durable=True)
        self._file.close()
        self._file = self._path.open("ab")


def _read(path: Path, boot_id: str, now_ms: int) -> dict[str, _Lease]:
    leases: dict[str, _Lease] = {}
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    for line in lines:
        try:
            entry = json.loads(line)
            if entry.get("closed"):
                leases.pop(entry["gang"], None)
            else:
                leases[entry["gang"]] = _lease(entry, boot_id, now_ms)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return leases


def _lease(entry: dict[str, Any], boot_id: str, now_ms: int) -> _Lease:
    same_boot = entry["boot"] == boot_id
    return _Lease(
        gpus=tuple(entry["gpus"]),
        phase=Phase(entry["phase"]),
        since_ms=int(entry["at_ms"]) if same_boot else now_ms,
        counted={str(k): int(v) for k, v in entry["counted"].items()},
    )
