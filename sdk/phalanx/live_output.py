"""What the ranks of a call print, shown on standard error where the call is waited for, as `gpuctl run` shows it.

Wanted where standard error is a terminal, or with PHALANX_LOGS=1; never with PHALANX_LOGS=0, in CI or inside a gang. A
call that ends within a moment costs nothing for it and shows nothing: no one else knows of it who could say what it
wrote. Standard output stays the program's own. Asks for output only; decides nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Generator
from typing import TextIO

from phalanx.client import Client
from phalanx.connection import IN_A_GANG
from phalanx.core.errors import PhalanxError
from phalanx.logs import read_logs
from phalanx.workers import workers

SHORT_MS = 300
"""Calls that end within this time are not worth a look; from 200 ms on a call is known to the control plane."""
DRAIN_S = 2.0
"""How long the output of an ended call may take to arrive."""
_KNOWN_LOOKS = 10
_KNOWN_PAUSE_S = 0.1


def wants_output(stream: TextIO | None) -> bool:
    """Says whether the output of calls that are waited for is to be shown on ``stream``."""
    said = os.environ.get("PHALANX_LOGS", "")
    if said or stream is None:
        return said not in ("", "0") and stream is not None
    if any(os.environ.get(name) for name in ("CI", "PHALANX_QUIET", IN_A_GANG)):
        return False
    return stream.isatty()


@contextlib.contextmanager
def shown(client: Client, call_id: str) -> Generator[None]:
    """Inside, the call is waited for, and what its ranks print is shown; what is on its way still is on leaving."""
    left, drained = threading.Event(), threading.Event()

    def follow() -> None:
        try:
            if _is_known(client, call_id, left):
                _show(client, call_id)
        except (PhalanxError, OSError, ValueError):  # the call's outcome matters, not what could not be shown of it
            pass
        finally:
            drained.set()

    workers().run(follow)
    try:
        yield
    except Exception:
        drained.wait(DRAIN_S)
        raise
    else:
        drained.wait(DRAIN_S)
    finally:
        left.set()


def _is_known(client: Client, call_id: str, left: threading.Event) -> bool:
    """A direct call is told to the control plane about now."""
    for _ in range(_KNOWN_LOOKS):
        if client.knows(call_id):
            return True
        left.wait(_KNOWN_PAUSE_S)
    return False


def _show(client: Client, call_id: str) -> None:
    for line in read_logs(client, call_id, follow=True):
        sys.stderr.write(f"[r{line.rank}] {line.text}\n")
        sys.stderr.flush()
