"""What a gang leaves on the disk is gone once it has ended."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from phalanx_agent import traces


def test_a_killed_keepers_temporary_folder_goes_with_the_gangs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    gang_dir = tmp_path / "gangs" / "g-00000000000000000000000001"
    others = tmp_path / "tmp" / "px-00000002-abc"
    for folder in (gang_dir, others, tmp_path / "tmp" / f"{traces.tmp_prefix(gang_dir.name)}xyz"):
        folder.mkdir(parents=True)
    traces.remove(gang_dir)
    assert not gang_dir.exists()
    assert list((tmp_path / "tmp").iterdir()) == [others]
