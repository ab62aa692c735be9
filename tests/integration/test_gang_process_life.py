"""User code that does to its process whatever can be done: no call sees another's mess, and nothing is left over."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from phalanx.core.frames import NO_ID, Frame, Kind
from phalanx.core.spec import Limits
from tests.support.gang_driver import Gangs, Keeper, process_exists
from tests.support.wait import wait_until


def namespace_members(keeper: Keeper) -> list[int]:
    """Every process in the keeper's PID namespace, or in its session's tree."""
    own = str(Path("/proc/self/ns/pid").readlink())
    inside = str(Path(f"/proc/{keeper.pid}/ns/pid").readlink())
    assert inside != own, "this machine grants no PID namespace"
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str((entry / "ns/pid").readlink()) == inside and process_exists(int(entry.name)):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_grandchildren_die_with_a_rank_that_crashes(gangs: Gangs) -> None:
    def spawn_and_crash() -> None:
        import os
        import threading

        for detached in (False, True):
            if os.fork() == 0:
                if detached:
                    os.setsid()
                    if os.fork() > 0:
                        os._exit(0)
                threading.Event().wait()
        threading.Event().wait(0.2)
        os._exit(5)

    keeper = gangs.one(spawn_and_crash, gpus=0)
    keeper.ready()
    call = keeper.call()
    wait_until(lambda: len(namespace_members(keeper)) >= 4, "two grandchildren run")
    assert keeper.error(call)["exit_code"] == 5
    assert namespace_members(keeper) == [keeper.pid]
    keeper.ended()
    keeper.leave()


def test_children_of_a_failed_call_are_ended_and_the_gang_stays(gangs: Gangs) -> None:
    def spawn_and_raise(fails: bool) -> int:
        import multiprocessing
        import threading

        if fails:
            multiprocessing.get_context("fork").Process(target=threading.Event().wait).start()
            raise RuntimeError("after starting a child")
        return len(multiprocessing.active_children())

    keeper = gangs.one(spawn_and_raise, gpus=0)
    keeper.ready()
    assert keeper.error(keeper.call(True))["type_name"] == "RuntimeError"
    wait_until(lambda: len(namespace_members(keeper)) == 2, "keeper and rank alone are left")
    assert keeper.result(keeper.call(False)) == 0


def test_a_child_blocked_on_a_pipe_is_killed_with_its_gang(gangs: Gangs) -> None:
    def block_a_writer() -> None:
        import os
        import threading

        reading, writing = os.pipe()
        if os.fork() == 0:
            while True:
                os.write(writing, b"x" * 65536)
        del reading
        threading.Event().wait()

    keeper = gangs.one(block_a_writer, gpus=0)
    keeper.ready()
    keeper.call()
    wait_until(lambda: len(namespace_members(keeper)) == 3, "the writer runs")
    keeper.stop(grace_ms=300)
    assert namespace_members(keeper) == [keeper.pid]
    keeper.leave()


def test_only_the_first_process_reports_when_a_fork_returns_too(gangs: Gangs) -> None:
    def return_twice() -> int:
        import os

        return os.fork()

    keeper = gangs.one(return_twice, gpus=0)
    assert keeper.result(keeper.call()) > 0
    assert keeper.result(keeper.call()) > 0
    assert len([f for f in keeper.seen if f.kind is Kind.RESULT]) == 2


def test_a_thread_that_never_ends_delays_neither_the_result_nor_the_end(gangs: Gangs) -> None:
    def leave_a_thread() -> str:
        import threading

        threading.Thread(target=threading.Event().wait).start()
        return "returned"

    keeper = gangs.one(leave_a_thread, gpus=0)
    pids = keeper.pids()
    assert keeper.result(keeper.call()) == "returned"
    began = time.monotonic()
    assert keeper.stop(grace_ms=5000)["clean"] is True
    assert time.monotonic() - began < 2
    assert not process_exists(pids[0])


@pytest.mark.parametrize(("grace_ms", "saved"), [(4000, True), (300, False)])
def test_a_sigterm_handler_of_the_user_runs_within_the_grace(gangs: Gangs, grace_ms: int, saved: bool) -> None:
    def save_slowly() -> None:
        import os
        import signal
        import threading
        from types import FrameType

        def on_term(number: int, frame: FrameType | None) -> None:
            print("saving", flush=True)
            threading.Event().wait(1)
            print("saved", flush=True)
            os._exit(0)

        signal.signal(signal.SIGTERM, on_term)
        print("armed", flush=True)
        threading.Event().wait()

    keeper = gangs.one(save_slowly, ranks=2)
    keeper.ready()
    keeper.call()
    wait_until(lambda: keeper.text().count("armed") == 2, "both ranks have their handler")
    keeper.stop(grace_ms=grace_ms)
    assert keeper.text().count("saving") == 2
    assert keeper.text().count("saved") == (2 if saved else 0)


def end_itself(how: str) -> str:
    """Sends SIGTERM to its own process, as libraries and admins do; swallows it where told to."""
    import os
    import signal
    import time

    if how == "ok":
        return how
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
    except BaseException:
        if how == "raise":
            raise
    return "survived"


def lower_limits(how: str) -> int:
    """Lowers a limit for good, as only root could undo, and says how many files it may open."""
    import resource

    if how == "lower":
        resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start ranks as another user")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_process_whose_hard_limit_was_lowered_gets_no_other_call(short_run_dir: Path, ranks: int) -> None:
    gangs = Gangs(short_run_dir, rank_user="nobody")
    short_run_dir.chmod(0o755)
    try:
        keeper = gangs.one(lower_limits, ranks=ranks)
        assert keeper.result(keeper.call("look")) > 10
        first, second = keeper.call("lower"), keeper.call("look")
        assert keeper.result(first) == 10
        frame = keeper.outcome(second)
        assert frame.meta["started"] is False
        assert "setrlimit" in frame.meta["error"]["message"]
        assert keeper.ended()["error"] is None
    finally:
        gangs.close()


def start_helpers(how: str) -> list[int]:
    """Starts an orphan in a session of its own and a child that is held; returns the orphan's process id."""
    import subprocess
    import sys

    if how == "look":
        return []
    script = "import os,sys,time\nif os.fork(): os._exit(0)\nos.setsid(); print(os.getpid(), flush=True)\n"
    command = [sys.executable, "-S", "-c", script + "sys.stdout.close(); os.close(1); time.sleep(60)"]
    orphan = int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    held = subprocess.Popen(["sleep", "60"])
    globals()["held"] = held
    return [orphan, held.pid]


def test_an_orphan_of_a_call_that_succeeded_is_ended_and_a_child_that_is_held_stays(gangs: Gangs) -> None:
    keeper = gangs.one(start_helpers, gpus=0)
    inside = keeper.result(keeper.call("start"))
    assert keeper.result(keeper.call("look")) == []
    wait_until(lambda: not inside_exists(keeper, inside[0]), "the orphan is gone")
    assert inside_exists(keeper, inside[1])


def inside_exists(keeper: Keeper, pid: int) -> bool:
    """Looks for a process by its number inside the gang's own namespace, where it has one."""
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        except (FileNotFoundError, ProcessLookupError):
            continue
        numbers = lines.get("NSpid", lines["Pid"]).split()
        if numbers[-1] == str(pid) and "Z" not in lines["State"] and is_below(int(numbers[0]), keeper.pid):
            return True
    return False


def is_below(pid: int, root: int) -> bool:
    while pid > 1 and pid != root:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid == root


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_sigterm_that_nobody_asked_for_is_told_as_one_and_ends_the_gang(gangs: Gangs, ranks: int) -> None:
    keeper = gangs.one(end_itself, ranks=ranks)
    frame = keeper.outcome(keeper.call("raise"))
    error = frame.meta["error"]
    assert (frame.meta["outcome"], error["cause"], error["signal"]) == ("failed", "infrastructure", signal.SIGTERM)
    assert "was sent SIGTERM" in error["message"]
    assert [r["rank"] for r in error["ranks"] if r["culprit"]] == [error["rank"]]
    keeper.ended()


@pytest.mark.parametrize("how", ["raise", "swallow"])
def test_a_call_behind_an_unasked_sigterm_goes_back_as_not_begun(gangs: Gangs, how: str) -> None:
    keeper = gangs.one(end_itself, gpus=0)
    first, second = keeper.call(how), keeper.call("ok")
    if how == "swallow":
        assert keeper.result(first) == "survived"
    frame = keeper.outcome(second)
    assert frame.meta["started"] is False
    assert "was sent SIGTERM" in frame.meta["error"]["message"]
    assert keeper.ended()["error"]["signal"] == signal.SIGTERM


def test_a_sigterm_from_outside_between_calls_ends_the_gang_with_that_reason(gangs: Gangs) -> None:
    keeper = gangs.one(end_itself, gpus=0)
    os.kill(keeper.pids()[0], signal.SIGTERM)
    report = keeper.ended()
    assert "was sent SIGTERM between calls" in report["error"]["message"]
    assert keeper.outcome(keeper.call("ok")).meta["started"] is False


def test_exit_handlers_run_when_a_call_is_cancelled(gangs: Gangs) -> None:
    def hold_files() -> None:
        import atexit
        import tempfile
        import threading

        atexit.register(print, "handler ran", flush=True)
        with tempfile.TemporaryDirectory() as path:
            print("in", path, flush=True)
            try:
                threading.Event().wait()
            finally:
                print("unwound", flush=True)

    keeper = gangs.one(hold_files, gpus=0)
    call = keeper.call()
    wait_until(lambda: "in " in keeper.text(), "the call runs")
    began = time.monotonic()
    keeper.send(Frame(Kind.CANCEL, call, {"reason": "cancelled", "grace_ms": 3000}))
    frame = keeper.outcome(call)
    assert frame.meta["outcome"] == "cancelled"
    assert frame.meta["error"]["cause"] == "cancelled"
    assert time.monotonic() - began < 2, "the grace of 3 s was waited for"
    keeper.ended()
    assert "unwound" in keeper.text()
    assert "handler ran" in keeper.text()
    directory = next(line for line in keeper.text().splitlines() if line.startswith("in ")).removeprefix("in ")
    assert not Path(directory).exists()


def test_nothing_is_left_when_the_keeper_is_killed(gangs: Gangs) -> None:
    def spawn_forever() -> None:
        import os
        import threading

        if os.fork() == 0:
            os.setsid()
        threading.Event().wait()

    keeper = gangs.one(spawn_forever, gpus=0)
    keeper.ready()
    keeper.call()
    wait_until(lambda: len(namespace_members(keeper)) == 3, "a detached child runs")
    members = namespace_members(keeper)
    os.kill(keeper.pid, signal.SIGKILL)
    wait_until(lambda: not any(process_exists(p) for p in members), "the namespace is empty", 1)


def test_a_keeper_leaves_no_socket_and_no_private_directory(gangs: Gangs) -> None:
    def where() -> str:
        import os

        return os.environ["TMPDIR"]

    keeper = gangs.one(where, gpus=0)
    private = Path(keeper.result(keeper.call()))
    assert private.is_dir()
    keeper.stop()
    keeper.leave()
    assert not private.exists()
    assert not (keeper.gang_dir / "keeper.sock").exists()
    assert (keeper.gang_dir / "ended.json").exists()


def test_a_gang_without_an_agent_ends_after_its_disconnect_grace(gangs: Gangs) -> None:
    def wait() -> None:
        import threading

        threading.Event().wait()

    keeper = gangs.one(wait, gpus=0, limits=Limits(disconnect_grace_s=0.5))
    pids = keeper.pids()
    keeper.call()
    keeper.detach()
    wait_until(lambda: not process_exists(pids[0]), "the rank ends by itself", 4)
    keeper.attach()
    assert "disconnect_grace" in keeper.ended()["error"]["message"]
    keeper.send(Frame(Kind.ACK, NO_ID))


@pytest.mark.parametrize("pings", [1, 0], ids=["after a word", "at once"])
def test_a_gang_whose_agent_falls_silent_ends_though_its_connection_stands(gangs: Gangs, pings: int) -> None:
    def wait() -> None:
        import threading

        threading.Event().wait()

    keeper = gangs.one(wait, gpus=0, limits=Limits(disconnect_grace_s=0.5))
    pids = keeper.pids()
    keeper.call()
    for _ in range(pings):
        keeper.send(Frame(Kind.PING))
    assert "disconnect_grace" in keeper.ended()["error"]["message"]
    assert not process_exists(pids[0])
    keeper.leave()
