"""The agent's life as a process: what it finds on the machine, its event loop, and its exit status."""

from __future__ import annotations

import asyncio
import logging
import signal

from phalanx.core.clock import Clock, SystemClock
from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx_agent.agent import Agent
from phalanx_agent.discovery.host import HostFacts, read_host
from phalanx_agent.discovery.no_gpus import NoGpus
from phalanx_agent.discovery.simulated import SimulatedGpus, machine
from phalanx_agent.discovery.source import GpuSource
from phalanx_agent.discovery.watch import GpuWatch
from phalanx_agent.settings import Settings
from phalanx_agent.zygote_spawn import Spawned

EXIT_SETTINGS = 2
log = logging.getLogger("phalanx_agent")


def serve(settings: Settings, zygote: Spawned | None) -> int:
    """Runs the agent until SIGTERM or SIGINT. Returns 0 then, 1 where one of its jobs failed, 2 for wrong settings."""
    try:
        source = _gpu_source(settings)
    except (OSError, UnreadableTopologyError) as e:
        log.error("--simulate cannot be read", extra={"file": settings.simulate, "reason": str(e)})  # noqa: TRY400 - the reason says it all
        return EXIT_SETTINGS
    return serve_gpus(settings, source, zygote)


def serve_gpus(settings: Settings, source: GpuSource, zygote: Spawned | None) -> int:
    """Runs the agent on these GPUs."""
    clock = SystemClock()
    host = read_host()
    gpus = GpuWatch(
        source,
        baseline_path=settings.state_dir / "baseline.json",
        boot_id=host.boot_id,
        clock=clock,
    )
    try:
        asyncio.run(_run(settings, clock, host, gpus, zygote))
    except Exception:
        log.exception("the agent ends: one of its jobs failed; its gangs live on, and the next agent adopts them")
        return 1
    return 0


async def _run(settings: Settings, clock: Clock, host: HostFacts, gpus: GpuWatch, zygote: Spawned | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Agent(settings, clock=clock, host=host, gpus=gpus, zygote=zygote).run(stop)


def _gpu_source(settings: Settings) -> GpuSource:
    memory = settings.simulate_memory_bytes
    if settings.simulate:
        return SimulatedGpus(node_id=settings.node_id, memory_bytes=memory, like=machine(settings.simulate))
    if settings.simulate_gpus is not None:
        return SimulatedGpus(node_id=settings.node_id, count=settings.simulate_gpus, memory_bytes=memory)
    from phalanx_agent.discovery.nvml import NvmlGpus  # only where real GPUs are looked for

    try:
        return NvmlGpus()
    except OSError as e:
        log.warning("no GPUs on this node", extra={"reason": str(e)})
        return NoGpus()
