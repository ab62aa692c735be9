"""A rank's answer to its keeper: how many collectives it has entered and completed, which the last ones were, and
where its threads stand.

The one small reader beside the main thread. It sleeps in a read until the keeper asks, takes torch's own records,
which exist for gloo and NCCL alike, and holds no lock of ours. While it writes down stacks it holds the interpreter, so
that none of them moves. Where user code holds it for long, the answer comes late, and the keeper fetches the stacks by
a signal. A forked child has no reader.
"""

from __future__ import annotations

import _thread
import faulthandler
import importlib
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from phalanx.core.collectives import DEFAULT_GROUP

REMEMBERED = 64
"""Collectives that torch keeps for us, in memory of its own: enough to see several steps at once (`steps`)."""
KEPT = 16
"""So many of them are told."""
MAX_SIZES_CHARS = 120
LIGHT, FULL = b"l", b"f"
_VARIABLE = "TORCH_FR_BUFFER_SIZE"
_MAX_ASK_BYTES = 64
_MAX_THREADS = 100
"""So many faulthandler writes down, the youngest first; the main thread is the oldest."""

Dump = Callable[..., bytes | str]


def prepare_environment() -> None:
    """Before torch makes its flight recorder: few entries, unless somebody wants them otherwise."""
    if _VARIABLE not in os.environ and "TORCH_NCCL_TRACE_BUFFER_SIZE" not in os.environ:
        os.environ[_VARIABLE] = str(REMEMBERED)


def start(fd: int, stack_fd: int, *, grouped: bool, before: int = 0) -> None:
    """Begins to answer on ``fd``, a socket that keeps messages apart. Once per rank, after its group is there.

    ``stack_fd``: where stacks are written. ``before``: collectives of the gang's group that are not the program's.
    """
    dump = importlib.import_module("torch._C._distributed_c10d")._dump_fr_trace_json if grouped else _no_group
    _thread.start_new_thread(serve, (fd, dump, stack_fd, before))


def serve(fd: int, dump: Dump, stack_fd: int, before: int = 0) -> None:
    """Answers until the keeper is gone."""
    while True:
        try:
            asked = os.read(fd, _MAX_ASK_BYTES)
            if not asked:
                return
            if asked == FULL:
                write_stacks(stack_fd)
            os.write(fd, json.dumps(answer(dump, before, full=asked == FULL), separators=(",", ":")).encode())
        except OSError:
            return


def write_stacks(fd: int) -> None:
    """Writes where all threads stand, as faulthandler does, and the main one also where it would be left out."""
    faulthandler.dump_traceback(file=fd, all_threads=True)
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
    main = threading.main_thread().ident or 0
    if len(frames) <= _MAX_THREADS or main not in frames:
        return
    lines, frame = [f"\nThread 0x{main:016x} (most recent call first):"], frames[main]
    while frame is not None:
        lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}')
        frame = frame.f_back
    os.write(fd, ("\n".join(lines) + "\n").encode())


def _no_group(**_asked: bool) -> str:
    """What torch would say for a rank that is alone."""
    return "{}"


def answer(dump: Dump, before: int = 0, *, full: bool) -> dict[str, Any]:
    """Returns counts by group, and with ``full`` the last collectives, oldest first, and who is in which group.

    ``dump``: torch's own. ``before``: so many of the gang's group are not the program's, and are left out.
    """
    trace = json.loads(dump(includeCollectives=full))
    status: dict[str, Any] = trace.get("pg_status", {})
    skipped = {DEFAULT_GROUP: before}
    entries = (_collective(e, skipped) for e in trace.get("entries", ()) if not e["is_p2p"])
    return {
        "entered": {g: int(s["last_enqueued_collective"]) - skipped.get(g, 0) for g, s in status.items()},
        "completed": {g: int(s["last_completed_collective"]) - skipped.get(g, 0) for g, s in status.items()},
        "members": _members() if full else {},
        "last": [c for c in entries if c["seq"] > 0][-KEPT:],
    }


def _members() -> dict[str, list[int]]:
    """Returns the ranks of each group that was made beside the gang's own; torch's records name groups only."""
    torch = sys.modules.get("torch.distributed.distributed_c10d")
    if torch is None:
        return {}
    names, ranks = torch._world.pg_names, torch._world.pg_group_ranks
    made = [(group, str(name)) for group, name in list(names.items()) if name != DEFAULT_GROUP]
    return {name: sorted(ranks[group]) for group, name in made if group in ranks}


def _collective(entry: dict[str, Any], skipped: Mapping[str, int]) -> dict[str, Any]:
    group = str(entry["pg_id"])
    op = str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"])
    given = entry["output_sizes" if op == "scatter" else "input_sizes"]  # only one rank has inputs to scatter
    sizes = "x".join(map(str, given[0])) if len(given) == 1 else given
    return {
        "group": group,
        "seq": int(entry["collective_seq_id"]) - skipped.get(group, 0),
        "op": op,
        "sizes": str(sizes or "")[:MAX_SIZES_CHARS],
        "dtypes": ",".join(sorted({*entry["input_dtypes"], *entry["output_dtypes"]})).lower(),
        "done": bool(entry["retired"]),
    }
