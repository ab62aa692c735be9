"""New kinds of events: written only when every live replica reads them, and marked so that an old one can tell."""

from __future__ import annotations

import gzip
import json

import pytest

from phalanx.core.clock import SystemClock
from phalanx.core.messages import DirectCalls, DirectReport, Hello
from phalanx_control.controller import Controller
from phalanx_control.log.folding import encode_state
from phalanx_control.log.memory import MemoryLog
from phalanx_control.state import commands as c
from phalanx_control.state.model import SCHEMA_VERSION
from tests.support.builders import node_info
from tests.support.replicas import leading, submit
from tests.support.wait import wait_until_async

LONG_MS = 60_000


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(SystemClock())


async def report_direct_call(controller: Controller, seq: int) -> list[int]:
    """Lets an agent report one short direct call; returns the schema version of each batch from then on."""
    gang = next(iter(controller.state.gangs.values()))
    report = DirectReport(calls=(DirectCalls(gang_id=gang.id, fence=gang.fence, succeeded=1),))
    await controller.execute(c.AgentSaid(node_id="n1", message=report, seq=seq))
    return [batch.schema for batch in await controller._log.read_after(controller.seq - 1)]  # pyright: ignore[reportPrivateUsage]


async def with_gang(controller: Controller) -> None:
    await controller.execute(c.AgentSaid(node_id="n1", message=Hello(node=node_info("n1"))))
    await submit(controller)


def snapshot_schema(controller: Controller) -> int:
    return json.loads(gzip.decompress(encode_state(controller.state)))["schema"]


async def agreed(controller: Controller, schema: int) -> None:
    peers = controller._parts.peers  # pyright: ignore[reportPrivateUsage]
    await wait_until_async(lambda: peers.writable(controller.state) == schema, f"schema {schema} is agreed on")


async def test_a_lone_replica_writes_all_that_it_reads(log: MemoryLog) -> None:
    async with leading(log) as controller:
        await with_gang(controller)
        await agreed(controller, SCHEMA_VERSION)
        assert [batch.schema for batch in await log.read_after(0)] == [1] * controller.seq
        assert snapshot_schema(controller) == 1
        assert await report_direct_call(controller, seq=1) == [2]
        assert snapshot_schema(controller) == 2


async def test_beside_an_old_replica_nothing_is_written_that_it_could_not_read(log: MemoryLog) -> None:
    await log.announce("old", 1, ttl_ms=LONG_MS)
    async with leading(log) as controller:
        await with_gang(controller)
        await agreed(controller, 1)
        assert await report_direct_call(controller, seq=1) == [1]
        assert next(iter(controller.state.stats.values())).direct_succeeded == 1


async def test_what_is_in_the_log_already_may_go_on(log: MemoryLog) -> None:
    async with leading(log) as controller:
        await with_gang(controller)
        await agreed(controller, SCHEMA_VERSION)
        await report_direct_call(controller, seq=1)
    await log.announce("old", 1, ttl_ms=LONG_MS)
    async with leading(log, "b") as controller:
        assert await report_direct_call(controller, seq=2) == [2]
