"""Whether this machine has an NVIDIA GPU, asked of the driver's own files; the agent's discovery says which."""

from __future__ import annotations

from pathlib import Path

SIMULATED_GPUS = 8


def has_nvidia(root: Path = Path("/")) -> bool:
    """Says whether the NVIDIA driver shows at least one GPU (Linux, WSL) below ``root``."""
    if any((root / "proc/driver/nvidia/gpus").glob("*")):
        return True
    if (root / "dev/nvidia0").exists():
        return True
    return (root / "dev/dxg").exists() and (root / "usr/lib/wsl/lib/libnvidia-ml.so.1").exists()


def simulated_gpus(root: Path = Path("/")) -> int:
    """Returns how many GPUs the agent must pretend to have: none where there is a real one."""
    return 0 if has_nvidia(root) else SIMULATED_GPUS
