"""How calls end, end to end: what the function may still do, what everybody is told, when processes are gone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import phalanx
from tests.faults import work
from tests.support.aftermath import judged_cluster
from tests.support.cluster import Cluster
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with judged_cluster(tmp_path_factory.mktemp("cluster"), agents=2) as running:
        yield running


def sleeps(folder: str) -> None:
    work.arrive(folder)
    time.sleep(600)


def saves(folder: str, seconds: float) -> None:
    import signal
    from threading import Event
    from types import FrameType

    def on_term(_number: int, _frame: FrameType | None) -> None:
        print("saving", flush=True)
        Event().wait(seconds)
        print("saved", flush=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, on_term)
    work.arrive(folder)
    Event().wait()


def unwinds(folder: str) -> None:
    import atexit
    import tempfile

    atexit.register(print, "handler ran", flush=True)
    with tempfile.TemporaryDirectory(dir=folder):
        work.arrive(folder)
        time.sleep(600)


def ignores_everything(folder: str) -> None:
    import signal

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    work.arrive(folder)
    while True:
        try:
            time.sleep(600)
        except BaseException:
            continue


def places() -> dict[str, str]:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "CUDA_VISIBLE_DEVICES")
    return {name: os.environ[name] for name in names}


def slow_to_start(rank: int, folder: str) -> phalanx.Function[[], float]:
    """A function whose code takes seconds to load on one rank alone."""

    class Slow:
        def __reduce__(self) -> tuple[Any, ...]:
            return wait_on, (rank, folder)

    held: Any = Slow()

    def run() -> float:
        return float(isinstance(held, int))

    return work.gang(run, scaledown_window=0.5)


def wait_on(rank: int, folder: str) -> int:
    if os.environ.get("RANK") == str(rank):
        time.sleep(4)
        (Path(folder) / "loaded").touch()
    return rank


def spent_ms(call: phalanx.Call[float], phase: str) -> int:
    return sum(each.gpu_ms for each in call.cost().phases if each.phase == phase)


def mismatched() -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1000 if phalanx.current().rank == 0 else 10))


def test_a_cancel_interrupts_a_sleep_and_the_state_changes_once_the_processes_are_gone(tmp_path: Path) -> None:
    call = work.gang(sleeps, nodes=2).spawn(str(tmp_path))
    work.wait_for_ranks(tmp_path, call=call)
    pids = work.pids_of(call)
    began = time.monotonic()
    call.cancel(wait=False)
    wait_until(lambda: call.status().state == "cancelled", "it is cancelled", 20)
    assert work.gone(pids)
    assert time.monotonic() - began < 10


def test_the_first_call_of_a_function_that_ignores_every_signal_is_gone_when_it_is_cancelled(tmp_path: Path) -> None:
    call = work.gang(ignores_everything).spawn(str(tmp_path))
    work.wait_for_ranks(tmp_path, call=call)
    pids = work.pids_of(call)
    assert call.cancel().state == "cancelled"
    assert work.gone(pids)


@pytest.mark.parametrize(("grace", "saved"), [(6, 4), (0.5, 0)], ids=["long", "short"])
def test_grace_is_a_setting_and_what_a_handler_says_is_in_the_logs(grace: float, saved: int, tmp_path: Path) -> None:
    call = work.gang(saves, nodes=2, grace=grace).spawn(str(tmp_path), 2)
    work.wait_for_ranks(tmp_path, call=call)
    call.cancel()
    lines = [line.text for line in call.logs(follow=True)]
    assert (lines.count("saving"), lines.count("saved")) == (4, saved)


@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_handlers_run_and_temporary_folders_go_within_the_grace(how: str, tmp_path: Path) -> None:
    function = work.single(unwinds, grace=5)
    call = (function.options(timeout=2) if how == "timeout" else function).spawn(str(tmp_path))
    work.wait_for_ranks(tmp_path, 1, call)
    if how == "cancel":
        call.cancel()
    with pytest.raises(phalanx.CallTimeoutError if how == "timeout" else phalanx.CallCancelledError):
        call.get(60)
    assert "handler ran" in [line.text for line in call.logs(follow=True)]
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_an_end_is_the_same_in_handle_command_line_list_and_bill(cluster: Cluster) -> None:
    call = work.gang(time.sleep).options(timeout=0.7).spawn(0.6)
    try:
        state = "succeeded" if call.get(60) is None else ""
    except phalanx.CallTimeoutError:
        state = "timed_out"
    words = [sys.executable, "-m", "phalanx.cli.main", "ps", "--all", "--json"]
    told = subprocess.run(words, env=cluster.env(), capture_output=True, text=True, timeout=60, check=True).stdout
    views = [json.loads(line) for line in told.splitlines()]
    assert [v["state"] for v in views if v["call_id"] == call.id] == [state]
    assert phalanx.Call.from_id(call.id).status().state == state
    assert call.cost().gpu_ms >= 4 * 500


def test_every_ranks_environment_fits_the_gangs_over_two_nodes() -> None:
    seen = work.gang(places, nodes=2, returns="all").spawn().get(60)
    assert [p["RANK"] for p in seen] == ["0", "1", "2", "3"]
    assert [p["GROUP_RANK"] for p in seen] == ["0", "0", "1", "1"]
    assert [p["LOCAL_RANK"] for p in seen] == ["0", "1", "0", "1"]
    assert {(p["WORLD_SIZE"], p["LOCAL_WORLD_SIZE"], p["CUDA_VISIBLE_DEVICES"]) for p in seen} == {("4", "2", "")}


def test_a_rank_that_is_slow_to_start_is_waited_for_and_not_charged_as_busy(tmp_path: Path) -> None:
    call = slow_to_start(3, str(tmp_path)).spawn()
    assert call.get(90) == 1.0
    assert (tmp_path / "loaded").exists()
    assert call.status().attempt == 1
    wait_until(lambda: spent_ms(call, "start") >= 4 * 4000, "its agent has reported the start", 30)
    assert spent_ms(call, "busy") < 4 * 1000


def test_sizes_that_differ_show_what_every_rank_was_in() -> None:
    call = work.gang(mismatched, nodes=2).spawn()
    with pytest.raises((phalanx.PhalanxError, RuntimeError)):
        call.get(60)
    error = call.status().error
    text = "\n".join([error.message, *(r.message for r in error.ranks)])
    assert " of 1000 float" in text
    assert " of 10 float" in text


def test_a_port_that_a_foreign_program_serves_is_in_nobodys_way() -> None:
    with socket.create_server(("127.0.0.1", 29500), reuse_port=False):
        functions = [work.gang(work.sum_of_ranks, nodes=2, gpus=2, name=f"beside-{n}") for n in range(4)]
        assert [call.get(60) for call in [f.spawn(1.0) for f in functions]] == [1.0] * 4
