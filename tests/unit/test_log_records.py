"""The record format that keeper, agent, SDK and stored segments share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.frames import NO_ID
from phalanx.core.logrecords import (
    HEADER_BYTES,
    LogEnd,
    LogRecord,
    RecordError,
    decode,
    encode,
    encode_end,
    outside_calls,
    parse_end,
)

records = st.builds(
    LogRecord,
    stream=st.sampled_from([1, 2]),
    rank=st.integers(0, 65535),
    wall_ms=st.integers(0, 1 << 63),
    call=st.binary(min_size=16, max_size=16),
    data=st.binary(max_size=200),
)


@given(st.lists(records))
def test_records_come_back_as_they_were_written(written: list[LogRecord]) -> None:
    data = b"".join(encode(r) for r in written)
    read = list(decode(data))
    assert [r for r, _ in read] == written
    assert not read or read[-1][1] == len(data)


@given(records, st.integers(1, 40))
def test_a_torn_last_record_is_left_out_and_read_once_it_is_whole(record: LogRecord, cut: int) -> None:
    whole = encode(record)
    data = encode(record) + whole[: max(0, len(whole) - cut)]
    first = list(decode(data))
    assert [r for r, _ in first] == [record]
    again = list(decode(data[: len(whole)] + whole, offset=first[-1][1]))
    assert [r for r, _ in again] == [record]


def test_bytes_that_are_no_records_are_refused() -> None:
    with pytest.raises(RecordError, match="byte 0"):
        list(decode(b"\xff" * HEADER_BYTES))


def test_an_end_record_tells_the_bytes_of_each_rank() -> None:
    end = LogEnd({0: 12, 3: 7}, complete=True)
    data = encode_end(end, call=b"c" * 16, wall_ms=5)
    ((record, _),) = decode(data)
    assert parse_end(record) == end


def test_an_end_record_that_does_not_parse_is_refused() -> None:
    with pytest.raises(RecordError):
        parse_end(LogRecord(0, 0, 0, NO_ID, b"[]"))


def test_output_between_calls_is_told_from_a_calls_output() -> None:
    assert outside_calls(LogRecord(1, 0, 0, NO_ID, b"x"))
    assert not outside_calls(LogRecord(1, 0, 0, b"c" * 16, b"x"))
