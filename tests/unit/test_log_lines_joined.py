"""Pieces of output become lines: once, per rank and stream, whatever bytes they are."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.logrecords import STDERR, STDOUT, LogEnd
from phalanx.log_lines import MAX_LINE_BYTES, Chunk, Lines, LogLine, Tally


def piece(data: bytes, *, rank: int = 0, stream: int = STDOUT, attempt: int = 1) -> Chunk:
    return Chunk(rank=rank, node_id="n0", stream=stream, at_ms=1, data=data, attempt=attempt)


def joined(*pieces: Chunk, passing: bool = False) -> list[LogLine]:
    lines = Lines(passing=passing)
    return [line for each in pieces for line in lines.take(each)] + list(lines.rest())


def texts(*pieces: bytes) -> list[str]:
    return [line.text for line in joined(*map(piece, pieces))]


@given(st.binary(max_size=200).filter(lambda data: b"\r" not in data), st.lists(st.integers(0, 200), max_size=8))
def test_where_output_is_cut_into_pieces_does_not_matter(data: bytes, cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(at)]
    wanted = data.decode("utf-8", "replace").split("\n")
    assert texts(*pieces) == (wanted if wanted[-1] else wanted[:-1])


@given(st.text("a\r\n", max_size=30), st.lists(st.integers(0, 30), max_size=6))
def test_carriage_returns_mean_the_same_however_they_are_cut(text: str, cuts: list[int]) -> None:
    data, at = text.encode(), [0, *sorted(cuts), len(text)]
    assert texts(*[data[a:b] for a, b in itertools.pairwise(at)]) == texts(data)


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ((b"\r 10%", b"\r 50%", b"\r100%\n", b"done\n"), ["100%", "done"]),
        ((b"10%\r", b"50%\r", b"100%\r"), ["100%"]),
        ((b"dos\r", b"\nline\r\n"), ["dos", "line"]),
        (
            (
                b"abc",
                b"def\rxy",
            ),
            ["xy"],
        ),
        ((b"\r\r\n",), [""]),
    ],
    ids=["cr-first", "cr-last", "crlf-cut", "after-text", "only-returns"],
)
def test_of_a_progress_bar_its_last_state_is_the_line(pieces: tuple[bytes, ...], lines: list[str]) -> None:
    assert texts(*pieces) == lines


def test_each_state_of_a_bar_is_told_where_it_is_asked_for() -> None:
    lines = joined(piece(b"\r 10%"), piece(b"\r 50%"), piece(b"\r100%\n"), passing=True)
    assert [(line.text, line.passing) for line in lines] == [(" 10%", True), (" 50%", True), ("100%", False)]


def test_a_line_of_50_mb_is_cut_with_a_notice_and_takes_no_memory() -> None:
    lines = Lines()
    for _ in range(800):
        assert list(lines.take(piece(b"x" * 65_536))) == []
    assert sum(len(each.text) for each in lines._open.values()) <= MAX_LINE_BYTES  # pyright: ignore[reportPrivateUsage]
    (line,) = lines.take(piece(b"\n"))
    assert line.text.startswith("x" * MAX_LINE_BYTES)
    assert f"{799 * 65_536:,} more bytes of this line" in line.text


def test_a_bar_without_a_newline_is_no_long_line() -> None:
    (line,) = joined(*[piece(b"\r" + b"#" * 1000)] * 1000)
    assert line.text == "#" * 1000


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert texts(b"\xff\xfe\x97\n") == ["�" * 3]


def test_a_gap_stands_where_bytes_are_missing_and_cuts_the_line() -> None:
    lines = joined(piece(b"begun"), Chunk(node_id="n0", stream=STDOUT, missing=4096), piece(b"after\n"))
    assert [line.text for line in lines] == [
        "begun",
        "[phalanx] 4,096 bytes are missing here: the node's disk or the log limit was full",
        "after",
    ]
    assert lines[1].missing == 4096


def test_a_line_that_an_attempt_left_open_is_not_gone_on_with_by_the_next() -> None:
    lines = joined(piece(b"one"), piece(b"two\n", attempt=2))
    assert [(line.text, line.attempt) for line in lines] == [("one", 1), ("two", 2)]


def test_a_note_of_the_platforms_is_a_line_of_its_own() -> None:
    lines = joined(piece(b"half "), Chunk(node_id="n0", stream=STDERR, note="nothing goes on"), piece(b"a line\n"))
    assert [(line.stream, line.text) for line in lines] == [
        ("stderr", "[phalanx] nothing goes on"),
        ("stdout", "half a line"),
    ]


def test_ranks_and_streams_are_kept_apart() -> None:
    lines = joined(
        piece(b"a"), piece(b"b", rank=1), piece(b"c", stream=STDERR), piece(b"A\n"), piece(b"C\n", stream=STDERR)
    )
    assert [(line.rank, line.stream, line.text) for line in lines] == [
        (0, "stdout", "aA"),
        (0, "stderr", "cC"),
        (1, "stdout", "b"),
    ]


def tally(*chunks: Chunk, sources: int = 1) -> Tally:
    made = Tally(sources=sources)
    for chunk in chunks:
        made.see(chunk)
    return made


def ended(count: int, *, complete: bool = True) -> Chunk:
    return Chunk(end=LogEnd({0: count}, complete), ends=1, last=True)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (tally(piece(b"12345"), ended(5)), "complete: 5 bytes"),
        (tally(piece(b"123"), ended(5)), "2 bytes are missing"),
        (
            tally(piece(b"123"), Chunk(missing=2), ended(5, complete=False)),
            "2 bytes are missing (the node's disk or the log limit was full)",
        ),
        (tally(piece(b"12345"), ended(5, complete=False)), "5 bytes, up to where ranks were ended"),
        (tally(piece(b"12345")), "the end of the output is missing: a node is out of reach, or gone (5 bytes)"),
    ],
    ids=["all", "lost", "disk-full", "killed", "no-end"],
)
def test_what_arrived_is_held_against_the_end_records(seen: Tally, words: str) -> None:
    assert seen.words == words
    assert seen.complete == words.startswith("complete")
