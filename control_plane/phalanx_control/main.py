"""phalanx-control: one replica of the control plane, as one asyncio program.

settings → CA and secrets → listening ends → controller → services and page → ready file
SIGTERM: no new work → requests in progress, a second at most → leadership handed on → end
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence

from phalanx.core.allocator import give_memory_back
from phalanx.core.clock import SystemClock
from phalanx.core.errors import PhalanxError
from phalanx.core.files import replace_file
from phalanx_control.replica import Replica
from phalanx_control.service.program_log import start_logging
from phalanx_control.settings import Settings, parse

logger = logging.getLogger("phalanx_control")

EXIT_REFUSED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one replica until SIGTERM or SIGINT. Returns 0 then, 2 when it was told something impossible."""
    start_logging()
    give_memory_back()
    try:
        settings = parse(sys.argv[1:] if argv is None else argv, os.environ)
        asyncio.run(serve(settings))
    except PhalanxError as e:
        hint = f"\ntry: {e.hint}" if e.hint else ""
        sys.stderr.write(f"error[{e.code}]: {e}{hint}\n")
        return EXIT_REFUSED
    return 0


async def serve(settings: Settings) -> None:
    """Serves until told to stop. Raises the PhalanxError that makes it impossible."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    replica = await Replica.make(settings, SystemClock())
    running = asyncio.create_task(replica.run())
    helpers = [asyncio.create_task(stop.wait()), asyncio.create_task(_announce(replica, settings))]
    try:
        await asyncio.wait({running, helpers[0]}, return_when=asyncio.FIRST_COMPLETED)
        logger.info("replica stops", extra={"replica": settings.replica_id})
    finally:
        await _stop(replica, running, helpers)
        if settings.ready_file is not None:
            settings.ready_file.unlink(missing_ok=True)
    error = None if running.cancelled() else running.exception()
    if error is not None:
        raise _plain(error)


async def _announce(replica: Replica, settings: Settings) -> None:
    """Writes the ready file, the last thing of a start."""
    await replica.ready()
    if settings.ready_file is not None:
        said = {"pid": os.getpid(), **replica.addresses()}
        settings.ready_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(settings.ready_file, json.dumps(said))
    logger.info("replica ready", extra=replica.addresses())


async def _stop(replica: Replica, running: asyncio.Task[None], helpers: Sequence[asyncio.Task[object]]) -> None:
    if not running.done():
        await replica.drain()
    for task in (running, *helpers):
        task.cancel()
    await asyncio.gather(running, *helpers, return_exceptions=True)
    await replica.close()


def _plain(error: BaseException) -> BaseException:
    """Returns the one error of a group of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    sys.exit(main())
