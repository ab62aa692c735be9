"""The state as it was at a moment: the history folded up to it, in a process of its own, so that the leader never stops
for it.

    python -m phalanx_control.log.past --store URL --cell NAME --folder DIR --at MS

writes one line of JSON, the `Moment`, and behind it the state as snapshots hold it; or exits with 1 and the reason on
standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from phalanx.core.errors import NotFoundError, PhalanxError
from phalanx_control.log.folding import base_state, decode_state, encode_state, fold_batch, read_all
from phalanx_control.log.history import Archive
from phalanx_control.log.log import LogStore, batch_from_line
from phalanx_control.log.program import run_program
from phalanx_control.log.redis_log import RedisLog
from phalanx_control.state.model import State

TIMEOUT_S = 60.0
_REFUSED = 1


@dataclass(frozen=True, slots=True)
class Moment:
    """``wall_ms``: of the last entry at or before it; ``seq`` is its number."""

    seq: int
    wall_ms: int


async def state_at(archive: Archive, log: LogStore, wall_ms: int) -> tuple[Moment, State]:
    """Returns the state after the last entry up to ``wall_ms``. Raises NotFoundError where the history begins later."""
    state, known_ms = _nearest(archive, wall_ms)
    async for batch in read_all(archive, log, after=state.seq):
        if batch.wall_ms > wall_ms:
            if not known_ms:
                raise NotFoundError(f"the history that is kept begins at {in_words(batch.wall_ms)}")
            break
        state, known_ms = fold_batch(state, batch), batch.wall_ms
    if not known_ms:
        raise NotFoundError("there is no history yet")
    return Moment(state.seq, known_ms), state


def _nearest(archive: Archive, wall_ms: int) -> tuple[State, int]:
    """Returns the newest kept snapshot that is not later, and its time; else what the history begins after, and 0."""
    ends = {segment.last: segment.path for segment in archive.segments()}
    for seq in reversed(archive.snapshot_seqs()):
        if seq in ends and (at_ms := _last_wall_ms(ends[seq])) <= wall_ms:
            return decode_state(archive.snapshot_data(seq)), at_ms
    return base_state(archive), 0


def _last_wall_ms(path: Path) -> int:
    with path.open("rb") as lines:
        (last,) = deque(lines, maxlen=1)
    return batch_from_line(last).wall_ms


def in_words(wall_ms: int) -> str:
    """Writes a time as people do; of one that no calendar has, its milliseconds."""
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{wall_ms} ms"


async def past_in_process(*, store: str, cell: str, folder: Path, wall_ms: int) -> tuple[Moment, State]:
    """Runs this module as a program. Raises what `state_at` does, and RuntimeError with the program's last words."""
    args = ("--store", store, "--cell", cell, "--folder", str(folder), "--at", str(wall_ms))
    ended = await run_program("phalanx_control.log.past", *args, timeout_s=TIMEOUT_S)
    if ended.code == _REFUSED:
        raise NotFoundError(ended.last_words)
    if ended.code != 0:
        raise RuntimeError(f"the past could not be read: {ended.last_words}")
    head, _, data = ended.out.partition(b"\n")
    return Moment(**json.loads(head)), await asyncio.to_thread(decode_state, data)


async def _run(store: str, cell: str, folder: Path, wall_ms: int) -> bytes:
    log = RedisLog(store, cell=cell, allow_volatile=True)
    try:
        moment, state = await state_at(Archive(folder), log, wall_ms)
    finally:
        await log.close()
    return json.dumps(asdict(moment)).encode() + b"\n" + encode_state(state)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="phalanx-past", description="Fold the history up to a moment.")
    parser.add_argument("--store", required=True, help="URL of the store")
    parser.add_argument("--cell", required=True)
    parser.add_argument("--folder", required=True, type=Path, help="the archive's folder")
    parser.add_argument("--at", required=True, type=int, help="wall time in milliseconds")
    args = parser.parse_args(argv)
    try:
        sys.stdout.buffer.write(asyncio.run(_run(args.store, args.cell, args.folder, args.at)))
    except PhalanxError as e:
        sys.stderr.write(f"{e}\n")
        return _REFUSED
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
