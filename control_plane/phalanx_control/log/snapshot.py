"""Folding the log into a snapshot and the history: in a process of its own, so that the leader never stops for it.

    python -m phalanx_control.log.snapshot --store URL --cell NAME --folder DIR

folds the previous snapshot and what followed, writes ``snapshots/<seq>.json.gz`` and ``history/<first>-<last>.jsonl``
below DIR, and prints one line of JSON with the seq. It writes nothing to the store: the leader does, under its fence.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from phalanx.core.clock import SystemClock
from phalanx_control.log.folding import base_state, batches_up_to, encode_state, fold_batch, load_snapshot
from phalanx_control.log.history import Archive
from phalanx_control.log.log import Batch, LogStore, Snapshot
from phalanx_control.log.program import run_program
from phalanx_control.log.redis_log import RedisLog

TIMEOUT_S = 600.0


async def take_snapshot(log: LogStore, archive: Archive) -> Snapshot:
    """Folds everything up to the present end of the log, and keeps the batches in the archive's history."""
    state = await load_snapshot(log)
    end = await log.last()
    with archive.locked():
        archived = archive.last_seq()
        kept: list[Batch] = []
        async for batch in batches_up_to(log, after=state.seq, end=end):
            state = fold_batch(state, batch)
            if batch.seq > archived:
                kept.append(batch)
        archive.add_history(kept)
        snapshot = Snapshot(seq=state.seq, data=encode_state(state))
        archive.add_snapshot(snapshot)
    return snapshot


def prune_history(archive: Archive, *, wall_ms: int) -> None:
    """Drops history beyond its limits, and keeps the state that the rest begins with."""
    with archive.locked():
        surplus = archive.surplus(wall_ms=wall_ms)
        if not surplus:
            return
        state = base_state(archive)
        for segment in surplus:
            for batch in segment.batches(after=state.seq):
                state = fold_batch(state, batch)
        archive.drop(surplus, Snapshot(seq=state.seq, data=encode_state(state)))


async def snapshot_in_process(*, store: str, cell: str, folder: Path) -> Snapshot:
    """Runs this module as a program and returns the snapshot that it wrote. Raises RuntimeError with its last words."""
    args = ("--store", store, "--cell", cell, "--folder", str(folder))
    ended = await run_program("phalanx_control.log.snapshot", *args, timeout_s=TIMEOUT_S)
    if ended.code != 0:
        raise RuntimeError(f"the snapshot program ended with {ended.code}: {ended.last_words}")
    seq = int(json.loads(ended.out)["seq"])
    return Snapshot(seq=seq, data=Archive(folder).snapshot_data(seq))


async def _run(store: str, cell: str, folder: Path) -> int:
    log = RedisLog(store, cell=cell, allow_volatile=True)
    archive = Archive(folder)
    try:
        snapshot = await take_snapshot(log, archive)
    finally:
        await log.close()
    prune_history(archive, wall_ms=SystemClock().wall_ms())
    return snapshot.seq


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="phalanx-snapshot", description="Fold the log into a snapshot.")
    parser.add_argument("--store", required=True, help="URL of the store")
    parser.add_argument("--cell", required=True)
    parser.add_argument("--folder", required=True, type=Path, help="the archive's folder")
    args = parser.parse_args(argv)
    seq = asyncio.run(_run(args.store, args.cell, args.folder))
    sys.stdout.write(json.dumps({"seq": seq}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
