"""Ranks find links that copy wrongly and links that are slow, whatever breaks, and believe no single slow moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import pytest
import torch

from phalanx_agent.worker.preflight import CPU_BYTES, TIMES, TIMES_AGAIN, Pair, Seat
from tests.support.links import USUAL_GBYTE_S, Links, flip_one_byte, seats


def every_pair(seat: Seat) -> Mapping[Pair, str]:
    return dict.fromkeys(combinations(range(seat.ranks), 2), "NV18")


def test_links_in_order_are_found_right_and_as_fast_as_they_are() -> None:
    found = Links(seats(1, 4)).run(every_pair)
    assert all(each == found[0] for each in found)
    (pairs,) = found[0].pairs
    assert list(pairs) == list(combinations(range(4), 2))
    assert not list(found[0].wrong())
    assert all(pair.gbyte_s == pytest.approx(USUAL_GBYTE_S, rel=0.01) for pair in pairs.values())
    assert found[0].all_reduce_gbyte_s == pytest.approx(USUAL_GBYTE_S * 2 * 3 / 4, rel=0.01)


def test_a_slow_pair_is_measured_again_and_stays_slow() -> None:
    links = Links(seats(1, 4), gbyte_s={(1, 3): 5.0})
    found = links.run(every_pair)
    (pairs,) = found[0].pairs
    assert pairs[1, 3].gbyte_s == pytest.approx(5.0, rel=0.01)
    assert links.copied.count((1, 3)) == TIMES + 1 + TIMES_AGAIN + 1
    assert links.copied.count((0, 1)) == TIMES + 1


def test_a_pair_that_was_slow_for_a_moment_is_not_called_slow() -> None:
    (pairs,) = Links(seats(1, 4), busy={(0, 2): 2 * (TIMES + 1)}).run(every_pair)[0].pairs
    assert pairs[0, 2].gbyte_s == pytest.approx(USUAL_GBYTE_S, rel=0.01)


def late(tensor: Any) -> Any:
    """Nothing arrives."""
    return torch.zeros_like(tensor)


def shifted(tensor: Any) -> Any:
    """Everything arrives, a word farther on."""
    return torch.roll(tensor, 1)


@pytest.mark.parametrize("way", [(1, 2), (2, 1)])
@pytest.mark.parametrize(("spoil", "wrong_bytes"), [(flip_one_byte, 4), (late, CPU_BYTES), (shifted, CPU_BYTES)])
def test_a_wrong_copy_is_found_in_either_direction(way: Pair, spoil: Callable[[Any], Any], wrong_bytes: int) -> None:
    for each in Links(seats(1, 4), spoil={way: spoil}).run(every_pair):
        assert list(each.wrong()) == [(0, (1, 2))]
        assert each.pairs[0][1, 2].wrong_bytes == wrong_bytes


def test_what_belongs_to_another_pair_or_the_other_way_is_wrong() -> None:
    sent: dict[str, Any] = {}

    def swap(tensor: Any) -> Any:
        """Gives each pair what the one before it sent."""
        former = sent.get("last", tensor)
        sent["last"] = tensor
        return former

    found = Links(seats(1, 3), spoil={(0, 1): swap, (0, 2): swap}).run(every_pair)
    assert list(found[0].wrong()) == [(0, (0, 2))]


def test_ranks_of_every_node_know_what_was_found_on_all() -> None:
    links = Links(seats(2, 2), spoil={(2, 3): flip_one_byte})
    found = links.run(every_pair)
    assert all(list(each.wrong()) == [(1, (0, 1))] for each in found)
    assert not [pair for pair in links.copied if (pair[0] < 2) != (pair[1] < 2)]


def test_a_node_that_asks_for_nothing_keeps_step_with_one_that_does() -> None:
    links = Links(seats(2, 2))
    found = links.run(lambda seat: every_pair(seat) if seat.node_rank == 1 else {})
    assert [list(pairs) for pairs in found[0].pairs] == [[], [(0, 1)]]


def test_only_the_pairs_that_are_asked_for_are_tried() -> None:
    links = Links(seats(1, 4))
    found = links.run(lambda _: {(0, 3): "NV18"})
    assert list(found[2].pairs[0]) == [(0, 3)]
    assert set(links.copied) == {(0, 3), (3, 0)}


def test_what_an_earlier_copy_left_in_the_buffer_is_not_taken_for_one_that_came() -> None:
    copies = iter([True])
    found = Links(seats(1, 2), spoil={(0, 1): lambda sent: sent if next(copies, False) else None}).run(every_pair)
    assert list(found[0].wrong()) == [(0, (0, 1))]


def test_a_pair_that_was_wrong_once_is_wrong_though_it_came_right_when_tried_again() -> None:
    links = Links(seats(1, 4), gbyte_s={(1, 3): 5.0})
    links.spoil = {(1, 3): lambda sent: flip_one_byte(sent) if links.copied.count((1, 3)) == 1 else sent}
    assert list(links.run(every_pair)[0].wrong()) == [(0, (1, 3))]


def test_the_quickest_try_counts_though_a_later_one_was_disturbed() -> None:
    links = Links(seats(1, 4), gbyte_s={(1, 3): 5.0}, slow_later=(1, 3))
    assert links.run(every_pair)[0].pairs[0][1, 3].gbyte_s == pytest.approx(5.0, rel=0.01)
