"""The text of a file that a person brought, whatever it is and whatever wrote it: bounded, and never waited for."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.importers.reading import MAX_FABRIC_CHARS

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def text_of_file(path: Path) -> str:
    """Returns what a file or a pipe holds, as UTF-8, or as UTF-16 where it says so, as PowerShell's ``>`` does.

    Raises OSError, and UnreadableTopologyError for more than the largest of the formats has. A pipe that nobody writes
    to is empty.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(fd, True)
    with os.fdopen(fd, "rb") as file:
        data = file.read(MAX_FABRIC_CHARS + 1)
    if len(data) > MAX_FABRIC_CHARS:
        raise UnreadableTopologyError(f"{path} has more than {MAX_FABRIC_CHARS} bytes: no more are read")
    return data.decode("utf-16" if data.startswith(_UTF16) else "utf-8", errors="replace")
