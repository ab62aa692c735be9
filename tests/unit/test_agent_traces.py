"""What a gang leaves on the disk is gone once it has ended."""

from __future__ import annotations

from pathlib import Path

from phalanx_agent import traces


def test_a_killed_keepers_temporary_folder_goes_with_the_gangs_own(tmp_path: Path) -> None:
    tmp = tmp_path / "tmp"
    gang_dir = tmp_path / "gangs" / "g-00000000000000000000000001"
    others = tmp / "px-00000002-abc"
    for folder in (gang_dir, others, tmp / f"{traces.tmp_prefix(gang_dir.name)}xyz"):
        folder.mkdir(parents=True)
    traces.remove(gang_dir, tmp)
    assert not gang_dir.exists()
    assert list(tmp.iterdir()) == [others]
