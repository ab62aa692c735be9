"""A rank's answer to its keeper: how many collectives it has entered and completed, and which the last ones were.

The one small reader beside the main thread. It sleeps in a read until the keeper asks, takes torch's own records,
which exist for gloo and NCCL alike, and holds no lock of ours. Where user code holds the interpreter for long, the
answer comes late, and the keeper goes by the stack. A forked child has no reader.
"""

from __future__ import annotations

import _thread
import importlib
import json
import os
import sys
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


def prepare_environment() -> None:
    """Before torch makes its flight recorder: few entries, unless somebody wants them otherwise."""
    if _VARIABLE not in os.environ and "TORCH_NCCL_TRACE_BUFFER_SIZE" not in os.environ:
        os.environ[_VARIABLE] = str(REMEMBERED)


def start(fd: int) -> None:
    """Begins to answer on ``fd``, a socket that keeps messages apart. Once per rank, after the group is there."""
    dump = importlib.import_module("torch._C._distributed_c10d")._dump_fr_trace_json
    _thread.start_new_thread(serve, (fd, dump))


def serve(fd: int, dump: Any) -> None:
    """Answers until the keeper is gone."""
    while True:
        try:
            asked = os.read(fd, _MAX_ASK_BYTES)
            if not asked:
                return
            os.write(fd, json.dumps(answer(dump, full=asked == FULL), separators=(",", ":")).encode())
        except OSError:
            return


def answer(dump: Any, *, full: bool) -> dict[str, Any]:
    """Returns counts by group, and with ``full`` the last collectives, oldest first, and who is in which group.
    ``dump``: torch's own.
    """
    trace = json.loads(dump(includeCollectives=full))
    status: dict[str, Any] = trace.get("pg_status", {})
    return {
        "entered": {group: int(s["last_enqueued_collective"]) for group, s in status.items()},
        "completed": {group: int(s["last_completed_collective"]) for group, s in status.items()},
        "members": _members() if full else {},
        "last": [_collective(e) for e in trace.get("entries", ()) if not e["is_p2p"]][-KEPT:],
    }


def _members() -> dict[str, list[int]]:
    """Returns the ranks of each group that was made beside the gang's own; torch's records name groups only."""
    torch = sys.modules.get("torch.distributed.distributed_c10d")
    if torch is None:
        return {}
    names, ranks = torch._world.pg_names, torch._world.pg_group_ranks
    made = [(group, str(name)) for group, name in list(names.items()) if name != DEFAULT_GROUP]
    return {name: sorted(ranks[group]) for group, name in made if group in ranks}


def _collective(entry: dict[str, Any]) -> dict[str, Any]:
    op = str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"])
    given = entry["output_sizes" if op == "scatter" else "input_sizes"]  # only one rank has inputs to scatter
    sizes = "x".join(map(str, given[0])) if len(given) == 1 else given
    return {
        "group": str(entry["pg_id"]),
        "seq": int(entry["collective_seq_id"]),
        "op": op,
        "sizes": str(sizes or "")[:MAX_SIZES_CHARS],
        "dtypes": ",".join(sorted({*entry["input_dtypes"], *entry["output_dtypes"]})).lower(),
        "done": bool(entry["retired"]),
    }
