"""What links are worth by the model: the samples' figures, NCCL's constants, and what is unknown."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from phalanx.core.topology.bitsets import mask_of
from phalanx.core.topology.figures import Figures, figures_of, known_link, nvlink_mbyte_s, pcie_gen
from phalanx.core.topology.importers.topo_text import read_topo_text
from phalanx.core.topology.node import Gpu, Link, NodeTopology, Path
from phalanx.core.topology.tables import Score, build_tables
from tests.support.brute_force import best_ring, pair_sum
from tests.support.choice_answers import NODE_SAMPLES, BestSets, Sets, choice_answers, linked, read_sample
from tests.support.topologies import needs_samples, pcie_node


def weights_of(node: NodeTopology, figures: Figures) -> list[list[int]]:
    count = len(node.gpus)
    return [[figures.link_mbyte_s(node, i, j) if i != j else 0 for j in range(count)] for i in range(count)]


def best_by_links(weights: list[list[int]], size: int) -> tuple[tuple[int, int], set[int]]:
    """The best bottleneck and pair sum, and all sets that reach both; by trying everything."""
    ranked = {mask_of(each): (0, 0) for each in combinations(range(len(weights)), size)}
    for mask in ranked:
        ranked[mask] = best_ring(weights, mask), pair_sum(weights, mask)
    best = max(ranked.values())
    return best, {mask for mask, value in ranked.items() if value == best}


def agree(found: set[int], answer: Sets) -> bool:
    named = answer.masks is None or found == set(answer.masks)
    return len(found) == answer.count and named and (answer.first is None or answer.first in found)


@needs_samples
@pytest.mark.parametrize("name", NODE_SAMPLES)
def test_every_figure_and_best_set_of_a_sample_comes_out(name: str) -> None:
    node, answers = read_sample(name), choice_answers(name)
    assert answers.best is not None
    assert [best.size for best in answers.best] == list(
        range(2, min(len(node.gpus), 4 if len(node.gpus) > 3 else 2) + 1)
    )
    weights = weights_of(node, answers.figures(node))
    for answer in answers.best:
        figures, sets = best_by_links(weights, answer.size)
        assert figures == (answer.ring_mbyte_s, answer.pairs_mbyte_s)
        assert agree(sets, answer.by_links)


@needs_samples
@pytest.mark.parametrize("name", NODE_SAMPLES)
def test_the_best_sets_of_a_sample_are_the_same_with_other_figures(name: str) -> None:
    node, answers = read_sample(name), choice_answers(name)
    per_link = answers.nvlink_gbyte_s
    for gen, factor in ((3, 1.0), (5, 1.25)):
        weights = weights_of(node, figures_of(node, nvlink_gbyte_s=per_link * factor, gen=gen))
        for answer in answers.best or []:
            assert answer.robust
            assert agree(best_by_links(weights, answer.size)[1], answer.by_links)


@needs_samples
@pytest.mark.parametrize("name", NODE_SAMPLES)
def test_ties_of_a_sample_are_broken_by_numa_nodes_and_network_ports(name: str) -> None:
    node, answers = read_sample(name), choice_answers(name)
    tables = build_tables(node, answers.figures(node))
    for answer in answers.best or []:
        value, masks = tables.order[answer.size][0]
        score = Score.of(value)
        assert (score.ring_mbyte_s, score.pairs_mbyte_s) == (answer.ring_mbyte_s, answer.pairs_mbyte_s)
        assert masks[0] == answer.canonical
        assert agree(set(masks), tied(answer))


def tied(answer: BestSets) -> Sets:
    return answer.after_ties or answer.by_links


@pytest.mark.parametrize(
    ("compute", "mbyte_s"),
    [(60, 18_000), (70, 20_000), (75, 20_000), (80, 20_000), (86, 12_000), (89, 20_000), (90, 20_600), (100, 40_100)],
)
def test_an_nvlink_is_worth_what_nccl_counts_for_its_generation(compute: int, mbyte_s: int) -> None:
    assert nvlink_mbyte_s(compute) == mbyte_s


def test_an_nvlink_of_an_unknown_or_older_gpu_is_worth_what_nccl_counts_then() -> None:
    assert nvlink_mbyte_s(None) == nvlink_mbyte_s(52) == 20_000


def test_a_gpu_of_unknown_model_is_believed_what_its_links_report() -> None:
    gpus = tuple(Gpu(uuid=str(at), index=at, nvlink_gbyte_s=25.0) for at in range(2))
    node = NodeTopology(gpus=gpus, links=((Link(), Link(nvlinks=12)), (Link(nvlinks=12), Link())))
    assert figures_of(node).link_mbyte_s(node, 0, 1) == 240_000


def test_between_two_generations_the_slower_link_counts() -> None:
    node = linked(2, {(1, 0): 4}, sockets=(2,), switches=(), compute=80)
    mixed = replace(node, gpus=(node.gpus[0], replace(node.gpus[1], compute=86)))
    assert figures_of(mixed).link_mbyte_s(mixed, 0, 1) == 48_000


def test_paths_keep_the_order_of_their_distance_in_every_generation() -> None:
    node = read_topo_text(pcie_node().text())
    for gen in range(1, 7):
        figures = [figures_of(node, gen=gen).path_mbyte_s[path] for path in Path]
        assert figures == sorted(figures, reverse=True)
        assert figures[0] == 3_000 * 2 ** (gen - 1)


@pytest.mark.parametrize(("compute", "gen"), [(None, 3), (37, 3), (70, 3), (80, 4), (89, 4), (90, 5), (100, 5)])
def test_the_pcie_generation_follows_the_gpu_where_the_node_does_not_say(compute: int | None, gen: int) -> None:
    node = linked(2, {}, sockets=(2,), switches=(), compute=compute)
    assert pcie_gen(node) == gen
    assert pcie_gen(replace(node, pcie_gen=2)) == 2
    assert pcie_gen(replace(node, pcie_gen=9)) == 6


def test_a_known_link_between_sockets_is_used_but_never_above_what_the_host_bridges_let_through() -> None:
    node = linked(2, {}, sockets=(1, 1), switches=(), compute=80)
    for socket, expected in ((16.0, 16_000), (40.0, 18_000), (0.0, 1)):
        told = replace(node, socket_gbyte_s=socket)
        assert figures_of(told).link_mbyte_s(told, 0, 1) == expected


def test_an_unknown_path_counts_as_the_farthest_and_a_known_direction_for_both() -> None:
    gpus = tuple(Gpu(uuid=str(at), index=at) for at in range(2))
    unknown = NodeTopology(gpus=gpus, links=((Link(), Link()), (Link(), Link())))
    assert figures_of(unknown).link_mbyte_s(unknown, 0, 1) == figures_of(unknown).path_mbyte_s[Path.SYS]
    cut_off = replace(unknown, links=((Link(), Link(0, Path.PIX, None, True)), (Link(copies=False), Link())))
    assert known_link(cut_off, 1, 0) == Link(0, Path.PIX, None, copies=False)
    assert known_link(replace(unknown, links=()), 0, 1) == Link()
