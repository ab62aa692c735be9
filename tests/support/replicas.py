"""Controllers in this process for tests: each runs as a task, on a log that several may share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from phalanx.core.clock import Clock, SystemClock
from phalanx.core.ids import new_call_id
from phalanx.core.spec import FunctionSpec
from phalanx_control.controller import Controller
from phalanx_control.controller_parts import MakeSnapshot
from phalanx_control.controller_rules import Rules, Timing
from phalanx_control.log.log import LogStore, Snapshot
from phalanx_control.state import commands as c
from phalanx_control.state import events as ev
from phalanx_control.state.model import BodyRef, Gang, Owner
from tests.support.wait import wait_until_async

OWNER = Owner(workspace="w", user="ana")
SPEC = FunctionSpec(name="f", module="m")


def no_peers(gang: Gang) -> tuple[str, ...]:
    """Signs a ticket per other member that names its node."""
    return tuple(f"ticket for {m.member.node_id}" for m in gang.members[1:])


@dataclass(slots=True)
class Replica:
    controller: Controller
    task: asyncio.Task[None] = field(repr=False)

    async def stop(self) -> None:
        """Ends the replica in order."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def start_replica(
    log: LogStore,
    name: str = "a",
    *,
    clock: Clock | None = None,
    rules: Rules | None = None,
    timing: Timing | None = None,
    make_snapshot: MakeSnapshot | None = None,
) -> Replica:
    controller = Controller(
        log,
        clock or SystemClock(),
        replica_id=name,
        address=f"{name}:1",
        rules=rules or Rules(sign_peers=no_peers),
        timing=timing,
        make_snapshot=make_snapshot,
    )
    return Replica(controller, asyncio.create_task(controller.run()))


@asynccontextmanager
async def leading(log: LogStore, name: str = "a", **options: object) -> AsyncGenerator[Controller]:
    """Yields a controller that leads, with the function of SPEC registered."""
    replica = start_replica(log, name, **options)  # pyright: ignore[reportArgumentType]
    try:
        await leads(replica)
        await replica.controller.execute(c.RegisterFunction(owner=OWNER, spec=SPEC))
        yield replica.controller
    finally:
        await replica.stop()


async def leads(replica: Replica, timeout_s: float = 10) -> None:
    await wait_until_async(
        lambda: replica.controller.is_leader or replica.task.done(), f"{replica.controller.leader_id} leads", timeout_s
    )
    if replica.task.done():
        replica.task.result()


async def submit(controller: Controller, call_id: str = "", body: bytes = b"") -> str:
    """Submits one call of SPEC and returns its id once it is accepted."""
    call_id = call_id or new_call_id()
    args = BodyRef(key=f"{call_id}/args", size=len(body)) if body else BodyRef()
    command = c.Submit(call_id=call_id, function_id=SPEC.function_id, owner=OWNER, args=args)
    await controller.execute(command, {args.key: body} if body else {})
    return call_id


async def trim(log: LogStore, snapshot: Snapshot) -> None:
    """Lets the log begin at the snapshot, as a leader does."""
    taken = await log.acquire(await log.leader(), leader_id="trimmer", address="")
    assert taken is not None
    await log.trim(snapshot, epoch=taken.epoch, leader_id="trimmer")
    await log.resign(taken.epoch, "trimmer")


def kinds(events: ev.Events) -> list[str]:
    return [type(event).__name__ for event in events]
