"""The embedded cluster on real processes: started once, joined, restarted part by part, stopped without a trace."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx import embedded
from phalanx.cli.checks import embedded_parts
from phalanx.client import Client
from phalanx.connection import Connection
from phalanx.core.errors import ConnectionFailedError, InvalidSpecError
from phalanx.embedded.clients import leave
from phalanx.embedded.locks import is_held
from phalanx.embedded.paths import Home
from phalanx.embedded.record import Record, read_record
from tests.support.cluster import marked_processes
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(180)
START_S = 60.0
WAITER = """
import os, time
import phalanx

@phalanx.gpu_function(gpus=1)
def wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.05)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home of its own; whatever runs in it is stopped at the end, and nothing of it may be left."""
    monkeypatch.setenv("PHALANX_HOME", str(tmp_path))
    home = Home(tmp_path / "embedded")
    yield home
    leave(home)
    embedded.down(home)
    wait_until(lambda: not processes_of(home), "every process of the cluster has ended", 20)


def processes_of(home: Home) -> dict[int, str]:
    """Returns what carries this home in its environment: servers, supervisor, ranks, other clients."""
    return marked_processes(f"PHALANX_HOME={home.root.parent}", str(home.run))


def record_of(home: Home) -> Record:
    record = read_record(home.record)
    assert record is not None
    return record


def nodes_ready(connection: embedded.Connection) -> int:
    client = Client(Connection(connection.address, connection.token, connection.ca_path))
    try:
        return sum(node.state == "ready" for node in client.list_nodes())
    finally:
        client.close()


def client_script(text: str = "") -> list[str]:
    code = f"from phalanx import embedded; c = embedded.ensure(); print(c.address, flush=True); {text}"
    return [sys.executable, "-c", code]


def test_two_processes_at_once_start_one_cluster(home: Home) -> None:
    starters = [subprocess.Popen(client_script(), stdout=subprocess.PIPE, text=True) for _ in range(3)]
    addresses = {starter.communicate(timeout=START_S)[0].strip() for starter in starters}
    assert len(addresses) == 1
    assert addresses == {record_of(home).address}
    assert sum("phalanx.embedded" in line for line in processes_of(home).values()) == 1


def test_it_says_that_its_gpus_are_simulated_and_has_no_tcp_port_for_the_store(home: Home) -> None:
    said: list[str] = []
    connection = embedded.ensure(home=home, say=said.append)
    assert connection.started
    assert ("simulated" in said[0]) == bool(connection.simulated_gpus)
    wait_until(lambda: nodes_ready(connection) == 1, "the node has joined", START_S)
    store = record_of(home).pids["store"]
    assert b" unixsocket:" in Path(f"/proc/{store}/cmdline").read_bytes()
    assert not embedded.ensure(home=home).started


@pytest.mark.parametrize("part", ["store", "control", "agent"])
def test_a_killed_part_is_started_again_under_the_same_address(home: Home, part: str) -> None:
    connection = embedded.ensure(home=home)
    killed = record_of(home).pids[part]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: record_of(home).pids[part] not in (0, killed), f"{part} runs again", 20)
    wait_until(lambda: nodes_ready(connection) == 1, "the cluster serves again", START_S)
    assert embedded.ensure(home=home).address == connection.address


def test_doctor_sees_a_part_that_does_not_stay_up(home: Home) -> None:
    embedded.ensure()
    leave(home)
    assert embedded_parts().level == "ok"
    journal = home.root / "agent" / "journal.jsonl"
    journal.unlink(missing_ok=True)
    journal.mkdir()
    os.kill(record_of(home).pids["agent"], signal.SIGKILL)
    wait_until(lambda: record_of(home).failing.get("agent", 0) > 2, "it has ended three times", 40)
    found = embedded_parts()
    assert found.level == "problem"
    assert "agent has ended" in found.text
    assert "agent.log" in found.fix


def test_the_supervisors_death_leaves_no_server_and_the_next_client_starts_anew(home: Home) -> None:
    embedded.ensure(home=home)
    before = record_of(home)
    os.kill(before.pid, signal.SIGKILL)
    wait_until(lambda: not processes_of(home), "the servers ended with their supervisor", 30)
    assert embedded.running(home) is None
    assert embedded.ensure(home=home).started
    assert record_of(home).pid != before.pid


def test_a_killed_clusters_record_is_not_taken_for_the_new_ones(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new supervisor is alive before it has written its record."""
    embedded.ensure(home=home)
    os.kill(record_of(home).pid, signal.SIGKILL)
    wait_until(lambda: not processes_of(home), "the servers ended with their supervisor", 30)
    found: list[Record | None] = []
    starting = importlib.import_module("phalanx.embedded.ensure")
    spawn = starting._spawn_supervisor

    def look_and_spawn(home: Home, machine: str) -> None:
        found.append(read_record(home.record))
        spawn(home, machine)

    monkeypatch.setattr(starting, "_spawn_supervisor", look_and_spawn)
    assert embedded.ensure(home=home).started
    assert found == [None]


def test_a_cluster_that_is_still_starting_can_be_stopped(home: Home) -> None:
    starter = subprocess.Popen(client_script())
    wait_until(lambda: is_held(home.alive_lock), "its supervisor runs", START_S)
    starter.kill()
    starter.wait()
    assert embedded.down(home)
    wait_until(lambda: not processes_of(home), "nothing runs", 2)


def test_down_stops_at_once_and_leaves_nothing(home: Home) -> None:
    embedded.ensure(home=home)
    assert embedded.down(home)
    wait_until(lambda: not processes_of(home), "nothing runs", 2)
    assert not home.record.exists()
    assert not embedded.down(home)


def test_down_ends_a_client_that_waits_and_only_a_new_one_starts_it_again(home: Home, tmp_path: Path) -> None:
    program = WAITER.replace("gpus=1", "gpus=1, retries=3")
    (tmp_path / "waiter.py").write_text(f"{program}\nwait_for.remote({str(tmp_path / 'flag')!r})\n")
    script = [sys.executable, str(tmp_path / "waiter.py")]
    connection = embedded.ensure(home=home)
    client = subprocess.Popen(script, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: calls_in(connection, "running"), "the call runs", START_S)
    (call_id,) = calls_in(connection, "running")
    assert embedded.down(home)
    _, said = client.communicate(timeout=30)
    assert client.returncode == 1
    assert "ConnectionFailedError: the embedded cluster was stopped by `gpuctl down`" in said
    assert call_id in said
    assert embedded.running(home) is None
    (tmp_path / "flag").touch()
    subprocess.run(script, check=True, timeout=START_S)


def calls_in(connection: embedded.Connection, state: str) -> list[str]:
    client = Client(Connection(connection.address, connection.token, connection.ca_path))
    try:
        return [call.call_id for call in client.list_calls(state=state)]
    finally:
        client.close()


def test_it_stops_after_its_last_client_and_not_before(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_EMBEDDED_IDLE_S", "1")
    waits = "import sys; sys.stdin.read()"
    client = subprocess.Popen(client_script(waits), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    address = client.stdout.readline().strip()
    wait_until(lambda: embedded.running(home) is not None, "it runs")
    with pytest.raises(AssertionError, match="not within"):
        wait_until(lambda: embedded.running(home) is None, "it stopped under its client", 4)
    client.communicate("", timeout=10)
    assert address
    wait_until(lambda: not processes_of(home), "it stopped by itself", 30)


def test_a_call_in_flight_keeps_it_alive_without_a_client(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_EMBEDDED_IDLE_S", "1")
    flag = tmp_path / "flag"
    (tmp_path / "waiter.py").write_text(WAITER)
    words = ("run", str(tmp_path / "waiter.py"), "--arg", f"path={flag}", "--detach")
    subprocess.run([sys.executable, "-m", "phalanx.cli.main", *words], check=True, timeout=START_S)
    with pytest.raises(AssertionError, match="not within"):
        wait_until(lambda: embedded.running(home) is None, "it stopped under the call", 8)
    flag.touch()
    wait_until(lambda: not processes_of(home), "it stopped after the call", START_S)


def test_a_cluster_of_another_version_is_replaced_when_nobody_uses_it(home: Home) -> None:
    embedded.ensure(home=home)
    old = record_of(home)
    leave(home)
    _pretend_version(home, "0.0.1")
    said: list[str] = []
    assert embedded.ensure(home=home, say=said.append).started
    assert record_of(home).pid != old.pid


def test_a_cluster_of_another_version_is_joined_while_others_use_it(home: Home) -> None:
    client = subprocess.Popen(
        client_script("import sys; sys.stdin.read()"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    client.stdout.readline()
    _pretend_version(home, "0.0.1")
    said: list[str] = []
    assert not embedded.ensure(home=home, say=said.append).started
    assert "joined" in said[0]
    client.communicate("", timeout=10)


def test_a_cluster_whose_record_has_other_fields_is_found_and_replaced(home: Home) -> None:
    embedded.ensure(home=home)
    before = json.loads(home.record.read_text())
    del before["simulates"]
    home.record.write_text(json.dumps({**before, "build": "older", "of_a_later_version": 1}))
    leave(home)
    again = embedded.ensure(home=home)
    assert again.started
    assert record_of(home).pid != before["pid"]


def test_it_looks_like_the_machine_that_it_is_told_to(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_SIMULATE", "dgx1_v100")
    connection = embedded.ensure(home=home)
    assert (connection.simulates, connection.simulated_gpus) == ("dgx1_v100", 8)
    client = Client(Connection(connection.address, connection.token, connection.ca_path))
    wait_until(client.list_nodes, "its agent has joined", START_S)
    (node,) = client.list_nodes()
    assert client.topology(node.node_id).links[0][3].nvlinks == 2
    monkeypatch.setenv("PHALANX_SIMULATE", "hgx_h100")
    with pytest.raises(InvalidSpecError, match=r"hgx_h100 is to be simulated.* simulates dgx1_v100"):
        embedded.ensure(home=home)
    monkeypatch.delenv("PHALANX_SIMULATE")
    assert embedded.ensure(home=home).simulates == "dgx1_v100"


def test_a_machine_that_nobody_knows_is_refused_before_anything_starts(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_SIMULATE", "no_such_machine")
    with pytest.raises(InvalidSpecError, match="no machine 'no_such_machine' to simulate"):
        embedded.ensure(home=home)
    assert not home.record.exists()


def test_a_part_that_does_not_start_is_named_with_its_log(home: Home) -> None:
    home.make()
    store = home.root / "store" / "appendonlydir"
    store.mkdir(parents=True)
    (store / "appendonly.aof.manifest").write_text("this is no manifest\n")
    with pytest.raises(ConnectionFailedError, match="store ended") as caught:
        embedded.ensure(home=home)
    assert "manifest" in str(caught.value)
    assert str(home.logs / "store.log") in str(caught.value)
    wait_until(lambda: not processes_of(home), "nothing was left running")


def test_the_record_and_the_folders_are_private(home: Home) -> None:
    embedded.ensure(home=home)
    assert home.root.stat().st_mode & 0o077 == 0
    assert home.record.stat().st_mode & 0o077 == 0
    assert json.loads(home.record.read_text())["token"].startswith("px_")


def _pretend_version(home: Home, version: str) -> None:
    data = json.loads(home.record.read_text())
    home.record.write_text(json.dumps({**data, "version": version}))
