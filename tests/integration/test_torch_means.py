"""What hang detection takes from torch, on the torch that is installed: this fails where a new one has changed it.

Two processes in one gloo group; one of them does not come to the second collective, as a rank that hangs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import json, os, sys, threading, time
os.environ["TORCH_FR_BUFFER_SIZE"] = "16"
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace_json as dump
from phalanx_agent.worker import recorder

port = int(sys.argv[1])
rank = 0 if os.fork() else 1
store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
pair = dist.new_group([0, 1])
dist.all_reduce(torch.ones(2, 3))
dist.scatter(torch.empty(5), [torch.ones(5)] * 2 if rank == 0 else None, src=0)
dist.all_reduce(torch.ones(1), group=pair)
if rank == 1:
    store.wait(["seen"])
    os._exit(0)

def see():
    time.sleep(0.3)
    light = json.loads(dump(includeCollectives=False))
    group = dist.distributed_c10d._get_default_group()
    seen = {"version": torch.__version__, "raw": json.loads(dump(includeCollectives=True)), "light": light,
            "full": recorder.answer(dump, full=True), "number": group._get_sequence_number_for_group()}
    print(json.dumps(seen), flush=True)
    store.set("seen", "1")
    os._exit(0)

threading.Thread(target=see).start()
dist.barrier()
"""


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(port)]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, f"torch has none of the means that worker/recorder.py uses: {ran.stderr[-2000:]}"
    return json.loads(ran.stdout.splitlines()[-1])


def changed(seen: dict[str, Any], what: str) -> str:
    return (
        f"torch {seen['version']} {what}: worker/recorder.py, keeper/looking.py and core/collectives.py go by it to "
        "find the odd rank of a hang (design, section 4)"
    )


def test_torch_counts_collectives_by_group_for_gloo_too(seen: dict[str, Any]) -> None:
    status = seen["raw"].get("pg_status", {})
    names = {"last_enqueued_collective", "last_completed_collective"}
    assert status.keys() == {"0", "1"}, changed(seen, f"names groups otherwise: {status}")
    assert names <= status["0"].keys(), changed(seen, f"counts otherwise: {status}")
    assert seen["light"].get("pg_status") == status, changed(seen, "counts nothing where no entries are asked for")
    assert not seen["light"].get("entries"), changed(seen, "gives entries that were not asked for")


def test_torch_records_each_collective_with_its_sizes(seen: dict[str, Any]) -> None:
    names = {"pg_id", "collective_seq_id", "is_p2p", "profiling_name", "input_sizes", "output_sizes", "retired"}
    entries: list[dict[str, Any]] = seen["raw"].get("entries", [])
    assert entries, changed(seen, "records nothing for gloo")
    missing = (names | {"input_dtypes", "output_dtypes"}) - entries[0].keys()
    assert not missing, changed(seen, f"records no {sorted(missing)}")


def test_a_rank_that_waits_is_seen_to_wait_and_in_what(seen: dict[str, Any]) -> None:
    full = seen["full"]
    assert (full["entered"]["0"], full["completed"]["0"]) == (3, 2), changed(seen, f"counts otherwise: {full}")
    told = [(c["group"], c["seq"], c["op"], c["sizes"], c["dtypes"], c["done"]) for c in full["last"]]
    assert told == [
        ("0", 1, "all_reduce", "2x3", "float", True),
        ("0", 2, "scatter", "5", "float", True),
        ("1", 1, "all_reduce", "1", "float", True),
        ("0", 3, "barrier", "", "", False),
    ], changed(seen, "records collectives otherwise")


def test_the_ranks_of_a_group_are_known_by_the_name_that_its_records_have(seen: dict[str, Any]) -> None:
    assert seen["full"]["members"] == {"1": [0, 1]}, changed(seen, f"keeps groups otherwise: {seen['full']['members']}")


def test_a_group_numbers_its_collectives_as_its_records_do(seen: dict[str, Any]) -> None:
    assert seen["number"] == seen["full"]["entered"]["0"], changed(seen, f"numbers otherwise: {seen['number']}")
