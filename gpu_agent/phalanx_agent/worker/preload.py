"""What a zygote imports before it forks: torch with CUDA untouched, and the modules that an environment asks for.

No operation runs here: one parallel op before a fork makes ops in every child hang.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os

_NEEDED_LATER = ("encodings.idna", "asyncio", "tempfile", "pdb")
"""What ranks import while they start; an unprivileged one may not be able to read the interpreter's own files."""

_NEEDED_BY_USER_MODULES = ("phalanx.function", "phalanx.app", "phalanx.environment")
"""What every module with a decorated function makes a rank import again: once here, not once per rank."""


def threads() -> int:
    """Returns how many threads this process has."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def preload(modules: tuple[str, ...], *, with_torch: bool) -> None:
    """Imports torch where it is installed and wanted, then ``modules``. Raises whatever an import raises."""
    if with_torch and importlib.util.find_spec("torch") is not None:
        torch = importlib.import_module("torch")
        torch.set_num_threads(1)
        importlib.import_module("torch.distributed")
        importlib.import_module("torch.distributed.distributed_c10d")
    for name in ("phalanx_agent.worker.main", *_NEEDED_LATER, *_NEEDED_BY_USER_MODULES):
        importlib.import_module(name)
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
