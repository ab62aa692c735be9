"""Files that topologies are read from and pictures written to, with what the system says of them as a sentence."""

from __future__ import annotations

from pathlib import Path

from phalanx.core.errors import InvalidSpecError
from phalanx.core.topology.importers.text_file import text_of_file


def text_of(file: str) -> str:
    """Returns what a file holds. Raises InvalidSpecError where it cannot be read or is far too large."""
    try:
        return text_of_file(Path(file))
    except OSError as e:
        raise InvalidSpecError(f"{file} cannot be read: {e.strerror}", hint="name a file that you may read") from e


def write_picture(file: str, picture: str) -> None:
    """Raises InvalidSpecError where the file cannot be written."""
    try:
        Path(file).write_text(picture, encoding="utf-8")
    except OSError as e:
        raise InvalidSpecError(f"{file} cannot be written: {e.strerror}", hint="name another file") from e
