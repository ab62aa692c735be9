"""What the embedded agent's GPUs are: the machine's own, as the driver's files tell, or which ones it simulates.

PHALANX_SIMULATE names a machine to look like; without, a machine that has no NVIDIA GPU gets plain simulated ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.errors import InvalidSpecError

SIMULATED_GPUS = 8
VARIABLE = "PHALANX_SIMULATE"


@dataclass(frozen=True, slots=True)
class Simulated:
    """``gpus`` 0: nothing is simulated. ``machine``: a preset's name or a file's absolute path; "" for plain GPUs."""

    gpus: int = 0
    machine: str = ""


def has_nvidia(root: Path = Path("/")) -> bool:
    """Says whether the NVIDIA driver shows at least one GPU (Linux, WSL) below ``root``."""
    if any((root / "proc/driver/nvidia/gpus").glob("*")):
        return True
    if (root / "dev/nvidia0").exists():
        return True
    return (root / "dev/dxg").exists() and (root / "usr/lib/wsl/lib/libnvidia-ml.so.1").exists()


def simulated(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Simulated:
    """Returns what the agent must pretend to have. Raises InvalidSpecError for a machine that cannot be read."""
    named = environ.get(VARIABLE, "")
    if not named:
        return Simulated() if has_nvidia(root) else Simulated(SIMULATED_GPUS)
    return _like(named)


def _like(named: str) -> Simulated:
    from phalanx.core.topology.presets import PRESETS, nearest_preset, preset  # few clusters look like another machine

    if named in PRESETS:
        return Simulated(len(preset(named).gpus), named)
    from phalanx.core.topology.errors import UnreadableTopologyError
    from phalanx.core.topology.importers.detect import read_node
    from phalanx.core.topology.importers.text_file import text_of_file

    try:
        gpus = len(read_node(text_of_file(Path(named))).gpus)
    except OSError as e:
        near = nearest_preset(named)
        raise InvalidSpecError(
            f"no machine {named[:60]!r} to simulate: {f'did you mean {near}?' if near else e.strerror}",
            hint=f"a topology file, or one of: {', '.join(PRESETS)}",
        ) from e
    except UnreadableTopologyError as e:
        raise InvalidSpecError(f"{named} does not describe a machine\n{e}", hint=f"gpuctl topo import {named}") from e
    if not gpus:
        raise InvalidSpecError(f"{named} describes a machine without GPUs", hint=f"gpuctl topo import {named}")
    return Simulated(gpus, str(Path(named).absolute()))
