"""A process per environment from which gangs are forked: everything imported, CUDA untouched, one thread, no op run.

    zygote ─fork─ helper ─unshare, fork─ keeper ─fork─ ranks

Started by the launcher with posix_spawn: descriptor 0 is its lifeline (it ends at end-of-file), descriptor 3 takes one
status line. Gangs do not depend on it once forked. It refuses to fork when it has more than one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from phalanx_agent.gang_config import config_from_json
from phalanx_agent.keeper.main import KeeperSetup, run_keeper
from phalanx_agent.keeper.namespaces import Walls, become_subreaper, candidates, leave_parent
from phalanx_agent.worker.main import run_rank
from phalanx_agent.worker.preload import preload, threads
from phalanx_agent.worker.shell import run_shell

STATUS_FD = 3
KEEPER_ACCEPTS_WITHIN_S = 15
REQUEST_BYTES = 64 * 1024


class ForkRefusedError(RuntimeError):
    """This process may not fork; a fresh one has to."""


@dataclass(frozen=True, slots=True)
class _Request:
    """One gang to start. ``listen_fd`` −1: none."""

    gang_dir: Path
    listen_fd: int


def main() -> None:
    """Reads the command line, imports, and serves until the lifeline ends."""
    parser = argparse.ArgumentParser(prog="phalanx-zygote")
    parser.add_argument("--socket", required=True)
    parser.add_argument("--preload", default="")
    parser.add_argument("--light", action="store_true")
    options = parser.parse_args()
    try:
        preload(tuple(filter(None, options.preload.split(","))), with_torch=not options.light)
        listener = _listen(options.socket)
    except BaseException as e:  # noqa: BLE001  user modules are imported here; the launcher is told
        traceback.print_exc()
        _status({"error": f"{type(e).__name__}: {e}"})
        sys.exit(1)
    _status({"ready": True, "threads": threads()})
    _serve(listener)


def _listen(path: str) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        Path(path).unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    listener.bind(path)
    os.umask(mask)
    listener.listen(64)
    return listener


def _status(value: dict[str, object]) -> None:
    os.write(STATUS_FD, json.dumps(value).encode() + b"\n")
    os.close(STATUS_FD)


def _serve(listener: socket.socket) -> None:
    become_subreaper()
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, _noted)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    poll = select.poll()
    for fd in (0, listener.fileno(), reading):
        poll.register(fd, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if reading in ready:
            os.read(reading, 4096)
            _reap()
        if listener.fileno() in ready:
            connection, _ = listener.accept()
            with connection:
                _answer(connection)
        if 0 in ready and not os.read(0, 1):
            return


def _noted(number: int, frame: FrameType | None) -> None:
    """Exists so that the wake-up descriptor is written."""
    del number, frame


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(connection: socket.socket) -> None:
    connection.settimeout(KEEPER_ACCEPTS_WITHIN_S + 5)
    fds: list[int] = []
    try:
        data, fds, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 1)
        if not data:
            return
        request = _Request(Path(json.loads(data)["gang_dir"]), fds[0] if fds else -1)
        answer = _start(request)
    except ForkRefusedError as e:
        answer = {"refused": str(e)}
    except (OSError, ValueError, KeyError, TypeError) as e:
        traceback.print_exc()
        answer = {"error": f"{type(e).__name__}: {e}"}
    finally:
        for fd in fds:
            os.close(fd)
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(answer).encode() + b"\n")


def _start(request: _Request) -> dict[str, object]:
    """Forks a keeper behind the best walls that the kernel grants. Returns its pid and which walls they are."""
    count = threads()
    if count > 1:
        raise ForkRefusedError(f"{count} threads run in the zygote: a fork would copy their locks but not them")
    config = config_from_json((request.gang_dir / "gang.json").read_text())
    problems: list[str] = []
    for walls in candidates(changes_user=bool(config.rank_user)):
        reading, writing = os.pipe()
        helper = os.fork()
        if helper == 0:
            os.close(reading)
            _helper(request, walls, writing)
        os.close(writing)
        pid, problem = _hear(reading)
        os.close(reading)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(helper, 0)
        if not problem:
            return {"pid": pid, "walls": str(walls)}
        problems.append(f"{walls}: {problem}")
    return {"error": "; ".join(problems)}


def _helper(request: _Request, walls: Walls, writing: int) -> NoReturn:
    """Between zygote and keeper: enters new namespaces, so that its child is their first process."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        leave_parent(walls)
        keeper = os.fork()
        if keeper == 0:
            _keeper(request, walls, writing)
        os.write(writing, f"pid {keeper}\n".encode())
    except OSError as e:
        os.write(writing, f"error {e}\n".encode())
    finally:
        os._exit(0)


def _keeper(request: _Request, walls: Walls, writing: int) -> NoReturn:
    def accepting() -> None:
        os.write(writing, b"accepting\n")
        os.close(writing)

    try:
        config = config_from_json((request.gang_dir / "gang.json").read_text())
        kept = {0, 1, 2, writing, request.listen_fd}
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
            if int(name) not in kept:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        setup = KeeperSetup(
            config=config,
            gang_dir=request.gang_dir,
            walls=walls,
            listen_fd=request.listen_fd,
            rank_main=run_rank,
            shell_main=run_shell,
            accepting=accepting,
        )
    except BaseException as e:  # noqa: BLE001  the process boundary
        os.write(writing, f"error {type(e).__name__}: {e}\n".encode())
        os._exit(1)
    run_keeper(setup)


def _hear(reading: int) -> tuple[int, str]:
    """Returns the keeper's pid once it accepts, or what went wrong."""
    text = b""
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while b"accepting\n" not in text or b"pid " not in text:
        if not poll.poll(KEEPER_ACCEPTS_WITHIN_S * 1000):
            return 0, f"the keeper did not accept within {KEEPER_ACCEPTS_WITHIN_S} s"
        data = os.read(reading, 4096)
        if not data:
            break
        text += data
    lines = text.decode().splitlines()
    problem = next((line.removeprefix("error ") for line in lines if line.startswith("error ")), "")
    pid = next((int(line.removeprefix("pid ")) for line in lines if line.startswith("pid ")), 0)
    if not problem and b"accepting\n" not in text:
        problem = "the keeper ended at once; see keeper.log"
    return pid, problem


if __name__ == "__main__":
    main()
