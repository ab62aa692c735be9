"""Where a change goes: to the leader elsewhere, or nowhere else, because this replica has just become it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phalanx.core.errors import ConnectionFailedError
from phalanx_control.service.forward import LeaderForwarder

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
