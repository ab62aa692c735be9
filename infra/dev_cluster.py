"""Several agents on one machine, each in a network namespace with an address of its own, and one control plane.

`make dev-cluster NODES=4` as root: gangs then really cross nodes, over a bridge. Runs until Ctrl-C, and takes away what
it made: processes, namespaces, bridge, folder. Changes nothing else on the machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.clock import SystemClock
from phalanx.embedded.parts import store_binary

READY_MS = 60_000
STOP_S = 20
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Network:
    """A bridge, the nodes on it with ``gpus`` each, and their names. Two runs at once need two ``subnet``s."""

    tag: str
    subnet: str
    nodes: int
    gpus: int

    @property
    def bridge(self) -> str:
        return f"px{self.tag}"

    @property
    def host(self) -> str:
        return f"{self.subnet}.1"

    def namespace(self, node: int) -> str:
        return f"px{self.tag}-n{node}"

    def address(self, node: int) -> str:
        return f"{self.subnet}.{node + 10}"


def main(argv: list[str]) -> int:
    """Returns 0 after Ctrl-C, 1 when something could not be started."""
    parser = argparse.ArgumentParser(prog="dev_cluster", description=__doc__)
    parser.add_argument("--nodes", type=int, default=4, help="agents, 1 to 64")
    parser.add_argument("--gpus", type=int, default=4, help="simulated GPUs per agent")
    parser.add_argument("--subnet", default="10.77.0", help="first three numbers of the bridge's network")
    parser.add_argument("--check", help="run this shell command against the cluster, then stop; its status is ours")
    given = parser.parse_args(argv)
    if os.geteuid() != 0:
        sys.stderr.write("network namespaces need root: sudo make dev-cluster\n")
        return 1
    if not 1 <= given.nodes <= 64:
        parser.error(f"--nodes {given.nodes}: give 1 to 64")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stop.set())
    network = Network(f"{os.getpid() % 10_000}", given.subnet, given.nodes, given.gpus)
    with ExitStack() as made:
        folder = Path(tempfile.mkdtemp(prefix="pxd", dir="/tmp"))
        made.callback(shutil.rmtree, folder, ignore_errors=True)
        made.enter_context(bridge(network))
        environment = start(made, folder, network, stop)
        return use(environment, given.check, stop)


def use(environment: dict[str, str], check: str | None, stop: threading.Event) -> int:
    """Says how to reach the cluster and waits, or runs one command against it."""
    if check:
        return subprocess.run(check, shell=True, env=os.environ | environment, check=False).returncode  # noqa: S602
    print("The cluster is up. In another terminal:\n")
    for name, value in environment.items():
        print(f"export {name}={value}")
    print("\ngpuctl nodes\n\nCtrl-C stops it.", flush=True)
    stop.wait()
    return 0


def start(made: ExitStack, folder: Path, network: Network, stop: threading.Event) -> dict[str, str]:
    """Starts store, control plane and agents, in this order; returns the client's environment."""
    control = folder / "control"
    ready = folder / "control.json"
    made.enter_context(process(folder, "store", store_command(folder)))
    until((folder / "store.sock").exists, "the store serves", stop)
    made.enter_context(process(folder, "control", control_command(folder, network)))
    until(ready.exists, f"the control plane serves (see {folder}/control.log)", stop)
    for node in range(network.nodes):
        made.enter_context(process(folder, f"agent-{node}", agent_command(folder, network, node)))
    for node in range(network.nodes):
        until((folder / f"agent-{node}.json").exists, f"agent {node} serves (see {folder}/agent-{node}.log)", stop)
    return {
        "PHALANX_ADDRESS": f"{network.host}:7070",
        "PHALANX_TOKEN": (control / "admin.token").read_text().strip(),
        "PHALANX_CA": str(control / "ca.pem"),
    }


def store_command(folder: Path) -> list[str]:
    """The embedded cluster's store, with the same promises about disks."""
    (folder / "store").mkdir()
    options = {
        "port": "0",
        "unixsocket": str(folder / "store.sock"),
        "dir": str(folder / "store"),
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
    }
    return [str(store_binary()), *(word for name, value in options.items() for word in (f"--{name}", value))]


def control_command(folder: Path, network: Network) -> list[str]:
    """One replica, on the bridge's own address."""
    return program(
        "phalanx_control.main",
        {
            "store": f"unix://{folder}/store.sock",
            "cell": "dev",
            "data-dir": f"{folder}/control",
            "blobs": f"file://{folder}/blobs",
            "listen": f"{network.host}:7070",
            "agents-listen": f"{network.host}:7071",
            "web-listen": "127.0.0.1:0",
            "bootstrap-token-file": f"{folder}/control/admin.token",
            "join-token-file": f"{folder}/control/join.token",
            "ready-file": f"{folder}/control.json",
        },
    )


def agent_command(folder: Path, network: Network, node: int) -> list[str]:
    """One agent in its namespace, on its own address."""
    flags = {
        "control": f"{network.host}:7070",
        "ca": f"{folder}/control/ca.pem",
        "join-token-file": f"{folder}/control/join.token",
        "node-id": f"n{node}",
        "state-dir": f"{folder}/agent-{node}",
        "run-dir": f"{folder}/r{node}",
        "listen": f"{network.address(node)}:0",
        "simulate-gpus": str(network.gpus),
        "ready-file": f"{folder}/agent-{node}.json",
    }
    inside = ["ip", "netns", "exec", network.namespace(node)]
    return [*inside, *program("phalanx_agent.main", flags), "--end-gangs-on-exit"]


def program(module: str, flags: dict[str, str]) -> list[str]:
    words = (word for name, value in flags.items() for word in (f"--{name}", value))
    return [sys.executable, "-P", "-m", module, *words]


@contextmanager
def bridge(network: Network) -> Generator[None]:
    """A bridge with one namespace per node on it; takes all of it away again."""
    try:
        ip("link", "add", network.bridge, "type", "bridge")
        ip("addr", "add", f"{network.host}/24", "dev", network.bridge)
        ip("link", "set", network.bridge, "up")
        for node in range(network.nodes):
            attach(network, node)
        yield
    finally:
        for node in range(network.nodes):
            ip("netns", "del", network.namespace(node), check=False)
        ip("link", "del", network.bridge, check=False)


def attach(network: Network, node: int) -> None:
    """Makes one namespace and plugs it into the bridge."""
    name, outside = network.namespace(node), f"px{network.tag}v{node}"
    ip("netns", "add", name)
    ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
    ip("link", "set", outside, "master", network.bridge, "up")
    ip("-n", name, "addr", "add", f"{network.address(node)}/24", "dev", "eth0")
    ip("-n", name, "link", "set", "eth0", "up")
    ip("-n", name, "link", "set", "lo", "up")


def ip(*arguments: str, check: bool = True) -> None:
    """Raises CalledProcessError with ip's own words when it fails and ``check`` is on."""
    subprocess.run(["ip", *arguments], check=check, stderr=None if check else subprocess.DEVNULL)


@contextmanager
def process(folder: Path, name: str, command: list[str]) -> Generator[None]:
    """One child with its own log; ended with SIGTERM, and SIGKILL when that is not enough."""
    with (folder / f"{name}.log").open("wb") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
    try:
        yield
    finally:
        child.terminate()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def until(done: Callable[[], bool], what: str, stop: threading.Event) -> None:
    """Waits for ``done``. Raises SystemExit naming ``what`` after a minute, or quietly when told to stop."""
    clock = SystemClock()
    deadline = clock.monotonic_ms() + READY_MS
    while not done():
        if stop.wait(POLL_S):
            raise SystemExit(0)
        if clock.monotonic_ms() > deadline:
            raise SystemExit(f"not within {READY_MS // 1000} s: {what}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
