"""Files that are replaced whole."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from phalanx.core.files import replace_file


@pytest.mark.parametrize("data", ["né", "né".encode()])
def test_a_file_is_replaced_by_text_or_bytes(tmp_path: Path, data: str | bytes) -> None:
    path = tmp_path / "f.json"
    path.write_text("old and longer")
    replace_file(path, data, durable=True)
    assert path.read_bytes() == "né".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_its_mode_is_as_asked_whatever_it_was(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.touch(mode=0o644)
    replace_file(path, b"")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    replace_file(path, b"", mode=0o644)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_failure_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.mkdir()
    with pytest.raises(OSError, match="f"):
        replace_file(path, b"new")
    assert list(tmp_path.iterdir()) == [path]
