"""Retries, deadlines, overrides, idempotency keys and cancel, through real calls; the history is judged at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.call import Call
from phalanx.core.errors import InvalidSpecError
from phalanx.core.ids import new_call_id
from phalanx.core.views import CallView
from phalanx.runner import current
from tests.faults import work
from tests.support.aftermath import judged_cluster
from tests.support.cluster import Cluster
from tests.support.wait import wait_until

PATIENCE_S = 60.0
QUICK = phalanx.Retries(max_retries=3, backoff=1.5, initial_delay="200ms")


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with judged_cluster(tmp_path_factory.mktemp("cluster"), gpus_per_agent=4) as running:
        yield running


class Flaky(Exception):
    pass


class VeryFlaky(Flaky):
    pass


class Halt(BaseException):
    pass


def fails(kind: str, attempts: int) -> int:
    """Raises in its first attempts, and then returns which one it is."""
    attempt = phalanx.current().attempt
    if attempt <= attempts:
        error = {
            "flaky": VeryFlaky("not yet"),
            "value": ValueError("wrong"),
            "halt": Halt("stop"),
            "group": ExceptionGroup("both", [Flaky("a"), VeryFlaky("b")]),
            "mixed": ExceptionGroup("both", [Flaky("a"), ValueError("b")]),
        }[kind]
        raise error
    return attempt


retried = phalanx.gpu_function(gpus=0, retries=QUICK, retry_on=(Flaky, Halt), scaledown_window=2)(fails)
plain = phalanx.gpu_function(gpus=0, scaledown_window=2)(fails)


@phalanx.gpu_function(gpus=0, scaledown_window=2)
def waits_to_be_seen(seen: str) -> None:
    """Its second attempt fails when somebody has seen its output, or after too long."""
    attempt = phalanx.current().attempt
    if attempt == 2:
        wait_until(Path(seen).exists, "the attempt's output was followed", PATIENCE_S)
    if attempt < 3:
        raise VeryFlaky("not yet")


@phalanx.gpu_function(gpus=0, scaledown_window=2, grace=0.5)
def hold(folder: str) -> str:
    return work.hold(folder, "held")


@phalanx.gpu_function(gpus=0, scaledown_window=2, grace=0.5)
def sleeps(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"


@phalanx.gpu_function(gpus=4, scaledown_window=0.1, grace=0.5)
def takes_all(folder: str) -> str:
    return work.hold(folder, "had all")


@phalanx.gpu_function(gpus=0, scaledown_window=2)
def adds_line(folder: str, text: str) -> int:
    with (Path(folder) / "lines").open("a") as file:
        file.write(f"{text}\n")
    return len((Path(folder) / "lines").read_text().splitlines())


@phalanx.gpu_function(gpus=2, returns="all", scaledown_window=2)
def ranks() -> int:
    return phalanx.current().world_size


def wait_for(call: Call[Any], fits: Callable[[CallView], object], what: str) -> CallView:
    seen: list[CallView] = []

    def look() -> object:
        seen.append(call.status())
        return fits(seen[-1])

    wait_until(look, what, PATIENCE_S)
    return seen[-1]


# ---- timeouts ----


@phalanx.gpu_function(gpus=0, scaledown_window=2, grace=0.5, timeout=0.5)
def sleeps_briefly(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"


def warm(function: phalanx.Function[[float], str]) -> None:
    """Comes back when a call of the function goes straight to its gang."""
    wait_until(lambda: not logged_by(lambda: function.remote(0)), "its gang is warm", PATIENCE_S)


def logged_by(make: Callable[[], object]) -> set[str]:
    """Returns the calls that the control plane hears of by what ``make`` does."""
    client = current().client
    before = {call.call_id for call in client.list_calls(ended_too=True, limit=200)}
    make()
    return {call.call_id for call in client.list_calls(ended_too=True, limit=200)} - before


def test_a_call_with_a_timeout_of_its_own_goes_straight_to_a_warm_gang() -> None:
    warm(sleeps)
    assert not logged_by(lambda: sleeps.options(timeout=30).remote(0))


def test_such_a_call_ends_at_its_own_timeout() -> None:
    warm(sleeps)
    began = time.monotonic()
    with pytest.raises(phalanx.CallTimeoutError, match=r"timeout (of )?0\.6 s"):
        sleeps.options(timeout=0.6).remote(30)
    assert 0.6 <= time.monotonic() - began < 15


def test_a_timeout_of_its_own_may_be_longer_than_its_functions() -> None:
    warm(sleeps_briefly)
    assert sleeps_briefly.options(timeout=30).remote(2) == "slept", "also after its agent has heard of it"
    with pytest.raises(phalanx.CallTimeoutError):
        sleeps_briefly.remote(30)


# ---- retries ----


@pytest.mark.parametrize("kind", ["flaky", "halt", "group"])
def test_what_retry_on_names_is_tried_again(kind: str) -> None:
    assert retried.remote(kind, 2) == 3


@pytest.mark.parametrize(("kind", "error"), [("value", ValueError), ("mixed", ExceptionGroup)])
def test_what_it_does_not_name_fails_at_once(kind: str, error: type[Exception]) -> None:
    call = retried.spawn(kind, 1)
    with pytest.raises(error):
        call.get(PATIENCE_S)
    assert (call.status().attempt, call.status().retries_used) == (1, 0)


def test_a_call_that_waits_for_its_retry_says_which_and_why() -> None:
    slow = retried.options(retries=phalanx.Retries(max_retries=3, backoff=4, initial_delay=1))
    call = slow.spawn("flaky", 2)
    first = wait_for(call, lambda v: v.reason.startswith("retry 1"), "it waits for its first retry")
    assert (first.state, first.reason.partition(" after ")[0]) == ("queued", "retry 1 of 3 in 1.0 s")
    assert "VeryFlaky: not yet" in first.reason
    second = wait_for(call, lambda v: v.reason.startswith("retry 2"), "it waits for its second retry")
    assert second.reason.startswith("retry 2 of 3 in 4.0 s after ")
    assert call.get(PATIENCE_S) == 3
    assert (call.status().attempt, call.status().retries_used) == (3, 2)
    assert [line.text for line in call.logs()] == ["phalanx: attempt 2", "phalanx: attempt 3"]


def test_output_is_followed_from_attempt_to_attempt(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    call = waits_to_be_seen.options(retries=QUICK).spawn(str(seen))
    lines: list[str] = []
    for line in call.logs(follow=True):
        lines.append(line.text)
        seen.touch()  # the attempt that wrote it goes on only now
    assert lines == ["phalanx: attempt 2", "phalanx: attempt 3"]
    assert call.status().state == "succeeded"


def test_retries_of_the_call_stand_for_the_functions(tmp_path: Path) -> None:
    assert plain.options(retries=QUICK).remote("value", 1) == 2
    with pytest.raises(VeryFlaky):
        retried.options(retries=0).remote("flaky", 1)
    with pytest.raises(phalanx.CallTimeoutError):
        sleeps.options(timeout=0.5, retries=QUICK, retry_on=ValueError).remote(30)


def test_a_timeout_is_tried_again_where_retry_on_names_it() -> None:
    policy = phalanx.Retries(max_retries=1, initial_delay=0.1)
    call = sleeps.options(timeout=0.5, retries=policy, retry_on=TimeoutError).spawn(30)
    with pytest.raises(phalanx.CallTimeoutError, match=r"timeout of 0\.5 s"):
        call.get(PATIENCE_S)
    assert call.status().attempt == 2


# ---- deadlines ----


def test_a_queued_call_ends_at_its_deadline_and_says_what_it_waited_for(tmp_path: Path) -> None:
    busy = takes_all.spawn(str(tmp_path))
    work.wait_for_ranks(tmp_path, 4, busy)
    call = takes_all.options(deadline=1, grace=0.6).spawn(str(tmp_path))
    with pytest.raises(phalanx.CallTimeoutError, match=r"deadline, 1 s after .*: that came while it waited: .+"):
        call.get(10)
    assert call.status().state == "timed_out"
    work.go(tmp_path)
    assert busy.get(PATIENCE_S) == "had all"


def test_a_running_call_is_ended_at_its_deadline_with_its_processes(tmp_path: Path) -> None:
    sleeps.remote(0)
    call = sleeps.options(deadline=1.5).spawn(30)
    work.wait_for_state(call, "running")
    pids = work.pids_of(call, 1)
    with pytest.raises(phalanx.CallTimeoutError, match="that came when it was running"):
        call.get(15)
    assert work.gone(pids)


def test_a_call_that_waits_for_its_retry_ends_at_its_deadline() -> None:
    policy = phalanx.Retries(initial_delay=50)
    call = plain.options(retries=policy, deadline="2s").spawn("value", 9)
    with pytest.raises(phalanx.CallTimeoutError, match=r"waited: retry 1 of 3 in 50\.0 s after ValueError: wrong"):
        call.get(15)


def test_remote_keeps_to_its_deadline_too() -> None:
    with pytest.raises(phalanx.CallTimeoutError, match="did not end by its deadline"):
        sleeps.options(deadline=1).remote(30)
    assert sleeps.options(deadline=PATIENCE_S).remote(0) == "slept"


# ---- overrides ----


def test_terms_of_a_call_use_the_same_gang_and_other_gpus_another() -> None:
    assert ranks.remote() == [2, 2]
    gangs = {g.gang_id for g in current().client.list_gangs()}
    assert ranks.options(timeout=20, retries=1).remote() == [2, 2]
    assert {g.gang_id for g in current().client.list_gangs()} <= gangs
    assert ranks.options(gpus=3).remote() == [3, 3, 3]


def test_a_deployed_function_can_be_overridden() -> None:
    app = phalanx.App("terms")
    app.function(gpus=2, returns="all", scaledown_window=2)(ranks.wrapped)  # pyright: ignore[reportArgumentType]
    app.deploy()
    found = phalanx.Function.from_name("terms", "ranks")
    assert found.options(gpus=1, timeout=20).remote() == [1]
    assert found.remote() == [2, 2]


# ---- keys ----


def test_the_same_key_is_the_same_call_however_many_ask(tmp_path: Path) -> None:
    once = adds_line.options(idempotency_key=f"order-{tmp_path}")
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(once.spawn, str(tmp_path), "x") for _ in range(16)]
    calls = [each.result() for each in asked]
    assert len({call.id for call in calls}) == 1
    assert calls[0].get(PATIENCE_S) == 1
    assert once.remote(str(tmp_path), "x") == 1
    assert once.spawn(str(tmp_path), "x").id == calls[0].id
    assert calls[0].status().idempotency_key == f"order-{tmp_path}"
    assert adds_line.remote(str(tmp_path), "y") == 2


def test_the_same_key_with_other_arguments_is_refused_naming_the_first_call(tmp_path: Path) -> None:
    once = adds_line.options(idempotency_key="order-18")
    first = once.spawn(str(tmp_path), "x")
    with pytest.raises(InvalidSpecError, match=rf"'order-18' of adds_line stands for call {first.id}, which has other"):
        once.spawn(str(tmp_path), "another")
    with pytest.raises(InvalidSpecError, match=first.id):
        once.remote(str(tmp_path), "z" * 100_000)
    assert first.get(PATIENCE_S) == 1


def test_a_key_belongs_to_its_function(tmp_path: Path) -> None:
    first = adds_line.options(idempotency_key="order-19").spawn(str(tmp_path), "x")
    other = sleeps.options(idempotency_key="order-19").spawn(0)
    assert first.id != other.id
    variant = adds_line.options(gpus=1).options(idempotency_key="order-19").spawn(str(tmp_path), "x")
    assert variant.id == first.id, "with other resources it is the same function"


# ---- cancel ----


def queued(folder: Path) -> Call[Any]:
    busy = takes_all.spawn(str(folder))
    work.wait_for_ranks(folder, 4, busy)
    threading.Timer(20, work.go, (folder,)).start()
    call = takes_all.options(grace=0.7).spawn(str(folder))
    wait_for(call, lambda v: v.state == "queued" and v.reason, "it waits for GPUs")
    work.go(folder)
    return call


def waiting_for_retry(folder: Path) -> Call[Any]:
    call = plain.options(retries=phalanx.Retries(initial_delay=50)).spawn("value", 9)
    wait_for(call, lambda v: v.reason.startswith("retry 1"), "it waits for its retry")
    return call


def starting(folder: Path) -> Call[Any]:
    call = takes_all.options(grace=0.8).spawn(str(folder))
    wait_for(call, lambda v: v.gang_id or v.state != "queued", "its gang starts")
    return call


def assigned(folder: Path) -> Call[Any]:
    """It waits in the gang's queue, behind the call that runs."""
    running(folder)
    call = hold.spawn(str(folder))
    wait_for(call, lambda v: v.state in ("assigned", "running"), "it is at a gang")
    return call


def running(folder: Path) -> Call[Any]:
    call = hold.spawn(str(folder))
    work.wait_for_ranks(folder, 1, call)
    return call


def finishing(folder: Path) -> Call[Any]:
    call = running(folder)
    work.go(folder)
    return call


def succeeded(folder: Path) -> Call[Any]:
    call = finishing(folder)
    call.get(PATIENCE_S)
    return call


def failed(folder: Path) -> Call[Any]:
    call = plain.spawn("value", 9)
    with pytest.raises(ValueError, match="wrong"):
        call.get(PATIENCE_S)
    return call


def timed_out(folder: Path) -> Call[Any]:
    call = sleeps.options(timeout=0.3).spawn(30)
    with pytest.raises(phalanx.CallTimeoutError):
        call.get(PATIENCE_S)
    return call


CASES: dict[str, tuple[Callable[[Path], Call[Any]], set[str]]] = {
    "queued": (queued, {"cancelled"}),
    "waiting-for-retry": (waiting_for_retry, {"cancelled"}),
    "starting": (starting, {"cancelled"}),
    "assigned": (assigned, {"cancelled"}),
    "running": (running, {"cancelled"}),
    "finishing": (finishing, {"cancelled", "succeeded"}),
    "succeeded": (succeeded, {"succeeded"}),
    "failed": (failed, {"failed"}),
    "timed-out": (timed_out, {"timed_out"}),
}


@pytest.mark.parametrize("case", CASES)
def test_cancel_is_defined_in_every_state_and_the_same_when_repeated(case: str, tmp_path: Path) -> None:
    make, ends = CASES[case]
    call = make(tmp_path)
    assert call.cancel(wait=False).state in {"cancelling", *ends}
    ended = call.cancel()
    assert ended.state in ends
    again = call.cancel()
    assert (again.state, again.ended_ms, again.attempt) == (ended.state, ended.ended_ms, ended.attempt)
    assert Call.from_id(call.id).status().state == ended.state
    work.go(tmp_path)


def test_cancelling_a_call_that_does_not_exist_says_so() -> None:
    with pytest.raises(phalanx.NotFoundError, match="no call 'c-"):
        Call.from_id(new_call_id()).cancel()


def test_a_timeout_in_the_instant_of_the_return_has_one_outcome_everywhere(cluster: Cluster) -> None:
    sleeps.remote(0)
    calls = [sleeps.options(timeout=0.3).spawn(0.25 + 0.01 * n) for n in range(10)]
    for call in calls:
        try:
            outcome = {call.get(PATIENCE_S): "succeeded"}["slept"]
        except phalanx.CallTimeoutError:
            outcome = "timed_out"
        assert call.status().state == outcome
        assert current().client.get_call(call.id).state == outcome
        assert [c.state for c in current().client.list_calls(ended_too=True, limit=200) if c.call_id == call.id] == [
            outcome
        ]
