"""Cancel, timeout and retries end to end: each has one defined end, and the caller is told the truth."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

import phalanx
from tests.faults import work
from tests.support.cluster import Cluster
from tests.support.wait import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]


def fail_first(folder: str, times: int) -> int:
    """Raises in the first ``times`` attempts, and returns the number of the one that did not."""
    work.arrive(folder)
    attempt = phalanx.current().attempt
    if attempt <= times:
        raise LookupError(f"attempt {attempt}")
    return attempt


def sleep_on(folder: str) -> None:
    import time

    work.arrive(folder)
    time.sleep(120)


# ---- cancel ----


def test_a_running_call_is_cancelled_when_its_ranks_are_gone(nodes: int, tmp_path: Path) -> None:
    call = work.gang(sleep_on, nodes=nodes).spawn(str(tmp_path))
    work.wait_for_ranks(tmp_path)
    pids = work.pids_of(call)
    began = time.monotonic()
    assert call.cancel().state == "cancelled"
    assert time.monotonic() - began < 5
    assert work.gone(pids)
    with pytest.raises(phalanx.CallCancelledError):
        call.get(10)


def test_a_queued_call_is_cancelled_and_never_runs(cluster: Cluster, tmp_path: Path) -> None:
    function = work.gang(work.hold, gpus=8, nodes=2)
    first, second = function.spawn(str(tmp_path)), function.spawn(str(tmp_path))
    work.wait_for_ranks(tmp_path, 8, call=first)
    assert second.cancel().state == "cancelled"
    work.go(tmp_path)
    first.get(60)
    assert not work.arrivals(tmp_path, second)


def test_cancelling_twice_or_after_the_end_changes_nothing(tmp_path: Path) -> None:
    function = work.single(work.hold)
    call = function.spawn(str(tmp_path))
    work.wait_for_ranks(tmp_path, 1)
    call.cancel(wait=False)
    assert call.cancel().state == "cancelled"
    assert phalanx.Call.from_id(call.id).cancel().state == "cancelled"
    work.go(tmp_path)
    done = function.spawn(str(tmp_path), "value")
    assert done.get(60) == "value"
    assert done.cancel().state == "succeeded"
    assert done.get() == "value"


# ---- timeout ----


def test_a_call_over_its_time_is_ended_within_bounds_and_says_so(nodes: int, tmp_path: Path) -> None:
    call = work.gang(sleep_on, nodes=nodes, timeout=1).spawn(str(tmp_path))
    work.wait_for_ranks(tmp_path)
    began = time.monotonic()
    with pytest.raises(phalanx.CallTimeoutError, match="1 s"):
        call.get(60)
    assert time.monotonic() - began < 1 + 2 + 2
    assert call.status().state == "timed_out"


@pytest.mark.slow
def test_the_function_may_return_in_the_instant_of_its_timeout(tmp_path: Path) -> None:
    function = work.single(pause, timeout=0.5, scaledown_window=3)
    ended = {"succeeded": 0, "timed_out": 0}
    for call in [function.spawn(0.5) for _ in range(4)]:
        with contextlib.suppress(phalanx.CallTimeoutError):
            assert call.get(60) == 0.5
        ended[call.status().state] += 1
    assert sum(ended.values()) == 4


def pause(seconds: float) -> float:
    import threading

    threading.Event().wait(seconds)
    return seconds


# ---- retries ----


@pytest.mark.slow
def test_a_user_error_is_tried_again_as_often_as_asked(nodes: int, tmp_path: Path) -> None:
    function = work.gang(fail_first, nodes=nodes, retries=1)
    assert function.spawn(str(tmp_path), 1).get(60) == 2


def test_without_retries_a_user_error_is_final(tmp_path: Path) -> None:
    call = work.single(fail_first).spawn(str(tmp_path), 1)
    with pytest.raises(LookupError, match="attempt 1"):
        call.get(60)
    assert call.status().attempt == 1


@pytest.mark.slow
def test_a_killed_rank_eats_no_retry_of_the_user(nodes: int, tmp_path: Path) -> None:
    function = work.gang(die_then_fail, nodes=nodes, retries=1)
    call = function.spawn(str(tmp_path))
    assert call.get(90) == 3
    assert call.status().attempt == 3


def die_then_fail(folder: str) -> int:
    """The first attempt is killed, the second raises, the third returns."""
    attempt = phalanx.current().attempt
    if attempt == 1:
        work.die(folder)
    return fail_first(folder, 2)


@pytest.mark.slow
def test_a_call_that_ends_three_gangs_is_poison(tmp_path: Path) -> None:
    call = work.gang(work.die, retries=9).spawn(str(tmp_path))
    with pytest.raises(phalanx.PoisonError, match="three gangs"):
        call.get(120)
    assert {name.split(".")[1] for name in work.arrivals(tmp_path)} == {"1", "2", "3"}


@pytest.mark.slow
def test_running_out_of_memory_is_named(tmp_path: Path) -> None:
    call = work.single(fill, memory_gb=0.3).spawn(1 << 30)
    with pytest.raises(MemoryError):
        call.get(60)


def fill(count: int) -> int:
    return len(bytearray(count))


@pytest.mark.slow
def test_a_call_that_waits_for_gpus_says_why(tmp_path: Path) -> None:
    function = work.gang(work.hold, gpus=8, nodes=2, name="all")
    first = function.spawn(str(tmp_path))
    work.wait_for_ranks(tmp_path, 8, call=first)
    second = work.gang(work.hold, name="more").spawn(str(tmp_path))
    wait_until(lambda: second.status().reason, "it says why it waits", 10)
    assert second.status().state == "queued"
    work.go(tmp_path)
    first.get(60)
    second.get(60)
