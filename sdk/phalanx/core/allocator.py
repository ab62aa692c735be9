"""How a server's C allocator treats large buffers: what is freed goes back to the system.

glibc raises its threshold for separate mappings with every large block that is freed, up to 32 MiB, and then keeps
such blocks in the heap for ever: one 100 MB argument left 90 MB behind in the servers that it passed.
"""

from __future__ import annotations

import ctypes

MMAP_FROM_BYTES = 1 << 20
TRIM_FROM_BYTES = 4 << 20
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def give_memory_back() -> bool:
    """Fixes both thresholds for this process. Returns False where the allocator is another than glibc's."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MMAP_FROM_BYTES) and mallopt(_M_TRIM_THRESHOLD, TRIM_FROM_BYTES))
