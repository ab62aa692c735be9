"""One zygote as the agent holds it: spawned, asked for gangs, ended. Blocking socket work runs in a thread, bounded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

READY_WITHIN_S = 300
GANG_WITHIN_S = 60
_SECRETS = ("PHALANX_TOKEN", "PHALANX_AGENT_", "PHALANX_CONTROL_", "PHALANX_JOIN")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class StartError(RuntimeError):
    """A zygote or a gang that could not be started."""


class ZygoteRefusedError(RuntimeError):
    """The zygote may not fork any more: its thread count grew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteKey:
    """What makes two gangs share a zygote. ``light``: without torch and, where those forbid forks, preloads."""

    digest: str
    light: bool
    python: str
    preload: tuple[str, ...]

    @property
    def name(self) -> str:
        """The file name of its socket and log."""
        if self.light:
            return f"{self.digest}-light" if self.digest else "light"
        return self.digest or "base"


class ZygoteProcess:
    """A running zygote. It ends when ``close`` is called or the agent dies, whichever comes first."""

    def __init__(self, key: ZygoteKey, pid: int, lifeline: int, path: Path) -> None:
        self.key = key
        self.pid = pid
        self._lifeline = lifeline
        self._path = path
        self._dead = False

    @staticmethod
    async def start(key: ZygoteKey, directory: Path) -> ZygoteProcess:
        """Spawns it and waits until it has imported everything. Raises StartError with its own words."""
        path = directory / f"{key.name}.sock"
        pid, lifeline, status = _spawn(key, path, directory / f"{key.name}.log")
        zygote = ZygoteProcess(key, pid, lifeline, path)
        try:
            answer = await asyncio.to_thread(_read_line, status, READY_WITHIN_S)
        except BaseException:
            await zygote.close()
            raise
        finally:
            os.close(status)
        if "ready" not in answer:
            await zygote.close()
            raise StartError(f"the zygote of environment {key.name!r} did not start: {answer.get('error', 'it ended')}")
        return zygote

    def alive(self) -> bool:
        """Collects it if it has ended."""
        if not self._dead:
            with contextlib.suppress(ChildProcessError):
                self._dead = os.waitpid(self.pid, os.WNOHANG)[0] != 0
        return not self._dead

    async def start_gang(self, gang_dir: Path, listen_fd: int | None) -> int:
        """Returns the keeper's pid. Raises ConnectionError when the zygote is gone, ZygoteRefusedError, StartError."""
        answer = await asyncio.to_thread(_ask, str(self._path), str(gang_dir), listen_fd)
        if "refused" in answer:
            raise ZygoteRefusedError(answer["refused"])
        if "pid" not in answer:
            raise StartError(f"gang {gang_dir.name} could not be started: {answer.get('error', 'no answer')}")
        return int(answer["pid"])

    async def close(self) -> None:
        """Ends it, at once: it holds nothing that could be lost."""
        os.close(self._lifeline)
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                await asyncio.to_thread(os.waitpid, self.pid, 0)
            self._dead = True
        self._path.unlink(missing_ok=True)


def _spawn(key: ZygoteKey, path: Path, log: Path) -> tuple[int, int, int]:
    """Returns pid, the lifeline's writing end and the status line's reading end."""
    lifeline_reading, lifeline = os.pipe()
    status, status_writing = os.pipe()
    log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    command = [key.python, "-m", "phalanx_agent.zygote", "--socket", str(path), "--preload", ",".join(key.preload)]
    if key.light:
        command.append("--light")
    actions = [
        (os.POSIX_SPAWN_DUP2, lifeline_reading, 0),
        (os.POSIX_SPAWN_DUP2, log_fd, 1),
        (os.POSIX_SPAWN_DUP2, log_fd, 2),
        (os.POSIX_SPAWN_DUP2, status_writing, 3),
    ]
    try:
        pid = os.posix_spawn(key.python, command, _environment(), file_actions=actions, setsigmask=())
    except OSError:
        os.close(lifeline)
        os.close(status)
        raise
    finally:
        for fd in (lifeline_reading, status_writing, log_fd):
            os.close(fd)
    return pid, lifeline, status


def _environment() -> dict[str, str]:
    """The agent's, without its secrets; one thread each for the libraries that start some when imported."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_SECRETS)}
    kept.update(dict.fromkeys(_THREAD_VARIABLES, "1"), PYTORCH_NVML_BASED_CUDA_CHECK="1", PYTHONUNBUFFERED="1")
    kept["KMP_INIT_AT_FORK"] = "FALSE"
    return kept


def _read_line(fd: int, within_s: float) -> dict[str, Any]:
    """Returns the zygote's status line; {} when it ended or took too long."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    data = b""
    while not data.endswith(b"\n"):
        if not poll.poll(within_s * 1000):
            return {"error": f"it was not ready within {within_s} s"}
        more = os.read(fd, 65536)
        if not more:
            return {}
        data += more
    return json.loads(data)


def _ask(path: str, gang_dir: str, listen_fd: int | None) -> dict[str, Any]:
    """Sends one request and returns the answer. Raises ConnectionError when nobody answers."""
    request = json.dumps({"gang_dir": gang_dir}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(GANG_WITHIN_S)
        try:
            connection.connect(path)
        except FileNotFoundError as e:
            raise ConnectionError(f"no socket {path}") from e
        socket.send_fds(connection, [request], [] if listen_fd is None else [listen_fd])
        data = b""
        while not data.endswith(b"\n"):
            more = connection.recv(65536)
            if not more:
                raise ConnectionError("the zygote closed the connection")
            data += more
    return json.loads(data)
