"""When waiting calls are placed: at once in a quiet cell, and behind the accepts of others where a backlog waits."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from phalanx.core.clock import SystemClock
from phalanx.core.messages import Hello
from phalanx_control.controller import Controller
from phalanx_control.controller_rules import Timing
from phalanx_control.log.memory import MemoryLog
from phalanx_control.state import commands as c
from tests.support.builders import node_info
from tests.support.replicas import kinds, leading, submit
from tests.support.wait import wait_until_async

NO_TICKS = Timing(tick_s=60)


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(SystemClock())


@pytest.fixture
async def controller(log: MemoryLog) -> AsyncIterator[Controller]:
    """Leads a cell with one node of two GPUs."""
    async with leading(log, timing=NO_TICKS) as leader:
        await leader.execute(c.AgentSaid(node_id="n1", message=Hello(node=node_info("n1", gpus=2))))
        yield leader


async def batches(log: MemoryLog, after: int) -> list[list[str]]:
    return [kinds(batch.events) for batch in await log.read_after(after)]


async def test_in_a_quiet_cell_a_call_gets_its_gang_with_its_own_append(log: MemoryLog, controller: Controller) -> None:
    before = controller.seq
    await submit(controller)
    (batch,) = await batches(log, before)
    assert batch[:2] == ["CallAccepted", "GangReserved"]


async def test_a_call_that_joins_a_backlog_costs_one_append_and_is_placed_later(
    log: MemoryLog, controller: Controller
) -> None:
    await submit(controller)
    before = controller.seq
    await submit(controller)
    assert (await batches(log, before))[0] == ["CallAccepted"]
    await wait_until_async(lambda: len(controller.state.gangs) == 2, "the second call has a gang of its own")
    assert "GangReserved" in (await batches(log, before))[-1]


async def test_a_pass_comes_though_calls_never_stop_coming(log: MemoryLog, controller: Controller) -> None:
    await submit(controller)
    before = controller.seq
    for _ in range(200):
        await submit(controller)
        if len(controller.state.gangs) == 2:
            break
    await wait_until_async(lambda: len(controller.state.gangs) == 2, "a gang is reserved")
    passes = [batch for batch in await batches(log, before) if "GangReserved" in batch]
    assert len(passes) == 1
