"""What user code does to its process, through real calls: the call ends as it must, and nothing outlives its gang."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import phalanx
from tests.faults import work
from tests.support.aftermath import judged_cluster
from tests.support.cluster import Cluster
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with judged_cluster(tmp_path_factory.mktemp("cluster"), agents=2) as running:
        yield running


@pytest.fixture(params=[1, 2], ids=["1x4", "2x2"])
def nodes(request: pytest.FixtureRequest) -> int:
    return request.param


def exits(code: int) -> int:
    import os

    if code >= 0:
        os._exit(code)
    return code


def leaves_children(folder: str, then: str) -> None:
    """Starts a child, a detached grandchild and a child that blocks on a pipe that it holds both ends of."""
    import multiprocessing
    import os
    import threading

    multiprocessing.get_context("fork").Process(target=threading.Event().wait, daemon=True).start()
    if os.fork() == 0:
        os.setsid()
        if os.fork() > 0:
            os._exit(0)
        threading.Event().wait()
    _, writing = os.pipe()
    if os.fork() == 0:
        while True:
            os.write(writing, bytes(1 << 16))
    work.arrive(folder)
    if then == "crash":
        threading.Event().wait(0.2)
        os._exit(9)
    work.hold(folder)


def terminates_itself(really: bool) -> str:
    import os
    import signal
    import threading

    if really:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(20)
    return "ok"


def returns_twice() -> bool:
    import os

    return os.fork() > 0


def leaves_a_thread() -> str:
    import threading

    threading.Thread(target=threading.Event().wait).start()
    return "returned"


def ranks_processes(cluster: Cluster) -> int:
    """Returns how many processes there are beside the programs and their warm zygotes."""
    return len(cluster.processes())


@pytest.mark.parametrize("code", [0, 7])
def test_an_exit_is_a_failure_that_is_not_retried_and_the_next_call_works(code: int) -> None:
    function = work.single(exits)
    call = function.spawn(code)
    with pytest.raises(phalanx.RankDiedError, match=f"process exited {code} before returning a result"):
        call.get(60)
    assert call.status().attempt == 1
    assert function.remote(-1) == -1


def test_a_sigterm_that_nobody_asked_for_fails_its_own_call_and_the_next_one_works() -> None:
    function = work.single(terminates_itself)
    with pytest.raises(phalanx.RankDiedError, match="was sent SIGTERM while it ran a call"):
        function.remote(True)
    assert [function.remote(False) for _ in range(3)] == ["ok"] * 3


def test_an_exit_is_tried_again_where_the_function_says_so(tmp_path: Path) -> None:
    def exits_first(folder: str) -> int:
        import os

        work.arrive(folder)
        if phalanx.current().attempt == 1:
            os._exit(3)
        return phalanx.current().attempt

    assert work.single(exits_first, retries=1).spawn(str(tmp_path)).get(60) == 2


@pytest.mark.parametrize("then", ["crash", "cancel"])
def test_no_child_outlives_the_gang(cluster: Cluster, nodes: int, then: str, tmp_path: Path) -> None:
    before = settled(cluster)
    call = work.gang(leaves_children, nodes=nodes).spawn(str(tmp_path), then)
    work.wait_for_ranks(tmp_path)
    if then == "cancel":
        assert ranks_processes(cluster) > before + 4 * 3
        call.cancel()
    with pytest.raises(phalanx.CallError):
        call.get(60)
    wait_until(lambda: ranks_processes(cluster) <= before, "only the programs are left", 20)


def settled(cluster: Cluster) -> int:
    """Returns the number of processes once no gang is there: programs and zygotes."""
    work.gang(work.sum_of_ranks, nodes=2).remote(1.0)
    client = cluster.connect()
    wait_until(lambda: not [g for g in client.list_gangs() if g.state not in ("released", "lost")], "no gang", 30)
    counts = [0, -1]
    wait_until(lambda: stable(counts, ranks_processes(cluster)), "the number of processes is steady", 20)
    return counts[-1]


def stable(counts: list[int], count: int) -> bool:
    counts.append(count)
    return len(counts) > 30 and len(set(counts[-30:])) == 1


def test_only_the_first_process_reports_when_a_fork_returns_too() -> None:
    function = work.single(returns_twice)
    calls = [function.spawn() for _ in range(3)]
    assert [call.get(60) for call in calls] == [True] * 3
    assert [phalanx.Call.from_id(call.id).get(60) for call in calls] == [True] * 3


def test_a_thread_that_never_ends_delays_neither_the_result_nor_the_end(cluster: Cluster, nodes: int) -> None:
    function = work.gang(leaves_a_thread, nodes=nodes, scaledown_window=0.5)
    function.remote()
    began = time.monotonic()
    assert function.remote() == "returned"
    assert time.monotonic() - began < 20
    client = cluster.connect()
    wait_until(lambda: not [g for g in client.list_gangs() if g.state not in ("released", "lost")], "it ended", 30)
