"""Where a change goes: to the leader elsewhere, or nowhere else, because this replica has just become it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phalanx.core.errors import ConnectionFailedError
from phalanx_control.service.forward import LeaderForwarder
from phalanx_proto.v1 import control_pb2

OWN, OTHER = "127.0.0.1:1", "127.0.0.1:2"


class _Leadership:
    """Says in turn what a replica learns; the last for ever. None: this replica leads."""

    leader_id = "a.1"

    def __init__(self, *learned: str | None) -> None:
        self._learned = list(learned)

    @property
    def is_leader(self) -> bool:
        return self._learned[0] is None

    @property
    def leader_address(self) -> str:
        address = self._learned.pop(0) if len(self._learned) > 1 else self._learned[0]
        return address or ""


def _asked(*learned: str | None, within_s: float = 10) -> str:
    reach: Any = None
    forwarder = LeaderForwarder(
        _Leadership(*learned), replica_id="a", own_address=OWN, ca_pem=b"", reach=reach, leader_wait_s=within_s
    )
    return asyncio.run(forwarder.leader_elsewhere())


def test_a_known_leader_is_named() -> None:
    assert _asked(OTHER) == OTHER


def test_a_replica_that_leads_is_nobody_elsewhere() -> None:
    assert not _asked(None)


def test_a_replica_that_becomes_leader_meanwhile_stops_looking_for_one() -> None:
    assert not _asked("", OWN, None)


def test_without_a_leader_the_wait_has_an_end() -> None:
    with pytest.raises(ConnectionFailedError, match="no leader"):
        _asked("", within_s=0.1)


class _Context:
    """Of a call that a client made, with time left."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def time_remaining(self) -> float:
        return 20.0


class _Reach:
    def statement(self) -> str:
        return ""


async def test_what_was_under_way_to_a_leader_that_is_none_any_more_is_to_be_asked_again() -> None:
    """The channel to it is closed, and cancels what is on it: the client's own call goes on."""
    never = asyncio.Event()
    came = asyncio.Event()

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await never.wait()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    reach: Any = _Reach()
    forwarder = LeaderForwarder(_Leadership(OTHER), replica_id="a", own_address=OWN, ca_pem=b"", reach=reach)
    request = control_pb2.CallId(call_id="c-1")
    asking = asyncio.create_task(forwarder.forward(f"{host}:{port}", "/x/CancelCall", request, _Context()))
    async with asyncio.timeout(20):
        await came.wait()
        await forwarder.close()
        with pytest.raises(ConnectionFailedError, match="the leader changed meanwhile"):
            await asking
    never.set()
    server.close()
