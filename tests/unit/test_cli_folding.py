"""Rank prefixes and folded lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.cli.folding import OutLine, Splitter, fold, spans


def line(rank: int, text: str, *, stream: int = 1, node: int = 0) -> OutLine:
    return OutLine(rank, node, stream, text)


def test_one_rank_is_shown_with_its_node() -> None:
    (shown,) = fold([line(3, "loss 0.25", node=12)])
    assert f"{shown.prefix} {shown.text}" == "[r3 n12] loss 0.25"


def test_identical_lines_of_all_ranks_become_one() -> None:
    (shown,) = fold([line(r, "epoch 1") for r in range(8)])
    assert (shown.prefix, shown.text) == ("[r0-7]", "epoch 1")


def test_lines_that_differ_by_stream_are_not_folded() -> None:
    assert len(fold([line(0, "x"), line(1, "x", stream=2)])) == 2


def test_gaps_in_the_ranks_are_named() -> None:
    assert spans((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"))))
def test_folding_keeps_each_ranks_own_order_and_loses_nothing(said: list[tuple[int, str]]) -> None:
    shown = fold([line(rank, text) for rank, text in said])
    for rank in range(4):
        assert [f.text for f in shown if rank in f.ranks] == [text for r, text in said if r == rank]


def test_a_line_is_shown_when_its_newline_comes() -> None:
    splitter = Splitter()
    assert splitter.feed(0, 0, 1, b"hal") == []
    assert [x.text for x in splitter.feed(0, 0, 1, b"lo\nnext")] == ["hallo"]
    assert [x.text for x in splitter.flush({})] == ["next"]


def test_the_ranks_and_streams_have_lines_of_their_own() -> None:
    splitter = Splitter()
    splitter.feed(0, 0, 1, b"a")
    splitter.feed(1, 0, 1, b"b")
    assert [x.text for x in splitter.feed(0, 0, 1, b"!\n")] == ["a!"]


def test_bytes_that_are_not_text_become_marks() -> None:
    assert Splitter().feed(0, 0, 1, b"\xff\xfe ok\n")[0].text == "\ufffd\ufffd ok"


def test_a_carriage_return_replaces_what_stood_in_its_line() -> None:
    assert Splitter().feed(0, 0, 1, b"10%\r50%\r100%\r\n")[0].text == "100%"
