"""What ranks found when they verified the links of this node, kept over restarts of the agent.

One file, `preflight.json` in the state directory, holds it for this boot: after another one cables, firmware and
drivers may be others. `phalanx-agent clear-gpu` takes a GPU's pairs out; whoever changes the file holds its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
from collections.abc import Generator, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phalanx.core.files import replace_file
from phalanx.core.topology.verified import PairCheck, pair_of

log = logging.getLogger(__name__)

FILE = "preflight.json"


class PairBook:
    """The newest result of each pair. Without a file that can be written, memory remains."""

    def __init__(self, path: Path, *, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._seen: tuple[int, int] = (0, 0)
        self._unread = False
        self.checks: dict[tuple[str, str], PairCheck] = {}
        self.all_reduce_gbyte_s: float | None = None
        """Over all GPUs of the node."""
        self.refresh()

    def refresh(self) -> bool:
        """Reads the file again where somebody else has changed it; says whether that was so.

        Where it cannot be read, all stays as it was: a pair that copies wrongly must not come back by that.
        """
        try:
            seen = self._stamp()
            changed = seen != self._seen
            if changed:
                self.checks, self.all_reduce_gbyte_s = _read(self._path, self._boot_id)
                self._seen = seen
        except OSError as e:
            if not self._unread:
                log.error("verified links cannot be read", extra={"file": str(self._path), "reason": str(e)})  # noqa: TRY400
            self._unread = True
            return False
        self._unread = False
        return changed

    def note(self, checks: Iterable[PairCheck], all_reduce_gbyte_s: float | None) -> None:
        """Writes results down. None: the all-reduce was not over all GPUs."""
        with self._changing():
            self.checks.update((check.gpus, check) for check in checks)
            if all_reduce_gbyte_s is not None:
                self.all_reduce_gbyte_s = all_reduce_gbyte_s

    def forget(self, uuid: str) -> None:
        """Makes the pairs of a GPU untried again."""
        with self._changing():
            self.checks = {pair: check for pair, check in self.checks.items() if uuid not in pair}

    def wrong(self) -> list[PairCheck]:
        """Returns the pairs whose copies came out wrong."""
        return [check for check in self.checks.values() if not check.copies]

    @contextlib.contextmanager
    def _changing(self) -> Generator[None]:
        """What is changed within the block is written after it. Not synced: after a power cut it is another boot."""
        try:
            lock = self._path.with_suffix(".lock").open("w")
        except OSError as e:
            yield
            self._only_in_memory(e)
            return
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.refresh()
            yield
            try:
                replace_file(self._path, json.dumps(self._as_json()))
            except OSError as e:
                self._only_in_memory(e)
            with contextlib.suppress(OSError):
                self._seen = self._stamp()

    def _only_in_memory(self, error: OSError) -> None:
        log.error("verified links are kept in memory only", extra={"file": str(self._path), "reason": str(error)})

    def _as_json(self) -> dict[str, Any]:
        return {
            "boot_id": self._boot_id,
            "pairs": [asdict(check) for check in self.checks.values()],
            "all_reduce_gbyte_s": self.all_reduce_gbyte_s,
        }

    def _stamp(self) -> tuple[int, int]:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return 0, 0
        return stat.st_ino, stat.st_mtime_ns


def _read(path: Path, boot_id: str) -> tuple[dict[tuple[str, str], PairCheck], float | None]:
    """Returns what the file holds, nothing where it is missing or broken. Raises OSError where it cannot be read."""
    try:
        data = json.loads(path.read_text())
        if data["boot_id"] != boot_id:
            return {}, None
        checks = [
            PairCheck(
                gpus=pair_of(*map(str, each["gpus"])),
                gbyte_s=float(each["gbyte_s"]),
                copies=bool(each["copies"]),
                at_ms=int(each["at_ms"]),
            )
            for each in data["pairs"]
        ]
        rate = data["all_reduce_gbyte_s"]
        return {check.gpus: check for check in checks}, None if rate is None else float(rate)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}, None
