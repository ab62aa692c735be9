"""Tensor and expert groups stay within nodes and NVLink domains wherever there are ranks enough for it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.errors import InvalidSpecError
from phalanx.core.topology.axes import Axes, Layout, Place, lay_out


def places(*nodes: tuple[str, int]) -> list[Place]:
    """Ranks of nodes, each named ``domain/node`` and with so many ranks."""
    return [tuple(name.split("/")) for name, ranks in nodes for _ in range(ranks)]


def crossing(groups: tuple[tuple[int, ...], ...], where: list[Place], depth: int) -> int:
    return sum(len({where[rank][:depth] for rank in group}) > 1 for group in groups)


def test_tensor_groups_fill_nodes() -> None:
    where = places(("a/1", 8), ("a/2", 8))
    layout = lay_out(Axes(tp=4, dp=4), where)
    assert layout.groups("tp") == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15))
    assert layout.groups("dp")[0] == (0, 4, 8, 12)


def test_a_tensor_group_of_two_nodes_stays_in_their_nvlink_domain() -> None:
    where = places(("a/1", 4), ("b/1", 4), ("a/2", 4), ("b/2", 4))
    layout = lay_out(Axes(tp=8, pp=2), where)
    assert [{where[rank][0] for rank in group} for group in layout.groups("tp")] == [{"a"}, {"b"}]
    assert layout.groups("pp")[0] == (0, 4)


def test_expert_groups_stay_in_a_domain_and_only_the_rest_crosses() -> None:
    where = places(*((f"a/{n}", 4) for n in range(6)), *((f"b/{n}", 4) for n in range(6)))
    layout = lay_out(Axes(tp=4, ep=4, dp=12), where)
    assert crossing(layout.groups("tp"), where, 2) == 0
    assert crossing(layout.groups("ep"), where, 1) == 4, "one block of four nodes, two from each side"


def test_nodes_of_unequal_size_give_what_they_can() -> None:
    where = places(("a/1", 3), ("a/2", 3), ("a/3", 2))
    layout = lay_out(Axes(tp=2, dp=4), where)
    assert crossing(layout.groups("tp"), where, 2) == 1


@pytest.mark.parametrize(
    ("sizes", "message"),
    [({"tp": 3}, "3 ranks, and the gang has 4"), ({"tp": 0}, "tp=0"), ({"ep": 3, "dp": 4}, "does not divide dp=4")],
)
def test_sizes_that_make_no_sense_are_refused_with_both_numbers(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        lay_out(Axes(**sizes), places(("a/1", 4)))


@st.composite
def plans(draw: st.DrawFn) -> tuple[Layout, list[Place]]:
    tp, ep = draw(st.sampled_from([1, 2, 3, 4, 8])), draw(st.sampled_from([1, 2, 4]))
    dp, pp = ep * draw(st.integers(1, 4)), draw(st.integers(1, 3))
    total = tp * dp * pp
    where: list[Place] = []
    while len(where) < total:
        size = min(draw(st.integers(1, 8)), total - len(where))
        where += places((f"{draw(st.sampled_from('abc'))}/{len(where)}", size))
    return lay_out(Axes(tp=tp, ep=ep, dp=dp, pp=pp), where), where


@settings(max_examples=200, deadline=None)
@given(plans())
def test_no_more_groups_could_stay_whole_at_any_level(plan: tuple[Layout, list[Place]]) -> None:
    layout, where = plan
    tp = layout.axes.tp
    for depth in (1, 2):
        most = sum(count // tp for count in Counter(place[:depth] for place in where).values())
        assert len(layout.groups("tp")) - crossing(layout.groups("tp"), where, depth) == most
    assert sorted(layout.order) == list(range(len(where)))


@settings(max_examples=100, deadline=None)
@given(plans())
def test_every_axis_splits_all_ranks(plan: tuple[Layout, list[Place]]) -> None:
    layout, where = plan
    for axis in ("tp", "ep", "dp", "pp"):
        groups = layout.groups(axis)
        assert sorted(rank for group in groups for rank in group) == list(range(len(where)))
        assert {len(group) for group in groups} == {getattr(layout.axes, axis)}
