"""The benchmark of choices inside a node: its best-effort peer gives the reference answers, its figures add up."""

from __future__ import annotations

import random

import pytest
from benchmarks.topology import best_rings, measure, misses, over_time, own_nodes, table
from benchmarks.topology_policies import BestEffort, at_random, first_index

from phalanx.core.topology.tables import build_tables
from tests.support.choice_answers import ReferenceRow, dgx1_v100, members, reference_node, reference_rows
from tests.support.topologies import SAMPLES

ROWS = [row for row in reference_rows() if row.policy.startswith("best-effort")] if SAMPLES.is_dir() else []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.case))
def test_best_effort_gives_the_reference_answers(row: ReferenceRow) -> None:
    policy = BestEffort(reference_node(row.node))
    free = (1 << len(reference_node(row.node).gpus)) - 1 if row.available is None else row.available
    for size, expected in zip(row.sizes, row.expected.split(" | "), strict=True):
        mask = policy.pick(free, size, row.required)
        assert mask == (0 if expected == "none" else members(expected))
        free &= ~mask


def test_simple_policies_give_free_gpus_or_nothing() -> None:
    assert first_index(0b1101, 2) == 0b101
    assert first_index(0b1, 2) == at_random(random.Random(1))(0b1, 2) == 0
    assert at_random(random.Random(1))(0b1101, 3) == 0b1101


def test_every_policy_places_the_same_gangs_and_ours_is_never_below_best_effort_here() -> None:
    node = dgx1_v100()
    result = measure("dgx1", node, 20, 5)
    assert result.best_share["ours"] == 1.0 > result.best_share["best_effort"] > result.best_share["random"]
    assert result.quality["ours"] >= result.quality["best_effort"] > result.quality["random"]
    assert result.choices == sum(max(0, free.bit_count() - 1) for free in range(256))
    assert result.gangs > 100
    assert "| dgx1 | 8 | 100.0% |" in table([result])
    best = best_rings(build_tables(node).weights)
    assert over_time(best, {"ours": first_index}, 20, "5 dgx1")[0] == result.gangs


def test_a_missed_aim_is_named() -> None:
    result = measure("dgx1", dgx1_v100(), 2, 5)
    result.best_share["ours"], result.quality["ours"] = 0.5, 0.0
    result.build_ms, result.choice_us = (6.0, 6.0), (51.0, 51.0)
    assert [line.split()[1] for line in misses([result])] == ["the", "quality", "tables", "a"]


def test_without_the_samples_our_own_nodes_are_measured() -> None:
    assert {"cube_mesh", "pcie_node", "dgx1_p100"} <= own_nodes().keys()
