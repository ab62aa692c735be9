"""The spool: every byte once, attributed, and a stated loss where the disk or the limit is full."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.core.clock import ManualClock
from phalanx.core.frames import NO_ID
from phalanx.core.logrecords import END, MARK, STDERR, STDOUT, LogMark, LogRecord, decode, parse_end, parse_mark
from phalanx_agent.keeper.output import LAST_BYTES, READ_BYTES, TAIL_BYTES, OutputPipe, Spool

CALL = b"c" * 16


def records(path: Path) -> list[LogRecord]:
    return [record for record, _ in decode(path.read_bytes())]


def test_output_belongs_to_the_call_that_runs_and_is_counted(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", ManualClock())
    spool.write(0, STDOUT, b"before")
    spool.begin(CALL)
    spool.write(1, STDERR, b"during")
    spool.end()
    spool.write(0, STDOUT, b"after")
    found = records(tmp_path / "spool")
    assert [(r.call, r.data) for r in found if r.stream != END] == [
        (NO_ID, b"before"),
        (CALL, b"during"),
        (NO_ID, b"after"),
    ]
    end = parse_end(next(r for r in found if r.stream == END))
    assert end.bytes_by_rank == {1: 6}
    assert end.complete


def test_output_above_the_limit_is_dropped_with_a_record_of_the_gap(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", ManualClock(), limit_bytes=4096)
    spool.begin(CALL)
    for _ in range(100):
        spool.write(0, STDOUT, b"x" * 1000)
    spool.end()
    spool.close()
    found = records(tmp_path / "spool")
    kept = sum(len(r.data) for r in found if r.stream == STDOUT)
    assert kept <= 4096
    gaps = [parse_mark(r.data) for r in found if r.stream == MARK]
    assert gaps == [LogMark(gap=100_000 - kept, stream=STDOUT)]
    end = parse_end(next(r for r in found if r.stream == END))
    assert end.bytes_by_rank == {0: 100_000}
    assert not end.complete


def test_a_full_disk_never_raises(tmp_path: Path) -> None:
    full = Path("/dev/full")
    spool = Spool(full, ManualClock())
    spool.write(0, STDOUT, b"lost")
    assert spool.last_lines(0) == "lost"
    spool.close()


def test_what_a_full_disk_dropped_is_told_where_it_is_missing_once_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    script = f"""
import resource, signal
from phalanx.core.clock import ManualClock
from phalanx_agent.keeper.output import Spool
from pathlib import Path

import pytest
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
spool = Spool(Path({str(path)!r}), ManualClock())
spool.begin(b"c" * 16)
spool.write(0, 1, b"a" * 1000)
resource.setrlimit(resource.RLIMIT_FSIZE, (1200, resource.RLIM_INFINITY))
spool.write(0, 1, b"b" * 5000)
spool.write(0, 2, b"c" * 500)
resource.setrlimit(resource.RLIMIT_FSIZE, (1100, resource.RLIM_INFINITY))
spool.end()
spool.begin(b"d" * 16)
spool.write(0, 1, b"d" * 300)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
spool.write(0, 1, b"e" * 10)
spool.end()
spool.close()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    found = records(path)
    of_first = [r for r in found if r.call == CALL]
    assert [r.stream for r in of_first] == [STDOUT, MARK, MARK, END]
    assert [(parse_mark(r.data).gap, parse_mark(r.data).stream) for r in of_first[1:3]] == [(5000, 1), (500, 2)]
    assert parse_end(of_first[-1]).bytes_by_rank == {0: 6500}
    assert not parse_end(of_first[-1]).complete
    of_second = [r for r in found if r.call == b"d" * 16]
    assert [(r.stream, len(r.data)) for r in of_second if r.stream == STDOUT] == [(STDOUT, 10)]
    assert parse_mark(of_second[0].data).gap == 300


def test_only_a_later_attempt_is_marked_and_only_where_it_writes(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", ManualClock())
    for attempt in (1, 2, 3):
        spool.begin(CALL, attempt)
        if attempt != 2:
            spool.write(0, STDOUT, b"x")
        spool.end()
    found = records(tmp_path / "spool")
    assert [r.stream for r in found] == [STDOUT, END, END, MARK, STDOUT, END]
    assert parse_mark(found[3].data) == LogMark(attempt=3)


def test_a_pipe_is_drained_in_bounded_turns(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    pipe = OutputPipe(reading, rank=0, stream=STDOUT)
    spool = Spool(tmp_path / "spool", ManualClock())
    os.write(writing, b"y" * 60_000)
    assert pipe.drain(spool)
    os.close(writing)
    assert not pipe.drain(spool)
    assert sum(len(r.data) for r in records(tmp_path / "spool")) == 60_000


BOUNDARY = b"\0" + bytes(range(100, 123))


@pytest.mark.parametrize("cut", [0, 1, 5, 23, 24])
def test_boundaries_tell_output_apart_wherever_a_read_ends(tmp_path: Path, cut: int) -> None:
    """Two stand side by side: the call between them wrote nothing."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1 << 18)
    pipe = OutputPipe(reading, rank=0, stream=STDOUT, boundary=BOUNDARY)
    spool = Spool(tmp_path / "spool", ManualClock())
    first = b"y" * (READ_BYTES - cut)
    os.write(writing, first + BOUNDARY + BOUNDARY + b"third")
    calls = [bytes([n]) * 16 for n in (1, 2, 3)]
    for call in calls:
        spool.begin(call)
        if call is not calls[0]:
            pipe.passes_boundary(spool)
        pipe.drain(spool, reads=8)
        spool.end()
    os.close(writing)
    found = [b"".join(r.data for r in records(tmp_path / "spool") if (r.call, r.stream) == (c, STDOUT)) for c in calls]
    assert found == [first, b"", b"third"]


def test_fifty_long_lines_are_remembered_whole_and_a_flood_is_not(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", ManualClock())
    lines = [f"{n:04d} " + "x" * 500 for n in range(1000)]
    for line in lines:
        spool.write(0, STDOUT, f"{line}\n".encode())
    assert spool.last_lines(0, limit_bytes=TAIL_BYTES).splitlines()[-50:] == lines[-50:]
    assert len(spool.last_lines(0)) == LAST_BYTES
    spool.write(0, STDOUT, b"y" * (10 * TAIL_BYTES))
    assert len(spool.last_lines(0, limit_bytes=10 * TAIL_BYTES)) == TAIL_BYTES


def test_the_last_lines_of_a_call_are_its_own(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", ManualClock())
    spool.begin(b"a" * 16)
    spool.write(0, STDOUT, b"earlier")
    spool.end()
    assert spool.last_lines(0) == "earlier", "a report is written after the end"
    spool.begin(b"b" * 16)
    assert spool.last_lines(0) == ""
    spool.write(0, STDOUT, b"mine")
    assert spool.last_lines(0) == "mine"


def test_pieces_of_a_rank_that_writes_little_are_put_together(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", ManualClock())
    for piece in (b"ab", "\u00e4".encode()[:1], "\u00e4".encode()[1:]):
        spool.write(0, STDOUT, piece)
    assert spool.last_lines(0) == "ab\u00e4"
    assert spool.last_lines(1) == ""
