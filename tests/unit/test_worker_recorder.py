"""What a rank tells of its collectives: read from torch's records, which are given here as torch writes them."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.collectives import Collective
from phalanx.core.stacks import main_thread
from phalanx_agent.worker import recorder

STATUS = {"last_enqueued_collective": "5", "last_completed_collective": "4", "last_started_collective": "-1"}


def entry(seq: int, **other: Any) -> dict[str, Any]:
    return {
        "pg_id": 0,
        "collective_seq_id": seq,
        "is_p2p": False,
        "profiling_name": "gloo:all_reduce",
        "input_sizes": [[2, 3]],
        "output_sizes": [[2, 3]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "retired": seq < 5,
        **other,
    }


def torchs(*entries: dict[str, Any]) -> Any:
    def dump(*, includeCollectives: bool) -> str:
        trace: dict[str, Any] = {"pg_status": {"0": STATUS}}
        return json.dumps({**trace, "entries": list(entries)} if includeCollectives else trace)

    return dump


def test_a_light_answer_has_counts_alone() -> None:
    told = recorder.answer(torchs(entry(5)), full=False)
    assert told == {"entered": {"0": 5}, "completed": {"0": 4}, "members": {}, "last": []}


def test_a_full_answer_has_the_last_collectives_and_no_messages_between_two_ranks() -> None:
    entries = [entry(n) for n in range(1, 40)]
    told = recorder.answer(torchs(*entries, entry(99, is_p2p=True)), full=True)
    last = [Collective(**c) for c in told["last"]]
    assert [c.seq for c in last] == list(range(40 - recorder.KEPT, 40))
    assert last[-1].text == "all_reduce #39 of 2x3 float"


def test_what_the_platform_did_before_the_program_does_not_count() -> None:
    told = recorder.answer(torchs(*(entry(n) for n in range(1, 6))), 2, full=True)
    assert (told["entered"], told["completed"]) == ({"0": 3}, {"0": 2})
    assert [c["seq"] for c in told["last"]] == [1, 2, 3]


@pytest.mark.parametrize(
    ("changed", "op", "sizes", "dtypes"),
    [
        ({"profiling_name": "nccl:_all_gather_base"}, "_all_gather_base", "2x3", "float"),
        ({"profiling_name": "gloo:barrier", "input_sizes": [], "output_sizes": []}, "barrier", "", "float"),
        ({"input_sizes": [[4], [4]]}, "all_reduce", "[[4], [4]]", "float"),
        (
            {"profiling_name": "gloo:scatter", "input_sizes": [], "input_dtypes": [], "output_sizes": [[7]]},
            *("scatter", "7", "float"),
        ),
        ({"profiling_name": "odd", "input_dtypes": ["Long", "Float"]}, "odd", "2x3", "float,long"),
    ],
)
def test_a_collective_is_told_by_name_sizes_and_types(
    changed: dict[str, Any], op: str, sizes: str, dtypes: str
) -> None:
    (told,) = recorder.answer(torchs(entry(5, **changed)), full=True)["last"]
    assert (told["op"], told["sizes"], told["dtypes"], told["done"]) == (op, sizes, dtypes, False)


def test_the_reader_answers_each_question_and_ends_with_its_keeper(tmp_path: Path) -> None:
    stacks = tmp_path / "stacks"
    keeper, rank = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    keeper.send(recorder.LIGHT)
    keeper.send(recorder.FULL)
    keeper.shutdown(socket.SHUT_WR)
    with stacks.open("wb") as file:
        recorder.serve(rank.fileno(), torchs(entry(5)), file.fileno())
    assert [len(json.loads(keeper.recv(1 << 16))["last"]) for _ in range(2)] == [0, 1]
    here = "in test_the_reader_answers_each_question_and_ends_with_its_keeper"
    assert stacks.read_text().count(here) == 1, "once, for the full question"
    keeper.close()
    rank.close()


@pytest.mark.parametrize("others", [0, 3, 120])
def test_the_main_thread_is_written_down_whatever_number_of_others_there_is(tmp_path: Path, others: int) -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(others)]
    for thread in threads:
        thread.start()
    try:
        with (tmp_path / "stacks").open("wb") as file:
            writer = threading.Thread(target=recorder.write_stacks, args=(file.fileno(),))
            writer.start()
            writer.join()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    functions = [place.function for place in main_thread((tmp_path / "stacks").read_text())]
    assert "test_the_main_thread_is_written_down_whatever_number_of_others_there_is" in functions


@pytest.mark.parametrize("set_by_user", ["", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_torch_remembers_few_unless_somebody_wants_more(monkeypatch: pytest.MonkeyPatch, set_by_user: str) -> None:
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        monkeypatch.delenv(name, raising=False)
    if set_by_user:
        monkeypatch.setenv(set_by_user, "2000")
    recorder.prepare_environment()
    expected = {"": str(recorder.REMEMBERED), "TORCH_FR_BUFFER_SIZE": "2000"}.get(set_by_user)
    assert os.environ.get("TORCH_FR_BUFFER_SIZE") == expected
