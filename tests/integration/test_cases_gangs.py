"""Gangs in trouble, end to end: one culprit, bounded ends, and no two gangs in each other's way."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing
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


def one_fails(how: str, culprit: int) -> None:
    """The culprit fails as told; the others sleep, or wait for it in a collective."""
    import os
    import threading

    import torch
    import torch.distributed as dist

    rank = phalanx.current().rank
    if rank != culprit:
        if how == "raise":
            dist.all_reduce(torch.ones(1))
        threading.Event().wait(600)
    match how:
        case "exit":
            os._exit(1)
        case "block":
            import atexit

            atexit.register(threading.Event().wait)
            raise KeyError("its own mistake")
        case _:
            raise ValueError("its own mistake")


def mismatched() -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1000 if phalanx.current().rank == 0 else 10))


def cannot_connect(how: str, folder: str) -> None:
    """The last rank raises what a lost peer could also have caused; nobody else fails."""
    import threading

    import torch.distributed as dist

    if phalanx.current().rank != 3:
        threading.Event().wait(600)
    (Path(folder) / str(phalanx.current().attempt)).touch()
    raise dist.DistNetworkError("refused") if how == "collective" else ConnectionRefusedError(111, "refused")


def port_and_sum() -> tuple[str, int]:
    import os

    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    dist.all_reduce(total)
    return os.environ["MASTER_PORT"], int(total.item())


def test_one_exit_ends_all_and_the_culprit_is_named(nodes: int) -> None:
    began = time.monotonic()
    call = work.gang(one_fails, nodes=nodes).spawn("exit", 2)
    with pytest.raises(phalanx.RankDiedError, match="exited 1") as caught:
        call.get(60)
    assert caught.value.rank == 2
    assert time.monotonic() - began < 45


def test_the_callers_exception_is_the_guilty_ranks_and_not_a_victims(nodes: int) -> None:
    call = work.gang(one_fails, nodes=nodes).spawn("raise", 1)
    with pytest.raises(ValueError, match="its own mistake") as caught:
        call.get(60)
    assert getattr(caught.value, "rank", None) == 1
    ranks = {r.rank: r.culprit for r in call.status().error.ranks}
    assert ranks.get(0, False) is False


@pytest.mark.parametrize("how", ["socket", "collective"])
def test_a_connection_error_of_the_users_own_is_the_callers_and_eats_the_users_retries(
    nodes: int, how: str, tmp_path: Path
) -> None:
    call = work.gang(cannot_connect, nodes=nodes, retries=1).spawn(how, str(tmp_path))
    with pytest.raises(RuntimeError if how == "collective" else ConnectionRefusedError, match="refused"):
        call.get(60)
    assert call.status().error.cause == "user_exception"
    assert [r.rank for r in call.status().error.ranks if r.culprit] == [3]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_mismatched_sizes_end_the_call_with_the_ranks_own_words(nodes: int) -> None:
    call = work.gang(mismatched, nodes=nodes).spawn()
    with pytest.raises(Exception, match=r".") as caught:
        call.get(60)
    assert not isinstance(caught.value, phalanx.GetTimeoutError)
    assert call.status().state == "failed"
    assert call.status().error.ranks


@pytest.mark.slow
def test_gangs_started_at_once_do_not_collide_on_a_port(nodes: int) -> None:
    with closing(socket.socket()) as foreign:
        foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        foreign.bind(("127.0.0.1", 29500))
        functions = [work.gang(port_and_sum, nodes=nodes, gpus=2, name=f"pair-{n}") for n in range(4)]
        results = [call.get(60) for call in [f.spawn() for f in functions]]
    assert [total for _, total in results] == [2] * 4
    assert "29500" not in {port for port, _ in results}


@pytest.mark.slow
def test_ranks_of_the_other_node_end_when_an_agent_is_lost(cluster: Cluster, tmp_path: Path) -> None:
    call = work.gang(work.hold, nodes=2, disconnect_grace=1).spawn(str(tmp_path))
    work.wait_for_ranks(tmp_path)
    pids = work.pids_of(call)
    other = 1 - int(call.ranks()[0].node_id.removeprefix("n"))
    cluster.kill_agent(other)
    began = time.monotonic()
    wait_until(lambda: work.gone(pids), "every rank is gone", 30)
    assert time.monotonic() - began < 1 + 8 + 10
    cluster.start_agent(other)
    with pytest.raises(phalanx.CallError):
        call.get(60)


@pytest.mark.slow
def test_an_exit_handler_that_blocks_does_not_hide_the_error(nodes: int) -> None:
    began = time.monotonic()
    call = work.gang(one_fails, nodes=nodes, grace=1).spawn("block", 0)
    with pytest.raises(KeyError, match="its own mistake"):
        call.get(60)
    assert time.monotonic() - began < 45


@pytest.mark.slow
def test_a_signal_that_ends_a_rank_is_named(nodes: int, tmp_path: Path) -> None:
    call = work.gang(work.die, nodes=nodes).spawn(str(tmp_path), int(signal.SIGABRT))
    with pytest.raises(phalanx.RankDiedError, match="SIGABRT"):
        call.get(60)
