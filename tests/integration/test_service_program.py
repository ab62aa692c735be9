"""phalanx-control as a program: start, ready file, stop, wrong flags."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.store import StoreServer, running_store
from tests.support.wait import wait_until

SCRIPT = Path(sys.executable).parent / "phalanx-control"
MODULE = (sys.executable, "-m", "phalanx_control.main")


def _argv(store: StoreServer, folder: Path, cell: str) -> list[str]:
    flags = {"store": store.url, "cell": cell, "data-dir": folder / "data", "ready-file": folder / "ready"}
    flags |= {"bootstrap-token-file": folder / "token", "join-token-file": folder / "join"}
    return [part for name, value in flags.items() for part in (f"--{name}", str(value))]


def _run(*argv: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, env=environ)


@pytest.mark.parametrize("program", [(str(SCRIPT),), MODULE], ids=["script", "module"])
def test_it_starts_says_so_last_and_ends_within_two_seconds(
    store: StoreServer, tmp_path: Path, program: tuple[str, ...]
) -> None:
    argv = [*program, *_argv(store, tmp_path, f"program{len(program)}")]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        wait_until((tmp_path / "ready").exists, "the ready file is written", 20)
        said = json.loads((tmp_path / "ready").read_text())
        assert said["pid"] == process.pid
        assert set(said) == {"pid", "address", "agents_address", "page", "ca", "replica_id"}
        assert said["page"].startswith("http://127.0.0.1:")
        assert Path(said["ca"]).read_text().startswith("-----BEGIN CERTIFICATE")
        for name in ("token", "join"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
        assert time.monotonic() - begun < 2.5
        assert not (tmp_path / "ready").exists()
    finally:
        process.kill()
        process.wait()


def test_a_second_start_keeps_ca_and_tokens(store: StoreServer, tmp_path: Path) -> None:
    seen: list[tuple[bytes, bytes]] = []
    for _ in range(2):
        process = subprocess.Popen([*MODULE, *_argv(store, tmp_path, "twice")], stderr=subprocess.DEVNULL)
        try:
            wait_until((tmp_path / "ready").exists, "the ready file is written", 20)
            seen.append(((tmp_path / "data" / "ca.pem").read_bytes(), (tmp_path / "token").read_bytes()))
            process.terminate()
            process.wait(timeout=10)
        finally:
            process.kill()
            process.wait()
    assert seen[0] == seen[1]


def test_a_wrong_flag_ends_it_with_the_fix_on_standard_error(tmp_path: Path) -> None:
    ended = _run(*MODULE, "--store", "http://x", "--data-dir", str(tmp_path))
    assert ended.returncode == 2
    assert "error[INVALID-SPEC]: --store 'http://x': use unix:///path/to/socket" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_store_that_forgets_is_refused_by_name(tmp_path: Path) -> None:
    with running_store(appendonly="no") as volatile:
        ended = _run(*MODULE, *_argv(volatile, tmp_path, "volatile"))
    assert ended.returncode == 2
    assert "error[VOLATILE-STORE]" in ended.stderr


def test_a_store_without_the_replicas_that_are_asked_for_is_refused(store: StoreServer, tmp_path: Path) -> None:
    ended = _run(*MODULE, *_argv(store, tmp_path, "alone"), "--store-replicas", "2")
    assert ended.returncode == 2
    assert "error[VOLATILE-STORE]" in ended.stderr
    assert "0 of 2 replicas are connected" in ended.stderr


def test_a_port_that_is_taken_is_named(store: StoreServer, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag in ("--listen", "--web-listen"):
            ended = _run(*MODULE, *_argv(store, tmp_path, "taken"), flag, address)
            assert ended.returncode == 2
            assert f"cannot listen on {address}" in ended.stderr


def test_settings_come_from_the_environment_too(tmp_path: Path) -> None:
    environ = {**os.environ, "PHALANX_CONTROL_STORE": "nonsense", "PHALANX_CONTROL_DATA_DIR": str(tmp_path)}
    ended = _run(*MODULE, environ=environ)
    assert "--store 'nonsense'" in ended.stderr
