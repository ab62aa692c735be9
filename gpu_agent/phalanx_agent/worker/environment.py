"""The environment variables of a rank, and of a shell beside it: the same for both."""

from __future__ import annotations

import os
from pathlib import Path

from phalanx.core.topology.equipment import Equipment
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.worker import cuda, group, recorder


def set_environment(config: GangConfig, rank: int, local_rank: int, *, tmp_dir: Path, equipment: Equipment) -> None:
    """Changes this process's own: it is the rank's, or its shell's."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.pop(name, None)
    os.environ.update(
        PYTHONUNBUFFERED="1",
        TMPDIR=str(tmp_dir),
        PHALANX_GANG=config.gang_id,
        PHALANX_FUNCTION=config.function.name,
    )
    cuda.show_only_leased(config)
    group.advertise(config, rank, local_rank)
    os.environ.update(equipment.environment)
    os.environ.update(dict(config.function.env.variables))
    recorder.prepare_environment()
