"""``phalanx-agent``: reads settings, starts the zygote, then imports and runs the rest. No torch in here."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from phalanx.core.allocator import give_memory_back
from phalanx.core.errors import InvalidSpecError
from phalanx.core.spec import EnvSpec
from phalanx_agent import settings as settings_module
from phalanx_agent.settings import Settings
from phalanx_agent.zygote_spawn import Spawned, ZygoteKey, spawn

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
    words = sys.argv[1:] if argv is None else argv
    if list(words[:1]) == ["clear-gpu"]:
        from phalanx_agent import clear_gpu

        return clear_gpu.main(words[1:])
    try:
        settings = settings_module.read(words, os.environ)
    except InvalidSpecError as e:
        print(f"phalanx-agent: {e}", file=sys.stderr)  # noqa: T201 - the one message before there is a log
        return 2
    log_to_stderr()
    give_memory_back()
    try:
        make_directories(settings)
        lock = _take_lock(settings.state_dir)
    except OSError as e:
        log.error("the agent cannot start", extra={"reason": str(e)})  # noqa: TRY400 - the reason says it all
        return 1
    with lock:
        return _serve(settings)


def _serve(settings: Settings) -> int:
    """What takes longest is started first: the zygote imports torch while this process imports its own parts."""
    zygote = _start_zygote(settings) if _has_gpus(settings) else None
    from phalanx_agent.serving import serve

    return serve(settings, zygote)


def _start_zygote(settings: Settings) -> Spawned | None:
    """Starts the plain environment's zygote. None where that fails: the launcher tries again and says why."""
    directory = settings.run_dir / "zygotes"
    key = ZygoteKey(digest=EnvSpec().digest, light=False, python=sys.executable, preload=())
    try:
        directory.mkdir(exist_ok=True)
        return spawn(key, directory)
    except OSError:
        return None


def _has_gpus(settings: Settings) -> bool:
    """A first guess, before NVML is asked."""
    if settings.simulate:
        return True
    if settings.simulate_gpus is not None:
        return settings.simulate_gpus > 0
    return any(Path("/dev").glob("nvidia[0-9]*"))


def make_directories(settings: Settings) -> None:
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


def log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("grpc").setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
