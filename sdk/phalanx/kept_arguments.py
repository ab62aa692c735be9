"""Arguments of direct calls that failed, kept on this machine for `gpuctl replay`: the cell never had them.

A few small files of the user's own below ``$PHALANX_HOME/replays``; the oldest go. Nothing depends on them: what
cannot be written is not kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from phalanx.connection import IN_A_GANG
from phalanx.core.clock import SystemClock
from phalanx.core.files import replace_file
from phalanx.core.serialization import Packed

MAX_BYTES = 8 << 20
MAX_FILES = 20
EVERY_MS = 1000
"""Of calls that fail one after the other, one in so long is kept."""
_HEAD = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class KeptCall:
    function_id: str
    args: bytes


def folder() -> Path:
    """Returns ``$PHALANX_HOME/replays``, by default ``~/.phalanx/replays``."""
    return Path(os.environ.get("PHALANX_HOME") or "~/.phalanx").expanduser() / "replays"


def keep(call_id: str, function_id: str, packed: Packed) -> bool:
    """Keeps what a failed call was made with; says whether it did."""
    now_ms = SystemClock().monotonic_ms()
    if packed.nbytes > MAX_BYTES or now_ms - _Last.kept_ms < EVERY_MS or os.environ.get(IN_A_GANG):
        return False
    _Last.kept_ms = now_ms
    head = json.dumps({"function_id": function_id}).encode()
    try:
        place = folder()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_room(place)
        replace_file(place / call_id, _HEAD.pack(len(head)) + head + packed.tobytes(), mode=0o600)
    except OSError:
        return False
    return True


def find(call_id: str) -> KeptCall | None:
    """Returns what was kept of the call on this machine."""
    try:
        data = (folder() / call_id).read_bytes()
        size = _HEAD.unpack_from(data)[0]
        head = json.loads(data[_HEAD.size : _HEAD.size + size])
        return KeptCall(str(head["function_id"]), data[_HEAD.size + size :])
    except (OSError, ValueError, KeyError, struct.error):
        return None


def _make_room(place: Path) -> None:
    files = sorted(place.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for path in files[: max(0, len(files) - MAX_FILES + 1)]:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


class _Last:
    kept_ms = -EVERY_MS
