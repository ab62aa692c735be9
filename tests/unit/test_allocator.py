"""Memory that a server has freed is the system's again."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pathlib import Path
from phalanx.core.allocator import give_memory_back

def resident_mb():
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024

if sys.argv[1] == "fixed":
    assert give_memory_back()
before = resident_mb()
kept = []
for _ in range(8):
    large = [bytes(24 << 20), bytes(24 << 20)]
    kept.append(bytes(100_000))
    del large
print(resident_mb() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is another than glibc's")
def test_large_blocks_go_back_when_they_are_freed() -> None:
    def left_mb(how: str) -> float:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True, env=dict(os.environ)
        )
        return float(done.stdout)

    assert left_mb("fixed") < 8
    assert left_mb("as it is") > 20, "the program shows what it is for"
