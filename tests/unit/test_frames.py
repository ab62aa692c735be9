"""The frame decoder: bytes may arrive cut anywhere, and garbage ends in FrameError, never in anything else."""

from __future__ import annotations

import itertools
import json
import os
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.frames import HEADER_BYTES, MAX_META_BYTES, MORE, NO_ID, Decoder, Frame, FrameError, Kind, encode_head

metas = st.dictionaries(
    st.text(max_size=8), st.integers(-(2**31), 2**31) | st.text(max_size=20) | st.none(), max_size=4
)
frames = st.builds(
    Frame,
    kind=st.sampled_from(Kind),
    id=st.binary(min_size=16, max_size=16),
    meta=metas,
    body=st.binary(max_size=300),
    flags=st.sampled_from([0, MORE]),
)


def encoded(frame: Frame) -> bytes:
    return encode_head(frame) + bytes(frame.body)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(at)]


@given(st.lists(frames, max_size=5), st.lists(st.integers(0, 10_000), max_size=12))
def test_any_split_of_the_bytes_decodes_to_the_same_frames(sent: list[Frame], cuts: list[int]) -> None:
    decoder = Decoder()
    got: list[Frame] = []
    for piece in cut(b"".join(map(encoded, sent)), cuts):
        decoder.feed(piece)
        got += decoder.frames()
    assert got == sent


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=4))
def test_garbage_raises_frame_error_or_waits_for_more(data: bytes, cuts: list[int]) -> None:
    decoder = Decoder(max_body_bytes=1000)
    try:
        for piece in cut(data, cuts):
            decoder.feed(piece)
            decoder.frames()
    except FrameError:
        return
    assert len(data) < HEADER_BYTES or data[0] == 1


@given(frames, st.integers(0, HEADER_BYTES - 1), st.integers(0, 255))
def test_a_spoilt_header_byte_raises_frame_error_or_decodes_to_a_frame(frame: Frame, at: int, value: int) -> None:
    data = bytearray(encoded(frame))
    data[at] = value
    decoder = Decoder(max_body_bytes=1000)
    decoder.feed(data)
    try:
        found = decoder.frames()
    except FrameError:
        return
    assert all(isinstance(f.kind, Kind) for f in found)


def header(*, version: int = 1, kind: int = 4, fds: int = 0, meta: int = 0, body: int = 0) -> bytes:
    return struct.pack("!BBBBIQ16s", version, kind, 0, fds, meta, body, NO_ID)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (header(version=2), "frame version 2, expected 1"),
        (header(kind=200), "kind 200 does not parse"),
        (header(meta=MAX_META_BYTES + 1), "over the limit"),
        (header(body=1001), "over the limit"),
        (header(meta=2) + b"[]", "lacks its meta object"),
        (header(meta=2) + b"{x", "does not parse"),
        (header(meta=50_000) + b"[" * 50_000, "does not parse"),
        (header(fds=1), "or its descriptors"),
    ],
)
def test_each_kind_of_nonsense_is_named(data: bytes, words: str) -> None:
    decoder = Decoder(max_body_bytes=1000)
    decoder.feed(data)
    with pytest.raises(FrameError, match=words):
        decoder.frames()


def test_a_size_over_the_limit_is_refused_before_its_body_arrives() -> None:
    decoder = Decoder(max_body_bytes=1000)
    decoder.feed(header(body=2**40))
    with pytest.raises(FrameError, match="over the limit"):
        decoder.frames()


def test_frames_that_were_taken_use_no_more_memory() -> None:
    decoder = Decoder()
    frame = encoded(Frame(Kind.RESULT, body=bytes(100_000)))
    tracemalloc.start()
    try:
        for _ in range(100):
            decoder.feed(frame)
            assert len(decoder.frames()) == 1
        decoder.feed(frame[:-1])
        assert decoder.frames() == []
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 4 * len(frame)


def test_descriptors_go_to_the_frames_that_name_them_in_order() -> None:
    decoder = Decoder()
    first, second = os.pipe()
    try:
        decoder.feed_fds([first, second])
        for name in ("a", "b"):
            decoder.feed(encoded(Frame(Kind.CALL, meta={"name": name}, fds=[first])))
        assert [(f.meta["name"], f.fds) for f in decoder.frames()] == [("a", [first]), ("b", [second])]
        assert decoder.take_fds() == []
    finally:
        os.close(first)
        os.close(second)


def test_descriptors_that_no_frame_claims_are_given_back_for_closing() -> None:
    decoder = Decoder()
    decoder.feed_fds([7, 8])
    assert decoder.take_fds() == [7, 8]
    assert decoder.take_fds() == []


def test_meta_is_compact_json_and_left_out_when_empty() -> None:
    assert len(encode_head(Frame(Kind.PING))) == HEADER_BYTES
    head = encode_head(Frame(Kind.HELLO, meta={"ticket": "t", "client": 1}))
    assert json.loads(head[HEADER_BYTES:]) == {"ticket": "t", "client": 1}
    assert b" " not in head[HEADER_BYTES:]


def test_more_marks_every_chunk_but_the_last() -> None:
    assert Frame(Kind.RESULT, flags=MORE).more
    assert not Frame(Kind.RESULT).more
