"""Reading back what the log has become: the history of all batches, one call's events, and the proof of the state.

    python -m phalanx_control.archive check --folder DIR [--store URL --cell NAME]
    python -m phalanx_control.archive history --folder DIR [--store URL --cell NAME] [--call ID]

``check`` folds the history anew and compares the result with every snapshot that is kept, and with the store's own
snapshot and log where a store is named: the state is what the history says, or it prints where not and ends with 1.
``history`` prints the batches as JSON lines. Nothing here writes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.core.errors import NotFoundError, PhalanxError
from phalanx_control.log.errors import UnreadableLogError
from phalanx_control.log.folding import (
    base_state,
    batches_up_to,
    decode_state,
    fold_batch,
    load_snapshot,
    read_all,
    read_history,
)
from phalanx_control.log.history import Archive
from phalanx_control.log.log import Batch, LogStore, batch_to_line
from phalanx_control.log.redis_log import RedisLog
from phalanx_control.state.model import State, to_jsonable

SHOWN_DIFFERENCES = 10


@dataclass(frozen=True, slots=True)
class Check:
    """What a check found: the last batch that was folded, and in words whatever does not agree."""

    seq: int
    problems: tuple[str, ...] = ()


def batches_about(archive: Archive, call_id: str) -> Iterator[Batch]:
    """Yields the archived batches that name ``call_id``."""
    needle = call_id.encode()
    for batch in read_history(archive):
        if needle in batch_to_line(batch):
            yield batch


async def check(archive: Archive, log: LogStore | None = None) -> Check:
    """Folds the whole history and compares it with each kept snapshot, and with ``log``'s own state."""
    try:
        kept = set(archive.snapshot_seqs())
        state = base_state(archive)
        problems: list[str] = []
        async for batch in read_all(archive, log):
            state = fold_batch(state, batch)
            if batch.seq in kept:
                snapshot = decode_state(archive.snapshot_data(batch.seq))
                problems += differences(state, snapshot, f"snapshot {batch.seq}")
        if log is not None:
            problems += differences(state, await _state_of(log, state.seq), "the store's snapshot and log")
    except (UnreadableLogError, NotFoundError) as e:
        return Check(0, (str(e),))
    return Check(state.seq, tuple(problems))


def differences(folded: State, other: State, name: str) -> list[str]:
    """Returns one line for each place where ``other`` is not what the history folds to, the first few of them."""
    if folded == other:
        return []
    places = list(_places(to_jsonable(folded), to_jsonable(other), ""))
    shown = [f"{name} differs at {place}" for place in places[:SHOWN_DIFFERENCES]]
    more = len(places) - len(shown)
    return [*shown, f"{name} differs at {more} more places"] if more > 0 else shown


def _places(a: Any, b: Any, path: str) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            yield from _places(a.get(key), b.get(key), f"{path}/{key}")
    elif a != b:
        yield f"{path}: history {a!r}, there {b!r}"


async def _state_of(log: LogStore, seq: int) -> State:
    state = await load_snapshot(log)
    async for batch in batches_up_to(log, after=state.seq, end=seq):
        state = fold_batch(state, batch)
    return state


# ---- the command ----


async def _print_history(archive: Archive, log: LogStore | None, call_id: str) -> int:
    needle = call_id.encode()
    async for batch in read_all(archive, log):
        line = batch_to_line(batch)
        if needle in line:
            sys.stdout.write(line.decode())
    return 0


async def _print_check(archive: Archive, log: LogStore | None) -> int:
    result = await check(archive, log)
    for problem in result.problems:
        sys.stdout.write(problem + "\n")
    verdict = f"{len(result.problems)} differences" if result.problems else "the state is what the history says"
    sys.stdout.write(f"folded up to batch {result.seq}: {verdict}\n")
    return 1 if result.problems else 0


async def _run(args: argparse.Namespace) -> int:
    archive = Archive(args.folder)
    log = RedisLog(args.store, cell=args.cell, allow_volatile=True) if args.store else None
    try:
        if args.verb == "check":
            return await _print_check(archive, log)
        return await _print_history(archive, log, args.call)
    finally:
        if log is not None:
            await log.close()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="phalanx-archive", description="Read the event history back, or check it.")
    parser.add_argument("verb", choices=("check", "history"))
    parser.add_argument("--folder", required=True, type=Path, help="the archive's folder")
    parser.add_argument("--store", default="", help="URL of the store: go on with what only the log has")
    parser.add_argument("--cell", default="main")
    parser.add_argument("--call", default="", help="only batches that name this call")
    args = parser.parse_args(argv)
    try:
        return asyncio.run(_run(args))
    except PhalanxError as e:
        sys.stderr.write(f"{e.code}: {e}\n")
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
