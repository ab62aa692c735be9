"""The ways that our scheduler is compared with, on fleets small enough to be worked out by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

pytest.importorskip("numpy", reason="the peers of the packing benchmark compute with it")

from benchmarks import scheduler_domains, scheduler_latency, scheduler_packing, scheduler_philly
from benchmarks.scheduler_peers.ours import pack_ours
from benchmarks.scheduler_peers.packing import Fgd, arrivals, pack, scored_at_random, scored_best_fit, typical_of
from benchmarks.scheduler_peers.picks import Paths, hived, kai, kueue, slurm_tree

from phalanx_control.simulator.grid import Grid, Pick
from phalanx_control.simulator.jobs import Job
from phalanx_control.simulator.machines import from_words

PATHS: Paths = {at: (f"leaf-{at // 4}", "pod") for at in range(8)}


def jobs_of(*gpus: float, cpus: float = 0) -> list[Job]:
    return [
        Job(number=at, at_ms=at, duration_ms=None, gpus=each, cpus=cpus, one_node=True) for at, each in enumerate(gpus)
    ]


@pytest.mark.parametrize("score", [scored_at_random, scored_best_fit])
def test_packing_counts_what_is_held_when_as_much_as_there_is_was_asked_for(score: object) -> None:
    fleet = from_words("2x2")
    jobs = jobs_of(1, 1, 0.5, 0.7, 1)
    assert pack(fleet, jobs, score, dice=random.Random(1)) == pytest.approx(3.2 / 4)  # pyright: ignore[reportArgumentType]


def test_fgd_leaves_gaps_that_the_mix_can_use() -> None:
    fleet = from_words("2x1")
    jobs = jobs_of(0.5, 0.2, 0.3, 0.5, 0.5)
    typical = typical_of(jobs_of(*[0.5] * 99, 0.2))
    assert pack(fleet, jobs, Fgd(typical)) == pytest.approx(1.0)


def test_our_own_placement_is_driven_the_same_way() -> None:
    assert pack_ours(from_words("2x2"), jobs_of(1, 1, 0.5, 0.5, 1)) == pytest.approx(1.0)


def test_arrivals_are_all_jobs_in_a_drawn_order_and_more_of_them() -> None:
    jobs = jobs_of(1, 2, 4)
    order = arrivals(jobs, 1, 10_000, inflated=1.2)
    assert sorted(job.gpus for job in order[:3]) == [1, 2, 4]
    assert sum(job.milli for job in order) >= 12_000
    assert order == arrivals(jobs, 1, 10_000, inflated=1.2)


def chosen(pick: Pick, taken: Sequence[int], gpus: int) -> list[int]:
    """Returns the nodes of a gang of whole nodes of two GPUs, where others are taken."""
    grid = Grid(from_words("8x2"))
    for at in taken:
        grid.whole[at], grid.free[at] = 0, [0, 0]
    parts = grid.place(Job(number=0, at_ms=0, duration_ms=None, gpus=gpus), pick)
    return sorted(grid.at(part.node_id) for part in parts or ())


@pytest.mark.parametrize("make", [slurm_tree, kueue, kai])
def test_gangs_go_to_the_leaf_that_has_the_least_to_spare(make: object) -> None:
    assert chosen(make(PATHS), [0, 1], 4) == [2, 3]  # pyright: ignore[reportCallIssue, reportUnknownArgumentType]
    assert len({at // 4 for at in chosen(make(PATHS), [0, 1], 6)}) == 1  # pyright: ignore[reportCallIssue, reportUnknownArgumentType]


def test_buddy_cells_are_aligned_or_not_given() -> None:
    assert chosen(hived(PATHS), [0], 4) == [2, 3]
    assert chosen(hived(PATHS), [0, 3, 4, 7], 4) == []


def test_nearness_is_measured_for_every_policy() -> None:
    rows = {row.policy: row for row in scheduler_domains.measure(nodes=64, arrivals=300)}
    assert rows["ours"].lowest == rows["ours"].several > 10
    assert rows["random"].lowest < rows["random"].several
    assert scheduler_domains.table(list(rows.values())).count("\n") == 1 + len(rows)


def test_passes_are_timed_in_a_full_cell() -> None:
    timed = scheduler_latency.measure(16, decisions=10)
    assert timed.held > 0.8
    assert sum(timed.started) >= 10
    assert scheduler_latency.table([timed]).count("\n") == 2


def test_the_published_figures_stand_beside_ours() -> None:
    row = scheduler_packing.Packed(jobs="default", policy="FGD", allocated=[95.0, 95.2], published=95.23)
    assert "| default | FGD | 95.10 | 95.00 to 95.20, 2 | 95.23 |" in scheduler_packing.table([row])
    assert set(scheduler_philly.POLICIES) >= {"FIFO, best fit", "ours, durations unknown"}
