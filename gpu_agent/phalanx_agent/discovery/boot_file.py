"""Facts of this boot on disk: one small JSON file that outlives its program, and that another program may change too.

What is changed counts in memory at once. It is saved by `save`: under the file's lock, on top of what stands there by
then, so that nobody's change is lost. Many changes cost one write where `save` is called later, in a thread. Facts of
another boot, and a file that holds no facts, are none. It knows nothing of what the facts mean.
"""

from __future__ import annotations

import fcntl
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from phalanx.core.files import replace_file

log = logging.getLogger(__name__)

F = TypeVar("F")
Stamp = tuple[int, int]
_NO_FILE: Stamp = (0, 0)
_MOST_UNSAVED = 1000
"""Of changes that a broken disk refuses; the facts hold them all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(Generic[F]):
    """How facts are written. ``read`` may raise KeyError, TypeError, ValueError or AttributeError."""

    what: str
    empty: F
    read: Callable[[dict[str, Any]], F]
    write: Callable[[F], dict[str, Any]]


class BootFile(Generic[F]):
    """Threads may share it. Without a file that can be written, memory remains.

    ``later`` is called after each change, to have `save` called soon; without it each change is saved at once.
    """

    def __init__(self, path: Path, form: Form[F], *, boot_id: str, later: Callable[[], None] | None = None) -> None:
        self._path = path
        self._form = form
        self._boot_id = boot_id
        self._later = later or self.save
        self._guard = threading.Lock()
        self._saving = threading.Lock()
        self._unsaved: list[Callable[[F], F]] = []
        self._seen = _NO_FILE
        self._unread = False
        self.facts = form.empty
        self.refresh()

    def change(self, change: Callable[[F], F]) -> None:
        """Replaces the facts by what ``change`` makes of them; it is called again on what others wrote meanwhile."""
        with self._guard:
            self.facts = change(self.facts)
            self._unsaved.append(change)
        self._later()

    def refresh(self) -> bool:
        """Reads the file again where somebody else has changed it; says whether that was so.

        Where it cannot be read, all stays as it was: a fault must not be forgotten by that.
        """
        if not self._saving.acquire(blocking=False):
            return False  # a save is at it, and reads the file itself
        try:
            return self._refresh()
        finally:
            self._saving.release()

    def _refresh(self) -> bool:
        try:
            seen = self._stamp()
            changed = seen != self._seen
            if changed:
                self._take(self._read())
                self._seen = seen
        except OSError as e:
            if not self._unread:
                self._complain("cannot be read", e)
            self._unread = True
            return False
        self._unread = False
        return changed

    def save(self) -> None:
        """Writes what is not saved yet. Blocking. Not synced: after a power cut it is another boot."""
        with self._saving:
            if not self._unsaved:
                return
            try:
                lock = self._path.with_suffix(".lock").open("w")
            except OSError as e:
                self._give_up(e)
                return
            with lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._refresh()
                self._write()

    def _write(self) -> None:
        with self._guard:
            facts, count = self.facts, len(self._unsaved)
        try:
            replace_file(self._path, json.dumps({"boot_id": self._boot_id, **self._form.write(facts)}))
            self._seen = self._stamp()
        except OSError as e:
            self._give_up(e)
            return
        with self._guard:
            del self._unsaved[:count]

    def _take(self, facts: F) -> None:
        with self._guard:
            for change in self._unsaved:
                facts = change(facts)
            self.facts = facts

    def _give_up(self, error: OSError) -> None:
        """What could not be saved is tried again with the next change."""
        with self._guard:
            del self._unsaved[:-_MOST_UNSAVED]
        self._complain("are kept in memory only", error)

    def _complain(self, how: str, error: OSError) -> None:
        log.error(f"{self._form.what} {how}", extra={"file": str(self._path), "reason": str(error)})  # noqa: G004

    def _read(self) -> F:
        """Returns what the file holds. Raises OSError where it is there and cannot be read."""
        try:
            data = json.loads(self._path.read_text())
            return self._form.read(data) if data["boot_id"] == self._boot_id else self._form.empty
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return self._form.empty

    def _stamp(self) -> Stamp:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return _NO_FILE
        return stat.st_ino, stat.st_mtime_ns


def boot_of(path: Path) -> str:
    """Returns the boot that the file is of; "" where there is none."""
    try:
        return str(json.loads(path.read_text())["boot_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
