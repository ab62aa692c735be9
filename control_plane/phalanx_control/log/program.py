"""Programs of this package that a replica runs beside itself: they fold for as long as they like, and the leader never
stops for it.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended, and what it wrote."""

    code: int
    out: bytes
    err: bytes

    @property
    def last_words(self) -> str:
        return self.err.decode(errors="replace").strip()[-500:]


async def run_program(module: str, *args: str, timeout_s: float) -> Ended:
    """Runs a module with this interpreter. Raises TimeoutError; whatever happens, nothing of it is left."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *args),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    return Ended(await program.wait(), out, err)
