"""Files that are replaced whole: a reader sees the old bytes or the new ones, never a part."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, data: bytes | str, *, mode: int = 0o600, durable: bool = False) -> None:
    """Writes ``data`` and then gives it the name ``path``. ``durable``: it is on the disk before it gets the name.

    Raises OSError, and leaves ``path`` as it was. Several processes and machines may replace one file at once.
    """
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            os.fchmod(fd, mode)
            if durable:
                file.flush()
                os.fsync(fd)
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
