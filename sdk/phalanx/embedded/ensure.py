"""Joins the embedded cluster of this machine, or starts it. Called by the SDK when nothing else is configured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

from phalanx.core.clock import SystemClock
from phalanx.core.errors import ConnectionFailedError, InvalidSpecError, NotBuiltError
from phalanx.embedded.activity import is_busy
from phalanx.embedded.clients import announce, leave
from phalanx.embedded.devices import VARIABLE, simulated
from phalanx.embedded.locks import is_held, lock_within, try_lock
from phalanx.embedded.paths import Home, default_home
from phalanx.embedded.record import Failure, Record, read_failure, read_record, tail_of
from phalanx.embedded.version import build_stamp, installed_version, missing_modules

if TYPE_CHECKING:
    from collections.abc import Generator

_START_TIMEOUT_S = 90.0
_STOP_TIMEOUT_S = 30.0
_POLL_S = 0.01
_IDLE_S = 600.0


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the cluster is and what opens it. ``page`` is the dashboard's address; ``started`` by this very call."""

    address: str
    token: str
    ca_path: str
    page: str
    simulated_gpus: int = 0
    simulates: str = ""
    started: bool = False


def ensure(*, home: Home | None = None, say: Callable[[str], None] | None = None, again: bool = False) -> Connection:
    """Returns a connection to the running cluster, starting one when there is none; this process is now its client.

    ``say`` is told, in one line, when a cluster was started; by default standard error is. Two processes at once start
    one cluster. ``again``: this process was its client before, and does not start what `gpuctl down` has stopped since.
    Raises ConnectionFailedError, with the failing part's last log lines when it cannot start, NotBuiltError where the
    server's packages are not installed, and InvalidSpecError where PHALANX_SIMULATE names no machine, or another one
    than the running cluster simulates.
    """
    home = home or default_home()
    say = say or _tell
    wanted = simulated().machine
    home.make()
    announce(home)
    record = _running(home)
    if record is not None and not _stale(record):
        return _connection(_as_wanted(record, wanted), started=False)
    with _start_lock(home):
        record = _running(home)
        if record is not None and _stale(record):
            wanted = wanted or record.simulates
            record = _replace_or_keep(home, record, say)
        if record is not None:
            return _connection(_as_wanted(record, wanted), started=False)
        if again and home.stopped.exists():
            raise ConnectionFailedError("the embedded cluster was stopped by `gpuctl down`", hint="gpuctl up")
        record = _start(home, wanted)
    say(_greeting(record))
    return _connection(record, started=True)


def running(home: Home | None = None) -> Record | None:
    """Returns what is known of the running cluster, or None; starts nothing and is no client."""
    return _running(home or default_home())


def down(home: Home | None = None) -> bool:
    """Stops the cluster at once, with everything that runs in it, for its clients too. Returns False without one."""
    home = home or default_home()
    if not home.root.exists():
        return False
    leave(home)
    with _start_lock(home):
        if not is_held(home.alive_lock):
            return False
        home.stopped.touch(mode=0o600)
        _stop(home)
    return True


def _running(home: Home) -> Record | None:
    """A record counts only while its supervisor lives."""
    return read_record(home.record) if is_held(home.alive_lock) else None


def _stale(record: Record) -> bool:
    return (record.version, record.build) != (installed_version(), build_stamp())


def _replace_or_keep(home: Home, record: Record, say: Callable[[str], None]) -> Record | None:
    """Stops a cluster of another version when nobody else uses it; joins it, and says so, when somebody does."""
    leave(home)
    door = try_lock(home.clients_lock)
    try:
        if door is None or is_busy(home.record):
            say(
                f"phalanx: joined the embedded cluster of version {record.version}, which others are using; "
                f"this is {installed_version()} (`gpuctl down` replaces it)"
            )
            return record
        _stop(home)
        return None
    finally:
        if door is not None:
            os.close(door)
        announce(home)


def _start(home: Home, machine: str) -> Record:
    missing = missing_modules()
    if missing:
        raise NotBuiltError(
            f"the embedded cluster needs packages that are not installed here: {', '.join(missing)}",
            hint="pip install 'phalanx[all]', or set PHALANX_ADDRESS to a cluster elsewhere",
        )
    clock = SystemClock()
    until = clock.monotonic_ms() + round(_START_TIMEOUT_S * 1000)
    try:
        _wait_gone(home, _STOP_TIMEOUT_S)
    except TimeoutError as e:
        raise ConnectionFailedError(
            f"another embedded cluster holds {home.alive_lock} and does not say where it is",
            hint="end its process `python -m phalanx.embedded`, or use another folder with PHALANX_HOME",
        ) from e
    for left in (home.record, home.failure, home.stopped):  # a killed cluster's record is not the new one's
        left.unlink(missing_ok=True)
    _spawn_supervisor(home, machine)
    seen_alive = False
    while (record := _running(home)) is None:
        alive = is_held(home.alive_lock)
        seen_alive = seen_alive or alive
        failure = read_failure(home.failure)
        if failure is not None or (seen_alive and not alive) or clock.monotonic_ms() > until:
            raise _start_error(home, failure)
        Event().wait(_POLL_S)
    return record


def _spawn_supervisor(home: Home, machine: str) -> None:
    idle_ms = round(float(os.environ.get("PHALANX_EMBEDDED_IDLE_S") or _IDLE_S) * 1000)
    log = os.open(home.logs / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        command = (sys.executable, "-P", "-m", "phalanx.embedded", str(home.root), str(idle_ms))
        env = {**os.environ, VARIABLE: machine}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, close_fds=True, cwd="/", env=env
        )
        process.wait(_START_TIMEOUT_S)
    finally:
        os.close(log)


def _start_error(home: Home, failure: Failure | None) -> ConnectionFailedError:
    if failure is None:
        log = home.logs / "supervisor.log"
        failure = Failure(part="supervisor", message="the supervisor ended", log=str(log), tail=tail_of(log))
    tail = f"\n{failure.tail}" if failure.tail else " (its log is empty)"
    return ConnectionFailedError(
        f"the embedded cluster did not start: {failure.message}. Last lines of {failure.log}:{tail}",
        hint="gpuctl doctor",
    )


def _stop(home: Home) -> None:
    """Tells the supervisor to stop, and kills it should it not do so in time."""
    pid = _supervisor(home)
    if pid:
        _signal(pid, signal.SIGTERM)
    try:
        _wait_gone(home, _STOP_TIMEOUT_S)
    except TimeoutError:
        if not pid:
            raise
        _signal(pid, signal.SIGKILL)
        _wait_gone(home, _STOP_TIMEOUT_S)
        home.record.unlink(missing_ok=True)


def _supervisor(home: Home) -> int:
    """Returns the supervisor's process, which is known before the cluster is ready; 0 where it is not."""
    text = home.alive_lock.read_text(encoding="utf-8") if home.alive_lock.exists() else ""
    record = read_record(home.record)
    return int(text) if text.isdigit() else record.pid if record else 0


def _wait_gone(home: Home, timeout_s: float) -> None:
    os.close(lock_within(home.alive_lock, timeout_s))


def _signal(pid: int, signum: int) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return


@contextmanager
def _start_lock(home: Home) -> Generator[None]:
    fd = lock_within(home.start_lock, _START_TIMEOUT_S + _STOP_TIMEOUT_S)
    try:
        yield
    finally:
        os.close(fd)


def _connection(record: Record, *, started: bool) -> Connection:
    return Connection(
        address=record.address,
        token=record.token,
        ca_path=record.ca,
        page=record.page,
        simulated_gpus=record.simulated_gpus,
        simulates=record.simulates,
        started=started,
    )


def _as_wanted(record: Record, wanted: str) -> Record:
    if wanted and wanted != record.simulates:
        is_like = f"simulates {record.simulates}" if record.simulates else "simulates no machine"
        raise InvalidSpecError(
            f"{wanted} is to be simulated, and the embedded cluster that is running {is_like}\n"
            f"a cluster looks like one machine for as long as it runs (--simulate, or {VARIABLE})",
            hint="gpuctl down",
        )
    return record


def _greeting(record: Record) -> str:
    gpus = f"{record.simulated_gpus} simulated GPUs: there is no NVIDIA GPU here" if record.simulated_gpus else "GPUs"
    if record.simulates:
        gpus = f"it looks like {record.simulates}, its {record.simulated_gpus} GPUs are simulated"
    return f"phalanx: started the embedded cluster ({gpus}); page {record.page}; stop it with `gpuctl down`"


def _tell(text: str) -> None:
    if not os.environ.get("PHALANX_QUIET"):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
