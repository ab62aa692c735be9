"""Gangs of many sizes at once: the operating system, not the product, says that no GPU was ever given twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import phalanx
from tests.faults import work
from tests.support.aftermath import judged_cluster
from tests.support.cluster import Cluster
from tests.support.history_checker import read_markers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes of eight GPUs."""
    with judged_cluster(tmp_path_factory.mktemp("cluster"), agents=2, gpus_per_agent=8) as running:
        yield running


def where(folder: str) -> tuple[tuple[str, ...], int]:
    """Returns the gang's GPUs and the sum over its ranks of one."""
    import torch
    import torch.distributed as dist

    work.arrive(folder)
    total = torch.ones(1)
    dist.all_reduce(total)
    return phalanx.current().gpus, int(total.item())


def double_holds(cluster: Cluster) -> list[str]:
    return [m.gpu for m in read_markers(cluster.markers) if m.op == "double_hold"]


def test_gangs_of_three_and_five_share_nodes_of_eight(cluster: Cluster, tmp_path: Path) -> None:
    sizes = [3, 5, 3, 5, 8, 3]
    functions = {n: work.gang(where, gpus=n, nodes=None, scaledown_window=0.5) for n in set(sizes)}
    calls = [functions[n].spawn(str(tmp_path)) for n in sizes]
    results = [call.get(90) for call in calls]
    assert [len(set(gpus)) for gpus, _ in results] == sizes
    assert [total for _, total in results] == sizes
    assert not double_holds(cluster)


def test_crashes_and_cancels_free_gpus_for_others_only_when_they_are_free(
    cluster: Cluster, nodes: int, tmp_path: Path
) -> None:
    crash, wait, work_on = tmp_path / "crash", tmp_path / "wait", tmp_path / "work"
    for folder in (crash, wait, work_on):
        folder.mkdir()
    dies = work.gang(work.die, nodes=nodes).spawn(str(crash))
    held = work.gang(work.hold, nodes=nodes).spawn(str(wait))
    after = [work.gang(where, nodes=nodes).spawn(str(work_on)) for _ in range(2)]
    work.wait_for_ranks(wait)
    assert held.cancel().state == "cancelled"
    with pytest.raises(phalanx.RankDiedError):
        dies.get(60)
    assert [call.get(60)[1] for call in after] == [4, 4]
    assert not double_holds(cluster)


def test_halves_of_one_gpu_are_two_leases_on_it(cluster: Cluster, tmp_path: Path) -> None:
    functions = [work.gang(work.hold, nodes=None, gpus=0.5, name=f"half-{n}") for n in range(2)]
    calls = [function.spawn(str(tmp_path), n) for n, function in enumerate(functions)]
    work.wait_for_ranks(tmp_path, 2)
    assert len({call.ranks()[0].gpu for call in calls}) == 1
    work.go(tmp_path)
    assert [call.get(60) for call in calls] == [0, 1]
