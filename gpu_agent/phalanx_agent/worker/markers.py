"""An independent witness for the history checker: who ran what, when, on which GPU. Off without PHALANX_MARKER_DIR.

It shares no code with the meter and the log. The lock on a GPU's file is held by the operating system for the process.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from phalanx.core.ids import id_text
from phalanx_agent.gang_config import GangConfig


class Markers:
    """Appends one JSON line before and after each run of the user's function."""

    def __init__(self, directory: str, config: GangConfig, *, rank: int, pid: int, gpus: tuple[str, ...]) -> None:
        self._path = Path(directory) / f"{config.gang_id}-{rank}.jsonl" if directory else None
        self._common = {"gang": config.gang_id, "fence": config.fence, "rank": rank, "pid": pid}
        self._gpu = gpus[0] if gpus else ""
        self._locks: list[int] = []
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            for gpu in gpus if config.member.share >= 1 else ():
                self._hold(self._path.parent / f"gpu-{gpu}.lock", gpu)

    def write(self, op: str, *, call: bytes, attempt: int) -> None:
        """``op`` is start or stop; ``call`` the raw id."""
        if self._path is not None:
            self._line({"op": op, "call": id_text("c", call), "attempt": attempt, **self._common, "gpu": self._gpu})

    def _hold(self, path: Path, gpu: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._line({"op": "double_hold", "call": "", "attempt": 0, **self._common, "gpu": gpu})
        self._locks.append(fd)

    def _line(self, value: dict[str, object]) -> None:
        assert self._path is not None
        value["mono_ns"] = time.monotonic_ns()
        value["wall_ns"] = time.time_ns()
        with self._path.open("ab", buffering=0) as file:
            file.write(json.dumps(value).encode() + b"\n")
