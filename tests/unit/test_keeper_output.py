"""The spool: every byte once, attributed, and a stated loss where the disk or the limit is full."""

from __future__ import annotations

import os
from pathlib import Path

from phalanx.core.clock import ManualClock
from phalanx.core.frames import NO_ID
from phalanx.core.logrecords import END, STDERR, STDOUT, LogRecord, decode, parse_end
from phalanx_agent.keeper.output import OutputPipe, Spool

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


def test_output_above_the_limit_is_dropped_with_a_notice(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", ManualClock(), limit_bytes=4096)
    spool.begin(CALL)
    for _ in range(100):
        spool.write(0, STDOUT, b"x" * 1000)
    spool.end()
    spool.close()
    found = records(tmp_path / "spool")
    kept = sum(len(r.data) for r in found if r.stream == STDOUT)
    assert kept <= 4096
    assert any(b"bytes of output were dropped" in r.data for r in found if r.stream == STDERR)
    end = parse_end(next(r for r in found if r.stream == END))
    assert end.bytes_by_rank == {0: 100_000}
    assert not end.complete


def test_a_full_disk_never_raises(tmp_path: Path) -> None:
    full = Path("/dev/full")
    spool = Spool(full, ManualClock())
    spool.write(0, STDOUT, b"lost")
    assert spool.last_lines(0) == "lost"
    spool.close()


def test_a_pipe_is_drained_in_bounded_turns(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    pipe = OutputPipe(reading, rank=0, stream=STDOUT)
    spool = Spool(tmp_path / "spool", ManualClock())
    os.write(writing, b"y" * 60_000)
    assert pipe.drain(spool)
    os.close(writing)
    assert not pipe.drain(spool)
    assert sum(len(r.data) for r in records(tmp_path / "spool")) == 60_000
