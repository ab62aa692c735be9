"""What a gang leaves on a node's disk, and its removal once everything worth keeping is stored."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path


def tmp_prefix(gang_id: str) -> str:
    """Names the private temporary folder of a gang's ranks; the system's folder keeps socket paths in it short."""
    return f"px-{gang_id[-8:]}-"


def remove(gang_dir: Path, tmp: Path | None = None) -> None:
    """Removes the gang's folder, and the temporary one in ``tmp`` where a killed keeper could not."""
    for left in (tmp or Path(tempfile.gettempdir())).glob(f"{tmp_prefix(gang_dir.name)}*"):
        shutil.rmtree(left, ignore_errors=True)
    shutil.rmtree(gang_dir, ignore_errors=True)
