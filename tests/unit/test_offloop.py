"""Bursts from threads reach the loop in portions and in order; what blocks is done behind it, once for many wishes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from phalanx_agent.discovery.offloop import PORTION, Behind, Inbox
from tests.support.wait import wait_until


async def until(condition: object, what: str) -> None:
    assert callable(condition)
    await asyncio.to_thread(wait_until, condition, what, 10.0)


async def test_a_storm_from_a_thread_arrives_whole_in_order_and_in_portions() -> None:
    got: list[int] = []
    portions: list[int] = []

    def take(items: Sequence[int]) -> None:
        got.extend(items)
        portions.append(len(items))

    inbox = Inbox[int](asyncio.get_running_loop(), take)
    storm = threading.Thread(target=lambda: [inbox.put(at) for at in range(10_000)])
    storm.start()
    await until(lambda: len(got) == 10_000, "all have arrived")
    storm.join(10)
    assert got == list(range(10_000))
    assert max(portions) <= PORTION


async def test_others_have_their_turn_between_two_portions() -> None:
    turns: list[str] = []
    loop = asyncio.get_running_loop()
    inbox = Inbox[int](loop, lambda _: turns.append("portion"))
    for at in range(PORTION * 3):
        inbox.put(at)
    loop.call_soon(turns.append, "other")
    await until(lambda: turns.count("portion") == 3, "all were taken")
    assert turns.index("other") < 3


async def test_work_behind_is_done_once_more_for_what_was_asked_meanwhile_and_last_of_all() -> None:
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)
    done: list[int] = []
    threads: set[int] = set()

    def work() -> None:
        threads.add(threading.get_ident())
        begun.release()
        go_on.acquire(timeout=10)
        done.append(1)

    behind = Behind()
    behind.ask()
    job = asyncio.create_task(behind.run(work))
    assert await asyncio.to_thread(begun.acquire, timeout=10)
    for _ in range(1000):
        behind.ask()
    go_on.release()
    assert await asyncio.to_thread(begun.acquire, timeout=10)
    assert threading.get_ident() not in threads
    go_on.release(2)
    await until(lambda: len(done) == 2, "it was done once more")
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)
    assert len(done) == 3, "what was asked for last is done before it ends"
