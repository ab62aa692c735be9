"""What asyncio leaves open: whether a CancelledError is meant for the task that sees it."""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Says whether somebody has asked the running task to end. Else a CancelledError comes from what it waits for: of
    gRPC's, a call on a channel that was closed meanwhile.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
