"""Files that topologies are read from and pictures written to, with what the system says of them as a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from phalanx.core.errors import InvalidSpecError
from phalanx.core.topology.errors import CHECK_IT, UnreadableTopologyError
from phalanx.core.topology.importers.text_file import text_of_file

T = TypeVar("T")
_WOULD_DO = "save what `nvidia-smi topo -m` prints, or another of these formats, whole"


def text_of(file: str) -> str:
    """Returns what a file holds. Raises InvalidSpecError where it cannot be read or is far too large."""
    try:
        return text_of_file(Path(file))
    except OSError as e:
        raise InvalidSpecError(f"{file} cannot be read: {e.strerror}", hint="name a file that you may read") from e


def parsed(file: str, text: str, read: Callable[[str], T]) -> T:
    """Returns what ``read`` makes of a text. Raises UnreadableTopologyError, the file's name before the reason."""
    if not text.strip():
        raise UnreadableTopologyError(f"{file} cannot be read\nit is empty", hint=_WOULD_DO)
    try:
        return read(text)
    except UnreadableTopologyError as e:
        hint = f"mend line {e.line} of {file}" if e.line else _WOULD_DO
        raise UnreadableTopologyError(f"{file} cannot be read\n{e}", hint=hint if e.hint == CHECK_IT else e.hint) from e


def write_picture(file: str, picture: str) -> None:
    """Raises InvalidSpecError where the file cannot be written."""
    try:
        Path(file).write_text(picture, encoding="utf-8")
    except OSError as e:
        raise InvalidSpecError(f"{file} cannot be written: {e.strerror}", hint="name another file") from e
