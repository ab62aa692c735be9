"""What functions write and read, through real calls: it comes whole, at once and to its reader, and blocks nobody."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.client import Client
from phalanx.connection import Connection
from phalanx.logs import CallLogs
from phalanx.runner import current
from tests.support.aftermath import judged_cluster
from tests.support.cluster import Cluster
from tests.support.wait import wait_until

STILL_WAITS_S = 20.0
AT_ONCE_S = 5.0
"""An idle machine needs tens of milliseconds."""


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with judged_cluster(tmp_path_factory.mktemp("cluster"), agents=1) as running:
        yield running


def last_words(how: str) -> None:
    if how == "ten lines":
        for number in range(10):
            print("line", number)
    else:
        print("no end of line", end="")
    os._exit(1)


def bar(_: str) -> None:
    for percent in range(0, 101, 20):
        sys.stderr.write(f"\r{percent:3d}%|{'#' * (percent // 20):5}|")
    sys.stderr.write("\n")


def junk(_: str) -> None:
    os.write(1, b"\xff\xfe\x97" * 100_000)
    os.write(1, b"\n" + "ü".encode()[:1])
    print("after")


def empty_lines(_: str) -> None:
    print("a\n\nb\n", end="")
    print("c", file=sys.stderr)


def ask(what: str) -> Any:
    import shutil

    match what:
        case "input":
            return input("name? ")
        case "stdin":
            return sys.stdin.read()
        case "descriptor":
            return os.read(0, 1)
        case "columns":
            return shutil.get_terminal_size().columns
        case "terminal":
            return os.get_terminal_size(1)
        case _:
            import getpass

            return getpass.getpass()


ACTS: dict[str, Callable[[str], Any]] = {
    "words": last_words,
    "bar": bar,
    "junk": junk,
    "empty": empty_lines,
    "ask": ask,
}


@phalanx.gpu_function(gpus=0, scaledown_window=2)
def act(which: str, how: str = "") -> Any:
    return ACTS[which](how)


@phalanx.gpu_function(gpus=0, scaledown_window=1)
def talk_and_wait(path: str) -> None:
    print("a")
    wait_until(Path(path).exists, "the word to go on", STILL_WAITS_S)
    print("b")


@phalanx.gpu_function(gpus=2, scaledown_window=1)
def both_fail() -> None:
    rank = phalanx.current().rank
    print("out of", rank)
    print("error of", rank, file=sys.stderr)
    raise ValueError(rank)


def lines_of(call: phalanx.Call[Any]) -> list[str]:
    return [line.text for line in call.logs(follow=True)]


@pytest.mark.parametrize(
    ("how", "lines"),
    [("ten lines", [f"line {n}" for n in range(10)]), ("no end of line", ["no end of line"])],
)
def test_what_was_written_before_an_exit_that_flushes_nothing_is_there(how: str, lines: list[str]) -> None:
    call = act.spawn("words", how)
    with pytest.raises(phalanx.RankDiedError, match="exited 1"):
        call.get(60)
    assert lines_of(call) == lines


def test_a_line_is_seen_while_the_function_waits_behind_it(tmp_path: Path) -> None:
    call = talk_and_wait.spawn(str(tmp_path / "go"))
    wait_until(lambda: call.status().state == "running", "it runs", 60)
    lines = iter(CallLogs(current().client, call.id).live())
    began = time.monotonic()
    assert next(lines).text == "a"
    assert time.monotonic() - began < AT_ONCE_S
    assert call.status().state == "running"
    (tmp_path / "go").touch()
    assert [line.text for line in lines] == ["b"]


def test_bytes_that_are_no_text_are_replaced_and_stop_nothing() -> None:
    call = act.spawn("junk")
    call.get(60)
    logs = CallLogs(current().client, call.id)
    replaced, after = (line.text for line in logs.live())
    assert replaced.startswith("\ufffd\ufffd\ufffd")
    assert after == "\ufffdafter"
    assert logs.tally.received == 300_000 + len(b"\n?after\n")
    assert logs.tally.complete, logs.tally.words


def test_a_progress_bar_is_one_line_with_its_last_state() -> None:
    call = act.spawn("bar")
    call.get(60)
    assert lines_of(call) == ["100%|#####|"]


def test_every_line_comes_once_with_its_call_and_empty_ones_as_they_are() -> None:
    calls = [act.spawn("empty") for _ in range(3)]
    for call in calls:
        call.get(60)
        lines = list(call.logs(follow=True))
        assert sorted((line.stream, line.text) for line in lines) == [
            ("stderr", "c"),
            ("stdout", ""),
            ("stdout", "a"),
            ("stdout", "b"),
        ]
        assert [line.text for line in lines if line.stream == "stdout"] == ["a", "", "b"]


def test_a_failed_gangs_output_has_rank_node_and_stream() -> None:
    call = both_fail.spawn()
    with pytest.raises(ValueError, match=r"^[01]"):
        call.get(60)
    lines = {(line.rank, line.node_id, line.stream, line.text) for line in call.logs(follow=True)}
    assert {(r, "n0", "stdout", f"out of {r}") for r in (0, 1)} <= lines
    assert {(r, "n0", "stderr", f"error of {r}") for r in (0, 1)} <= lines


def test_another_workspace_gets_none_of_it(cluster: Cluster) -> None:
    call = act.spawn("empty")
    call.get(60)
    token, _ = current().client.create_token(workspace="other", user="eve", role="member")
    eve = Client(Connection(cluster.address(), token, str(cluster.ca)))
    try:
        with pytest.raises(phalanx.NotFoundError, match=rf"no call '{call.id}'"):
            list(CallLogs(eve, call.id).now())
    finally:
        eve.close()


@pytest.mark.parametrize(
    ("what", "answer"), [("stdin", ""), ("descriptor", b""), ("columns", 80)], ids=["stdin", "descriptor", "columns"]
)
def test_nothing_to_read_and_no_terminal_are_told_at_once(what: str, answer: Any) -> None:
    assert act.spawn("ask", what).get(60) == answer


@pytest.mark.parametrize(("what", "error"), [("input", EOFError), ("terminal", OSError), ("password", EOFError)])
def test_asking_for_what_only_a_terminal_has_raises_at_once(what: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        act.spawn("ask", what).get(60)
    assert not isinstance(caught.value, phalanx.PhalanxError)
