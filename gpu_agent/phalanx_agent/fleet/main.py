"""The fleet as a process: orders come as the first line of standard input, and its end is the word to leave.

So a fleet never outlives whoever started it. SIGTERM and SIGINT mean the same.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
import signal
import sys
import threading
import uuid

from phalanx.core.clock import SystemClock
from phalanx_agent.discovery.host import read_host
from phalanx_agent.fleet.node import FleetFacts, PlayedNode
from phalanx_agent.fleet.orders import Orders, read_orders
from phalanx_agent.main import log_to_stderr

REASON = "the simulated fleet was ended"
EXIT_ORDERS = 2
log = logging.getLogger("phalanx_agent.fleet")


def main() -> int:
    """Returns the exit status: 0 after a stop, 2 where the orders cannot be read."""
    log_to_stderr()
    try:
        orders = read_orders(sys.stdin.readline())
    except (ValueError, KeyError, TypeError) as e:
        log.error("the fleet's orders cannot be read", extra={"reason": f"{type(e).__name__}: {e}"})  # noqa: TRY400 - the reason says it all
        return EXIT_ORDERS
    try:
        asyncio.run(_run(orders))
    finally:
        shutil.rmtree(orders.folder, ignore_errors=True)
    return 0


async def _run(orders: Orders) -> None:
    stop = _stop_event()
    clock = SystemClock()
    facts = FleetFacts(boot_id=f"fleet-{uuid.uuid4()}", epoch=clock.wall_ms(), version=read_host().agent_version)
    nodes = [
        PlayedNode(machine, orders, facts, folder=orders.folder / machine.node_id, clock=clock)
        for machine in orders.machines
    ]
    gc.freeze()  # what is here stays for as long as the fleet
    async with asyncio.TaskGroup() as jobs:
        running = [jobs.create_task(node.run()) for node in nodes]
        await stop.wait()
        await asyncio.gather(*(_leave(node, job) for node, job in zip(nodes, running, strict=True)))


async def _leave(node: PlayedNode, job: asyncio.Task[None]) -> None:
    """Ends the session at once after the last word: another one would make the node join again."""
    await node.leave(REASON)
    job.cancel()


def _stop_event() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def wait_for_the_end() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=wait_for_the_end, name="stdin", daemon=True).start()
    return stop


if __name__ == "__main__":
    sys.exit(main())
