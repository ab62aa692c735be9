"""``phalanx-agent``: reads settings, looks at the machine, runs the agent until SIGTERM or SIGINT. No torch in here."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from phalanx.core.clock import Clock, SystemClock
from phalanx.core.errors import InvalidSpecError
from phalanx_agent import settings as settings_module
from phalanx_agent.agent import Agent
from phalanx_agent.discovery.host import HostFacts, read_host
from phalanx_agent.discovery.simulated import SimulatedGpus
from phalanx_agent.discovery.source import GpuSource
from phalanx_agent.discovery.watch import GpuWatch
from phalanx_agent.settings import Settings

log = logging.getLogger("phalanx_agent")

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({})))


class JsonLines(logging.Formatter):
    """One JSON object per line: the event first, ids as fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {"event": record.getMessage(), "level": record.levelname.lower()}
        line |= {k: v for k, v in vars(record).items() if k not in _STANDARD_FIELDS and k != "message"}
        line["at_ms"] = int(record.created * 1000)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 after a stop, 2 for wrong settings, 1 where this node cannot be served."""
    try:
        settings = settings_module.read(sys.argv[1:] if argv is None else argv, os.environ)
    except InvalidSpecError as e:
        print(f"phalanx-agent: {e}", file=sys.stderr)  # noqa: T201 - the one message before there is a log
        return 2
    _log_to_stderr()
    try:
        _make_directories(settings)
        lock = _take_lock(settings.state_dir)
    except OSError as e:
        log.error("the agent cannot start", extra={"reason": str(e)})  # noqa: TRY400 - the reason says it all
        return 1
    with lock:
        return _serve(settings)


def _serve(settings: Settings) -> int:
    clock = SystemClock()
    host = read_host()
    gpus = GpuWatch(
        _gpu_source(settings),
        baseline_path=settings.state_dir / "baseline.json",
        boot_id=host.boot_id,
        clock=clock,
    )
    try:
        asyncio.run(_run(settings, clock, host, gpus))
    except Exception:
        log.exception("the agent ends: one of its jobs failed; its gangs live on, and the next agent adopts them")
        return 1
    return 0


async def _run(settings: Settings, clock: Clock, host: HostFacts, gpus: GpuWatch) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Agent(settings, clock=clock, host=host, gpus=gpus).run(stop)


def _gpu_source(settings: Settings) -> GpuSource:
    memory = settings.simulate_memory_bytes
    if settings.simulate_gpus is not None:
        return SimulatedGpus(node_id=settings.node_id, count=settings.simulate_gpus, memory_bytes=memory)
    from phalanx_agent.discovery.nvml import NvmlGpus  # only where real GPUs are looked for

    try:
        return NvmlGpus()
    except OSError as e:
        log.warning("no GPUs on this node", extra={"reason": str(e)})
        return SimulatedGpus(node_id=settings.node_id, count=0, memory_bytes=memory)


def _make_directories(settings: Settings) -> None:
    for path in (settings.state_dir, settings.run_dir):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
    (settings.run_dir / "gangs").mkdir(mode=0o700, exist_ok=True)


def _take_lock(state_dir: Path) -> IO[str]:
    """Makes sure that one agent at a time serves this state directory. Raises OSError."""
    file = (state_dir / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        file.close()
        raise OSError(f"another agent serves {state_dir}") from e
    return file


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("grpc").setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
