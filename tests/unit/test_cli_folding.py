"""Rank prefixes and folded lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.cli.folding import OutLine, fold, spans


def line(rank: int, text: str, *, stream: str = "stdout", node: int = 0) -> OutLine:
    return OutLine(rank, node, stream, text)


def test_one_rank_is_shown_with_its_node() -> None:
    (shown,) = fold([line(3, "loss 0.25", node=12)])
    assert f"{shown.prefix} {shown.text}" == "[r3 n12] loss 0.25"


def test_identical_lines_of_all_ranks_become_one() -> None:
    (shown,) = fold([line(r, "epoch 1") for r in range(8)])
    assert (shown.prefix, shown.text) == ("[r0-7]", "epoch 1")


def test_lines_that_differ_by_stream_are_not_folded() -> None:
    assert len(fold([line(0, "x"), line(1, "x", stream="stderr")])) == 2


def test_gaps_in_the_ranks_are_named() -> None:
    assert spans((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"))))
def test_folding_keeps_each_ranks_own_order_and_loses_nothing(said: list[tuple[int, str]]) -> None:
    shown = fold([line(rank, text) for rank, text in said])
    for rank in range(4):
        assert [f.text for f in shown if rank in f.ranks] == [text for r, text in said if r == rank]
