"""The history checker catches each fault that is planted into a clean history, and says nothing of a clean one."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.support import histories as h
from tests.support.history_checker import Batch, Marker, batch_of_entry, check_batches

ROOT = Path(__file__).parents[2]
CLEAN = h.clean_history()
MARKS = h.clean_markers()


def broken(batches: list[Batch], markers: list[Marker] | None = None) -> set[str]:
    return {violation.rule for violation in check_batches(batches, markers)}


def test_a_clean_history_with_its_markers_passes() -> None:
    assert check_batches(CLEAN, MARKS) == []


def test_lines_that_are_filed_whole_and_once_are_no_fault() -> None:
    assert check_batches(added(filed(10_000), "GangReleased", gang_id="g-1"), MARKS) == []


def test_a_live_call_is_no_fault_while_the_run_goes_on() -> None:
    cut = CLEAN[:6]
    assert broken(cut) == {"I1", "I7"}
    assert check_batches(cut, still_open=True) == []


def place(kind: str, **fields: object) -> tuple[int, int]:
    return h.at(CLEAN, kind, **fields)


def dropped(kind: str, **fields: object) -> list[Batch]:
    return h.with_event(CLEAN, place(kind, **fields), h.event("NodeStateChanged", node_id="n9", state="ready"))


def changed(kind: str, changes: dict[str, object], **fields: object) -> list[Batch]:
    i, k = place(kind, **fields)
    return h.with_event(CLEAN, (i, k), {**CLEAN[i].events[k], **changes})


def added(event: dict[str, object], kind: str, **fields: object) -> list[Batch]:
    return h.after(CLEAN, place(kind, **fields), event)


def batch_changed(index: int, **changes: object) -> list[Batch]:
    return [*CLEAN[:index], replace(CLEAN[index], **changes), *CLEAN[index + 1 :]]  # pyright: ignore[reportArgumentType]


SUCCEEDED = h.event("CallSucceeded", call_id="c-1", fence=1, result={}, busy_ms=1, wall_ms=0)
OVERLAP = h.event("GangReserved", gang=h.gang("g-9", 9))
DOUBLE_ASSIGN = h.event("CallAssigned", call_id="c-1", gang_id="g-1", attempt=2, fence=2)
MARKED = h.event("GpuMarked", node_id="n1", gpu="GPU-n1-0", state="quarantined", reason="XID 79")
COUNTED = h.event("MeterCounted", gang_id="g-1", node_id="n1", counters={"GPU-n1-0/busy": 6_000})


def filed(ms: int) -> h.Event:
    """The lines of g-1 on n1, which counted 10 s, leave the state."""
    return h.event("LinesFiled", keys=["g-1/n1"], sums=[{"phase": "busy", "ms": ms}])


FAULTS: dict[str, tuple[str, list[Batch]]] = {
    "an accepted call never ends": ("I1", dropped("CallCancelled", call_id="c-3")),
    "a call is accepted twice": ("I1", added(h.accepted("c-1"), "CallAccepted")),
    "a call ends that nobody accepted": ("I1", dropped("CallAccepted", call={"id": "c-1", "function_id": "f-1"})),
    "a live call is archived": ("I1", added(h.event("CallsArchived", call_ids=["c-2"]), "GangReady", gang_id="g-1")),
    "a result is stored twice": ("I2", added(SUCCEEDED, "CallSucceeded", call_id="c-1")),
    "a failure follows a result": (
        "I2",
        added(h.event("CallFailed", call_id="c-1", fence=1, error={}), "CallSucceeded", call_id="c-1"),
    ),
    "a result without an attempt": ("I2", added({**SUCCEEDED, "fence": 0}, "GangReady", gang_id="g-1")),
    "a second attempt beside a live one": ("I3", added(DOUBLE_ASSIGN, "CallRan", call_id="c-1")),
    "a fence that does not rise": ("I3", changed("CallAssigned", {"fence": 1}, call_id="c-2", attempt=2)),
    "an attempt that does not rise": ("I3", changed("CallAssigned", {"attempt": 1}, call_id="c-2", attempt=2)),
    "a lease fence that does not rise": (
        "I3",
        changed("GangReserved", {"gang": h.gang("g-2", 1)}, gang=h.gang("g-2", 2)),
    ),
    "two leases on one GPU": ("I4", added(OVERLAP, "GangReady", gang_id="g-1")),
    "a stale attempt runs": ("I5", changed("CallRan", {"fence": 1, "attempt": 1}, call_id="c-2", attempt=2)),
    "a stale result is stored": ("I5", changed("CallSucceeded", {"fence": 1}, call_id="c-2")),
    "ranks start before all are prepared": ("I6", dropped("MemberWasPrepared", gang_id="g-1", node_id="n2")),
    "a gang is ready without a member": ("I6", dropped("MemberWasReady", gang_id="g-1", node_id="n2")),
    "a gang is released with a live member": ("I6", dropped("MemberHasEnded", gang_id="g-1", node_id="n2")),
    "a call goes to a gang that is gone": ("I6", changed("CallAssigned", {"gang_id": "g-1"}, call_id="c-3")),
    "an event of an unknown gang": ("I6", added(h.event("GangReady", gang_id="g-7"), "GangReady", gang_id="g-1")),
    "a stranger speaks for a gang": (
        "I6",
        added(h.event("MemberWasReady", gang_id="g-1", node_id="n3"), "GangStarting", gang_id="g-1"),
    ),
    "a lease is never given back": ("I7", dropped("GangReleased", gang_id="g-2")),
    "a quarantined GPU is leased": ("I7", added(MARKED, "CallAccepted")),
    "a GPU that does not exist is leased": ("I7", changed("NodeJoined", {"info": {"node_id": "n1", "gpus": []}})),
    "a lost node is leased": (
        "I7",
        added(h.event("NodeStateChanged", node_id="n1", state="lost"), "CallAccepted"),
    ),
    "more is charged than the lease lasted": (
        "I9",
        changed("MeterCounted", {"counters": {"GPU-n1-0/busy": 60_000}}, gang_id="g-1"),
    ),
    "a GPU outside the lease is charged": (
        "I9",
        changed("MeterCounted", {"counters": {"GPU-n9-0/busy": 10}}, gang_id="g-1"),
    ),
    "a closed meter counts on": ("I9", added(COUNTED, "MeterClosed", gang_id="g-1", node_id="n1")),
    "a meter is never closed": ("I9", dropped("MeterClosed", gang_id="g-1", node_id="n1")),
    "a line that is open is filed": ("I9", added(filed(0), "GangReady", gang_id="g-1")),
    "milliseconds are lost when lines are filed": ("I9", added(filed(9_999), "GangReleased", gang_id="g-1")),
    "a line is filed twice": (
        "I9",
        h.after(CLEAN, place("GangReleased", gang_id="g-1"), filed(10_000), filed(10_000)),
    ),
    "a cancelled call is started again": (
        "I13",
        added(h.event("CallRequeued", call_id="c-3"), "CallCancelling", call_id="c-3"),
    ),
    "an epoch falls": ("I15", batch_changed(7, epoch=0)),
    "a batch is missing": ("I15", [*CLEAN[:7], *CLEAN[8:]]),
    "a batch is doubled": ("I15", [*CLEAN[:3], CLEAN[2], *CLEAN[3:]]),
    "two leaders write in one epoch": ("I15", batch_changed(7, leader="b")),
    "the log's clock falls": ("I15", batch_changed(7, log_ms=0)),
    "an epoch begins without a take-over": ("I15", [replace(b, epoch=2) if b.seq > 7 else b for b in CLEAN]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_planted_in_the_history_is_caught(fault: str) -> None:
    rule, batches = FAULTS[fault]
    assert rule in broken(batches)


def mark(i: int, **changes: object) -> Marker:
    return replace(MARKS[i], **changes)  # pyright: ignore[reportArgumentType]


def index(op: str, call: str, attempt: int = 1, rank: int = 0) -> int:
    return next(i for i, m in enumerate(MARKS) if (m.op, m.call, m.attempt, m.rank) == (op, call, attempt, rank))


def without(*gone: int) -> list[Marker]:
    return [m for i, m in enumerate(MARKS) if i not in gone]


def with_mark(i: int, **changes: object) -> list[Marker]:
    return [*MARKS[:i], mark(i, **changes), *MARKS[i + 1 :]]


LATE_NS = 60_000_000_000
START_1, STOP_1 = index("start", "c-1"), index("stop", "c-1")
OLD = index("start", "c-2", attempt=1)

MARK_FAULTS: dict[str, tuple[str, list[Marker]]] = {
    "one attempt begins twice on a rank": ("I3", [*MARKS[: STOP_1 + 1], *MARKS[START_1:]]),
    "two attempts run at once": ("I3", with_mark(index("stop", "c-2", attempt=1), mono_ns=LATE_NS)),
    "a second process holds the GPU": ("I4", [*MARKS, mark(0, op="double_hold")]),
    "two gangs run on one GPU": ("I4", with_mark(index("stop", "c-2", attempt=1), mono_ns=LATE_NS)),
    "ranks run without a lease": ("I4", with_mark(START_1, gang="g-7")),
    "a rank runs on a GPU it was not given": ("I4", with_mark(START_1, gpu="GPU-n9-0")),
    "a rank runs after its lease was given back": ("I4", with_mark(OLD, wall_ns=MARKS[OLD].wall_ns + LATE_NS)),
    "a rank runs under a wrong fence": ("I5", with_mark(START_1, fence=9)),
    "a stale attempt begins": ("I5", with_mark(OLD, wall_ns=MARKS[OLD].wall_ns + LATE_NS)),
    "an attempt runs on a gang it was not given to": ("I5", with_mark(START_1, gang="g-2", fence=2)),
    "a rank of a successful gang never ran": (
        "I6",
        without(index("start", "c-1", rank=3), index("stop", "c-1", rank=3)),
    ),
    "a rank of a successful gang never finished": ("I6", without(index("stop", "c-1", rank=3))),
    "a rank that does not exist runs": ("I6", with_mark(START_1, rank=4)),
    "a rank begins a call inside another": ("I6", without(STOP_1)),
    "a call begins after its result": ("I2", with_mark(START_1, wall_ns=MARKS[START_1].wall_ns + LATE_NS)),
    "a call begins after its cancel": (
        "I2",
        with_mark(index("start", "c-3"), wall_ns=MARKS[index("start", "c-3")].wall_ns + LATE_NS),
    ),
}


@pytest.mark.parametrize("fault", MARK_FAULTS)
def test_a_fault_planted_in_the_markers_is_caught(fault: str) -> None:
    rule, markers = MARK_FAULTS[fault]
    assert rule in broken(CLEAN, sorted(markers, key=lambda m: m.mono_ns))


def test_a_state_that_says_something_else_is_caught() -> None:
    fold = {
        "calls": {"c-2": {"state": "succeeded"}, "c-3": {"state": "cancelled"}, "c-4": {"state": "succeeded"}},
        "gangs": {},
        "ledger": {"g-1/n1": {"counters": {"GPU-n1-0/busy": 5_000, "GPU-n1-1/busy": 5_000}}},
    }
    assert check_batches(CLEAN, state=fold) == []
    for key, name, wrong in (
        ("calls", "c-3", {"state": "succeeded"}),
        ("calls", "c-8", {"state": "queued"}),
        ("gangs", "g-2", {"state": "busy"}),
        ("ledger", "g-1/n1", {"counters": {"GPU-n1-0/busy": 1}}),
    ):
        bent = {**fold, key: {**fold[key], name: wrong}}
        assert {v.rule for v in check_batches(CLEAN, state=bent)} == {"I22"}


def test_an_entry_of_the_stream_reads_as_a_batch() -> None:
    entry = {
        "id": "7-0",
        "e": "2",
        "l": "a",
        "t": "10",
        "w": "20",
        "v": "1",
        "d": '[{"kind":"GangReady","gang_id":"g"}]',
    }
    assert batch_of_entry(entry) == Batch(7, 2, "a", 10, 20, (h.event("GangReady", gang_id="g"),))


def write(folder: Path, batches: list[Batch]) -> Path:
    path = folder / "history.jsonl"
    path.write_text("".join(json.dumps(asdict(b)) + "\n" for b in batches))
    return path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.support.history_checker", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)


def test_the_program_exits_0_on_a_clean_run_and_1_on_a_broken_one(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    (marks / "g-1-0.jsonl").write_text("".join(json.dumps(asdict(m)) + "\n" for m in MARKS) + '{"op": "sta')
    clean = run(write(tmp_path, CLEAN), marks)
    assert (clean.returncode, clean.stdout) == (0, "")
    bent = run(write(tmp_path, FAULTS["a batch is missing"][1]), marks)
    assert bent.returncode == 1
    assert bent.stdout.startswith("I15 at 9: follows 7")


def test_the_program_exits_2_on_a_history_that_does_not_parse(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"seq": 1}\n')
    answer = run(path)
    assert answer.returncode == 2
    assert "line 1 is not a batch" in answer.stderr


def test_the_checker_shares_no_code_with_the_product() -> None:
    allowed = {*sys.stdlib_module_names, "tests"}
    for path in (ROOT / "tests/support/history_checker").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert all(name.split(".")[0] in allowed for name in names), path
            assert all(n.startswith("tests.support.history_checker") for n in names if n.startswith("tests")), path
