"""A control plane's client that only remembers what was registered, as this process's connection."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from phalanx import connection
from phalanx.client import Client
from phalanx.core.spec import FunctionSpec


class RegisteringClient:
    """Takes code and functions, and nothing else."""

    def __init__(self) -> None:
        self.registered: list[str] = []
        self.blobs: dict[str, bytes] = {}

    def put_missing(self, blobs: dict[str, bytes]) -> None:
        self.blobs |= blobs

    def register(self, spec: FunctionSpec) -> str:
        self.registered.append(spec.function_id)
        return spec.function_id

    def close(self) -> None:
        """Nothing is open."""


@contextmanager
def connected() -> Generator[RegisteringClient]:
    """Makes a fresh one the process's connection for a while."""
    client = RegisteringClient()
    install(client)
    try:
        yield client
    finally:
        connection.disconnect()


def install(client: Any) -> None:
    """Makes ``client`` the process's connection; `phalanx.connection.disconnect` ends that."""
    process: Any = connection._Process  # pyright: ignore[reportPrivateUsage]
    process.client = cast("Client", client)
    process.pid = os.getpid()
