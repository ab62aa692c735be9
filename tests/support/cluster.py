"""A real cluster for tests: the real store, control-plane replicas and agents as processes on loopback.

    with Cluster(tmp_path, agents=2, gpus_per_agent=2) as cluster:
        client = cluster.connect()

Agents after the first advertise 127.0.0.2, 127.0.0.3 …, so that a gang over two agents really uses two addresses.
Everything that the cluster starts, and everything started by that, carries a mark in its environment: leaving the
context fails when a marked process, a shared-memory file or a folder of the cluster is still there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from phalanx import wire
from phalanx.client import Client
from phalanx.connection import Connection
from phalanx.core import views
from phalanx.core.clock import SystemClock
from phalanx.embedded.keepers import stop_gangs
from phalanx.embedded.parts import free_ports
from phalanx_proto.v1 import control_pb2, control_pb2_grpc
from tests.support.store import StoreServer
from tests.support.wait import wait_until

CELL = "test"
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
_MARK = "PHALANX_TEST_MARK"
_LOG_TAIL_BYTES = 6000


def _shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


@dataclass(slots=True)
class Server:
    """One control-plane replica or agent: its command line, and its process while it runs."""

    name: str
    argv: list[str]
    ready_file: Path
    log: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    def start(self) -> None:
        """Starts it; `wait_ready` says when it serves."""
        self.ready_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )

    def wait_ready(self) -> dict[str, Any]:
        """Returns what its ready file says. Fails, with the log, when it ends instead."""
        wait_until(lambda: self.ready_file.exists() or self.has_ended(), f"{self.name} is ready", READY_TIMEOUT_S)
        assert not self.has_ended(), f"{self.name} ended:\n{tail(self.log)}"
        return json.loads(self.ready_file.read_text())

    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def kill(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal and waits until the process is gone; the processes that it started are left alone."""
        if self.process is None:
            return
        self.process.send_signal(sig)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


@dataclass(slots=True)
class Cluster:
    """See the module. ``control_flags`` and ``agent_flags`` are added to every command line of that program."""

    tmp_path: Path
    agents: int = 1
    gpus_per_agent: int = 4
    replicas: int = 1
    control_flags: tuple[str, ...] = ()
    agent_flags: tuple[str, ...] = ()
    simulate: str = ""
    """A preset or a topology file that every node looks like, instead of so many GPUs."""
    hosts: tuple[str, ...] = ()
    """Addresses of the agents, where they are not 127.0.0.1, 127.0.0.2 …"""
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    _run: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="px", dir="/tmp")))
    _shm_before: set[str] = field(default_factory=_shared_memory)
    store: StoreServer = field(init=False)
    controls: list[Server] = field(default_factory=list[Server])
    nodes: list[Server] = field(default_factory=list[Server])
    _clients: list[Any] = field(default_factory=list[Any])

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.dump_logs()
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self.dump_logs()
        self._stop()
        if kind is None:
            self.check_leaks()

    # ---- what tests use ----

    @property
    def markers(self) -> Path:
        """Where ranks note what they did, for the history checker."""
        return self.tmp_path / "markers"

    @property
    def ca(self) -> Path:
        alive = next(c for c in self.controls if not c.has_ended())
        return Path(alive.wait_ready()["ca"])

    @property
    def token(self) -> str:
        return (self._data / "admin.token").read_text().strip()

    def address(self, replica: int = 0) -> str:
        return str(self.controls[replica].wait_ready()["address"])

    def env(self, replica: int = 0) -> dict[str, str]:
        """Returns the environment in which a script or gpuctl uses this cluster."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PHALANX_")}
        return {
            **kept,
            "PHALANX_ADDRESS": self.address(replica),
            "PHALANX_TOKEN": self.token,
            "PHALANX_CA": str(self.ca),
            "PHALANX_HOME": str(self.tmp_path / "home"),
            "XDG_CONFIG_HOME": str(self.tmp_path / "config"),
        }

    def stub(self, replica: int = 0) -> tuple[control_pb2_grpc.ControlStub, tuple[tuple[str, str], ...]]:
        """Returns a raw stub and the metadata that authenticate it."""
        credentials = grpc.ssl_channel_credentials(self.ca.read_bytes())
        channel = grpc.secure_channel(self.address(replica), credentials)
        self._clients.append(channel)
        return control_pb2_grpc.ControlStub(channel), (("authorization", f"Bearer {self.token}"),)

    def info(self, replica: int = 0) -> views.ServerInfo:
        stub, metadata = self.stub(replica)
        return wire.from_proto(views.ServerInfo, stub.GetServerInfo(control_pb2.Empty(), metadata=metadata, timeout=10))

    def leader(self) -> int:
        """Returns the index of the leading replica, waiting until there is one."""
        found: list[int] = []

        def look() -> bool:
            found[:] = [i for i, c in enumerate(self.controls) if not c.has_ended() and self._leads(i)]
            return len(found) == 1

        wait_until(look, "one replica leads", READY_TIMEOUT_S)
        return found[0]

    def kill_leader(self) -> int:
        """Kills the leading replica with SIGKILL and returns its index."""
        index = self.leader()
        self.controls[index].kill()
        return index

    def start_replica(self, index: int) -> None:
        self.controls[index].start()
        self.controls[index].wait_ready()

    def kill_agent(self, index: int) -> None:
        """Kills an agent with SIGKILL; its keepers and ranks live on."""
        self.nodes[index].kill()

    def lose_machine(self, index: int) -> None:
        """Kills an agent and everything that it started, as a power cut would. `start_agent` brings the node back."""
        self.kill_agent(index)
        mine = [pid for pid, line in self.processes().items() if f"{self._run}/a{index}/" in line]
        for pid in mine:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start_agent(self, index: int) -> None:
        self.nodes[index].start()
        self.nodes[index].wait_ready()

    def kill_store(self) -> None:
        self.store.kill()

    def start_store(self) -> None:
        self.store.start()

    def history(self) -> list[dict[str, Any]]:
        """Returns the log's entries, read raw from the stream: names and values as text, with ``id``."""
        client = self.store.client()
        try:
            entries: Any = client.xrange(f"{{px:{CELL}}}:log")
        finally:
            client.close()
        return [{"id": i.decode(), **{k.decode(): v.decode() for k, v in values.items()}} for i, values in entries]

    def processes(self) -> dict[int, str]:
        """Returns the command lines, by pid, of every process that belongs to this cluster."""
        return marked_processes(f"{_MARK}={self.mark}", str(self._run))

    def gang_files(self) -> list[Path]:
        """Returns what lies in the agents' folders of gangs."""
        return [path for folder in self._run.glob("a*/gangs/*") for path in (folder, *folder.rglob("*"))]

    def dump_logs(self) -> None:
        """Prints the end of every log, for a failed test's report."""
        for server in (*self.controls, *self.nodes):
            print(f"---- {server.name} ({'ended' if server.has_ended() else 'runs'})\n{tail(server.log)}")

    def check_leaks(self) -> None:
        """Fails when anything of this cluster is still there."""
        wait_until(lambda: not self.processes(), "every process of the cluster has ended", STOP_TIMEOUT_S)
        assert not self._run.exists(), f"{self._run} was left behind"
        left = {name for name in _shared_memory() - self._shm_before if _is_ours(name)}
        assert not left, f"shared memory was left behind: {sorted(left)}"

    # ---- how it is made ----

    @property
    def _data(self) -> Path:
        return self.tmp_path / "control"

    def _start(self) -> None:
        for folder in (self._data, self.markers, self.tmp_path / "logs", self._run / "s"):
            folder.mkdir(parents=True, exist_ok=True)
        self.store = StoreServer(self._run / "s")
        self.store.start()
        ports = [free_ports() for _ in range(self.replicas)]
        self.controls = [self._control(i, p.clients, p.agents, p.web) for i, p in enumerate(ports)]
        self.controls[0].start()
        self.controls[0].wait_ready()
        for control in self.controls[1:]:
            control.start()
        addresses = ",".join(str(c.wait_ready()["address"]) for c in self.controls)
        self.nodes = [self._agent(i, addresses) for i in range(self.agents)]
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait_ready()
        wait_until(lambda: self._ready_nodes() == self.agents, f"{self.agents} nodes are ready", READY_TIMEOUT_S)

    def _control(self, index: int, clients: int, agents: int, web: int) -> Server:
        flags = {
            "store": self.store.url,
            "cell": CELL,
            "data-dir": str(self._data),
            "blobs": (self.tmp_path / "blobs").as_uri(),
            "listen": f"127.0.0.1:{clients}",
            "agents-listen": f"127.0.0.1:{agents}",
            "web-listen": f"127.0.0.1:{web}",
            "bootstrap-token-file": str(self._data / "admin.token"),
            "join-token-file": str(self._data / "join.token"),
            "replica-id": f"replica-{index}",
        }
        return self._server(f"control-{index}", "phalanx_control.main", flags, ("--blobs-shared", *self.control_flags))

    def _agent(self, index: int, addresses: str) -> Server:
        host = self.hosts[index] if self.hosts else f"127.0.0.{index + 1}"
        flags = {
            "control": addresses,
            "ca": str(self.ca),
            "join-token-file": str(self._data / "join.token"),
            "node-id": f"n{index}",
            "state-dir": str(self.tmp_path / f"agent-{index}"),
            "run-dir": str(self._run / f"a{index}"),
            "listen": f"[{host}]:0" if ":" in host else f"{host}:0",
            "advertise": host,
            "simulate" if self.simulate else "simulate-gpus": self.simulate or str(self.gpus_per_agent),
        }
        return self._server(f"agent-{index}", "phalanx_agent.main", flags, self.agent_flags)

    def _server(self, name: str, module: str, flags: dict[str, str], more: tuple[str, ...]) -> Server:
        ready = self._run / f"{name}.json"
        words = [word for flag, value in {**flags, "ready-file": str(ready)}.items() for word in (f"--{flag}", value)]
        return Server(
            name=name,
            argv=[sys.executable, "-P", "-m", module, *words, *more],
            ready_file=ready,
            log=self.tmp_path / "logs" / f"{name}.log",
            environment={**os.environ, _MARK: self.mark, "PHALANX_MARKER_DIR": str(self.markers)},
        )

    def connect(self, replica: int = 0) -> Client:
        """Returns an SDK client of this cluster; it is closed with the cluster."""
        client = Client(Connection(self.address(replica), self.token, str(self.ca)))
        self._clients.append(client)
        return client

    def _ready_nodes(self) -> int:
        stub, metadata = self.stub()
        return sum(n.state == "ready" for n in stub.ListNodes(control_pb2.Empty(), metadata=metadata, timeout=10).nodes)

    def _leads(self, index: int) -> bool:
        try:
            return self.info(index).role == "leader"
        except grpc.RpcError:
            return False

    def _stop(self) -> None:
        for client in self._clients:
            client.close()
        self._clients = []
        for node in self.nodes:
            node.kill(signal.SIGTERM)
        for index in range(self.agents):
            stop_gangs(self._run / f"a{index}", grace_ms=500, clock=SystemClock())
        for control in self.controls:
            control.kill(signal.SIGTERM)
        if hasattr(self, "store"):
            self.store.kill()
        shutil.rmtree(self._run, ignore_errors=True)


def marked_processes(variable: str, path: str) -> dict[int, str]:
    """Returns the processes whose environment holds ``variable``, or whose command line names ``path``.

    The store writes its title over its environment, so that only its command line tells whose it is.
    """
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
            if path in line or variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = line
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def tail(log: Path) -> str:
    """Returns the end of a log file as text."""
    if not log.exists():
        return "(no log)"
    return log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")


def _is_ours(name: str) -> bool:
    """Other programs of this machine use the folder too; ours and torch's names begin so."""
    return name.startswith(("phalanx", "px", "torch_", "gloo"))
