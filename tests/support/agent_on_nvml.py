"""``phalanx-agent`` with the GPUs that NVML tells of and ranks that run on CPU: for a machine that a file describes.

The network ports are those of the folder that FAKE_SYSFS names.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from phalanx_agent import settings as settings_module
from phalanx_agent.discovery.nvml import NvmlGpus
from phalanx_agent.main import log_to_stderr, make_directories
from phalanx_agent.serving import serve_gpus


class NvmlOnCpu(NvmlGpus):
    """Real questions to NVML, no CUDA."""

    simulated = True


def main() -> int:
    settings = settings_module.read(sys.argv[1:], os.environ)
    log_to_stderr()
    make_directories(settings)
    return serve_gpus(settings, NvmlOnCpu(sysfs=Path(os.environ["FAKE_SYSFS"])), None)


if __name__ == "__main__":
    sys.exit(main())
