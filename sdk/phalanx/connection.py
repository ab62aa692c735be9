"""The process's one connection to a cluster: found when first needed, remembered, renewed after a fork."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx import config, context
from phalanx.core.errors import ConnectionFailedError

if TYPE_CHECKING:
    from phalanx.client import Client


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a control plane is and what opens it. An empty ``ca_path`` means the system's certificates."""

    address: str
    token: str
    ca_path: str
    embedded: bool = False

    def __post_init__(self) -> None:
        host, colon, port = self.address.rpartition(":")
        if not colon or not host or not port.isdecimal():
            raise ConnectionFailedError(
                f"address {self.address!r} is not host:port", hint="set PHALANX_ADDRESS, as cluster.example:7443"
            )

    def read_ca(self) -> bytes | None:
        """Returns the CA's PEM text. Raises ConnectionFailedError when the file cannot be read."""
        if not self.ca_path:
            return None
        try:
            return Path(self.ca_path).read_bytes()
        except OSError as e:
            raise ConnectionFailedError(f"the CA file cannot be read: {e}", hint="set PHALANX_CA") from e


IN_A_GANG = "PHALANX_GANG"
"""Set in every rank's environment, and so in what ranks start."""


class _Process:
    """What this process is connected to. Held here because `.remote()` has no other place to find it."""

    lock = threading.Lock()
    client: Client | None = None
    pid = 0


def find(flags: Mapping[str, str | None] | None = None, *, again: bool = False) -> Connection:
    """Returns the configured connection; starts or joins the embedded cluster when nothing is configured.

    ``again``: this process was connected before, and does not start what `gpuctl down` has stopped.
    """
    settings = config.resolve(flags)
    if not settings.embedded:
        return Connection(settings.address.text, settings.token.text, settings.ca.text)
    if os.environ.get(IN_A_GANG):
        raise _called_inside_a_gang()
    from phalanx import embedded

    started = embedded.ensure(again=again)
    return Connection(started.address, started.token, started.ca_path, embedded=True)


def _called_inside_a_gang() -> ConnectionFailedError:
    """A gang that starts gangs by itself would never end: it may only ask a cluster that it was given."""
    importing = _module_that_runs() if not context.current().call_id else ""
    if importing:
        return ConnectionFailedError(
            f"{importing} makes a call while the file is imported, which its gang's ranks do as well",
            hint='put what the program does under `if __name__ == "__main__":`',
        )
    return ConnectionFailedError(
        "a function inside a gang called another one, and this gang was given no cluster address",
        hint="pass PHALANX_ADDRESS, PHALANX_TOKEN and PHALANX_CA with env(vars={...})",
    )


def _module_that_runs() -> str:
    """Returns file and line of the innermost module whose top level is being executed; "" where none is."""
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
            return f"{Path(code.co_filename).name}, line {frame.f_lineno},"
        frame = frame.f_back
    return ""


def connect() -> Client:
    """Returns this process's client, made at the first call; a forked child makes its own."""
    client = _Process.client
    if client is not None and _Process.pid == os.getpid():
        return client
    if _Process.pid != os.getpid():
        _Process.lock = threading.Lock()
    with _Process.lock:
        if _Process.client is None or _Process.pid != os.getpid():
            _Process.client = _open()
            _Process.pid = os.getpid()
        return _Process.client


def is_connected() -> bool:
    """Says whether `connect` would return without I/O."""
    return _Process.client is not None and _Process.pid == os.getpid()


def use(connection: Connection) -> Client:
    """Makes ``connection`` the one of this process, for the CLI's flags and for tests."""
    from phalanx.client import Client

    disconnect()
    _Process.client = Client(connection)
    _Process.pid = os.getpid()
    return _Process.client


def disconnect() -> None:
    """Closes this process's client; the next call finds a connection again."""
    client, _Process.client = _Process.client, None
    if client is not None and _Process.pid == os.getpid():
        client.close()


def _open() -> Client:
    from phalanx.client import Client

    connection = find()
    return Client(connection, renew=partial(find, again=True) if connection.embedded else None)
