"""One zygote as the agent holds it: spawned, asked for gangs, ended. Blocking socket work runs in a thread, bounded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
from pathlib import Path
from typing import Any

from phalanx_agent.zygote_spawn import Spawned

READY_WITHIN_S = 300
GANG_WITHIN_S = 60


class StartError(RuntimeError):
    """A zygote or a gang that could not be started."""


class ZygoteRefusedError(RuntimeError):
    """The zygote may not fork any more: its thread count grew."""


class ZygoteProcess:
    """A running zygote. It ends when ``close`` is called or the agent dies, whichever comes first."""

    def __init__(self, spawned: Spawned) -> None:
        self.key = spawned.key
        self.pid = spawned.pid
        self._lifeline = spawned.lifeline
        self._path = spawned.path
        self._dead = False

    @staticmethod
    async def ready(spawned: Spawned) -> ZygoteProcess:
        """Waits until it has imported everything. Raises StartError with its own words."""
        zygote = ZygoteProcess(spawned)
        try:
            answer = await asyncio.to_thread(_read_line, spawned.status, READY_WITHIN_S)
        except BaseException:
            await zygote.close()
            raise
        finally:
            os.close(spawned.status)
        if "ready" not in answer:
            await zygote.close()
            problem = answer.get("error", "it ended")
            raise StartError(f"the zygote of environment {spawned.key.name!r} did not start: {problem}")
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
