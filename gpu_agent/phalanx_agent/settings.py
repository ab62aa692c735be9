"""The agent's settings: from flags, else from PHALANX_AGENT_* variables. Reads nothing else.

Every flag has a variable of the same name (``--state-dir`` is PHALANX_AGENT_STATE_DIR). Wrong values raise
InvalidSpecError saying which flag, which value, and what is legal.
"""

from __future__ import annotations

import argparse
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.errors import InvalidSpecError
from phalanx.core.topology.presets import PRESETS
from phalanx_agent.preflight_modes import NODE_MODES, Mode

_PREFIX = "PHALANX_AGENT_"
_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,63}")
_MAX_SOCKET_PATH = 60
"""Unix socket paths end at 107 bytes, and gangs add their own names to the run directory's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one agent is told. ``advertise`` is the host under which other nodes reach it."""

    control: tuple[str, ...]
    ca: Path
    join_token_file: Path | None
    node_id: str
    state_dir: Path
    run_dir: Path
    listen_host: str
    listen_port: int
    advertise: str
    simulate: str
    """A preset's name or the path of a topology file; empty: none."""
    simulate_gpus: int | None
    simulate_memory_bytes: int
    ready_file: Path | None
    rank_user: str
    pool: str
    preflight: Mode
    end_gangs_on_exit: bool
    shells: bool
    """`gpuctl shell` may open shells beside ranks."""

    @property
    def unix_path(self) -> Path:
        return self.run_dir / "agent.sock"


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Returns the settings. Raises InvalidSpecError; ``--help`` raises SystemExit."""
    args = _parser(environ).parse_args(list(argv))
    control = tuple(_address("control", a.strip()) for a in (args.control or "").split(",") if a.strip())
    if not control:
        raise InvalidSpecError("--control is missing: give the control plane's address as host:port")
    if not args.ca:
        raise InvalidSpecError("--ca is missing: give the path of the control plane's ca.pem")
    host, port = _host_port("listen", args.listen)
    run_dir = Path(args.run_dir).absolute()
    if len(str(run_dir)) > _MAX_SOCKET_PATH:
        raise InvalidSpecError(f"--run-dir {str(run_dir)!r} has over {_MAX_SOCKET_PATH} characters: use a shorter path")
    return Settings(
        control=control,
        ca=Path(args.ca).absolute(),
        join_token_file=Path(args.join_token_file).absolute() if args.join_token_file else None,
        node_id=_node_id(args.node_id),
        state_dir=Path(args.state_dir).absolute(),
        run_dir=run_dir,
        listen_host=host,
        listen_port=port,
        advertise=args.advertise or _advertised(host),
        simulate=_simulated_machine(args.simulate or "", args.simulate_gpus),
        simulate_gpus=_simulated(args.simulate_gpus),
        simulate_memory_bytes=int(_number("simulate-memory-gb", args.simulate_memory_gb) * 1e9),
        ready_file=Path(args.ready_file).absolute() if args.ready_file else None,
        rank_user=args.rank_user or "",
        pool=args.pool,
        preflight=_preflight(args.preflight),
        end_gangs_on_exit=args.end_gangs_on_exit,
        shells=not args.no_shells,
    )


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="phalanx-agent",
        description="The one daemon of a Phalanx node: runs gangs for a control plane.",
        epilog="phalanx-agent clear-gpu --help: giving back a GPU that was put out of use for a fault.",
    )

    def add(name: str, text: str, default: str | None = None) -> None:
        variable = _PREFIX + name.upper().replace("-", "_")
        parser.add_argument(f"--{name}", default=environ.get(variable, default), help=f"{text} [{variable}]")

    add("control", "host:port of the control plane's clients' port; several, separated by commas")
    add("ca", "path of the control plane's ca.pem")
    add("join-token-file", "file with the join token, read at the first enrolment only")
    add("node-id", "name of this node", default=socket.gethostname())
    add("state-dir", "key, certificate, meter journal, checkpoints", default="/var/lib/phalanx-agent")
    add("run-dir", "sockets and running gangs; short, on a local file system", default="/run/phalanx")
    add("listen", "host:port of the TLS data plane; port 0 takes a free one", default="127.0.0.1:0")
    add("advertise", "host under which other nodes reach the data plane and the ranks")
    add("simulate", f"look like this machine: {', '.join(PRESETS)}, or a file that `gpuctl topo import` reads")
    add("simulate-gpus", "number of GPUs to simulate instead of looking for real ones")
    add("simulate-memory-gb", "memory of each simulated GPU, in 10^9 bytes", default="80")
    add("ready-file", "written, whole, once the agent is reachable")
    add("rank-user", "unprivileged user that ranks run as, where the agent is root")
    add("pool", "pool that this node is shown in; gangs are not kept to one pool yet", default="default")
    add("preflight", f"gangs verify the links between their GPUs before user code: {', '.join(NODE_MODES)}", "off")
    parser.add_argument(
        "--no-shells",
        action="store_true",
        default=environ.get(_PREFIX + "NO_SHELLS", "").lower() in ("1", "true", "yes", "on"),
        help=f"nobody opens shells beside ranks with gpuctl shell [{_PREFIX}NO_SHELLS]",
    )
    parser.add_argument(
        "--end-gangs-on-exit",
        action="store_true",
        default=environ.get(_PREFIX + "END_GANGS_ON_EXIT", "").lower() in ("1", "true", "yes", "on"),
        help=f"end all gangs when the agent is told to stop [{_PREFIX}END_GANGS_ON_EXIT]",
    )
    return parser


def _preflight(value: str) -> Mode:
    if value not in NODE_MODES:
        raise InvalidSpecError(f"--preflight {value!r}: give one of {', '.join(NODE_MODES)}")
    return Mode(value)


def _address(flag: str, value: str) -> str:
    _host_port(flag, value)
    return value


def _host_port(flag: str, value: str) -> tuple[str, int]:
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise InvalidSpecError(f"--{flag} {value!r}: give host:port with a port from 0 to 65535")
    return host.strip("[]"), int(port)


def _node_id(value: str) -> str:
    if not _NODE_ID.fullmatch(value):
        raise InvalidSpecError(
            f"--node-id {value[:80]!r}: use 1 to 64 letters, digits, '.', '_' and '-', a letter or digit first"
        )
    return value


def _advertised(host: str) -> str:
    if host in ("", "0.0.0.0", "::"):  # noqa: S104 - compared with, not bound
        raise InvalidSpecError(f"--listen {host!r} is every interface: say with --advertise how others reach this node")
    return host


def _simulated_machine(value: str, count: str | None) -> str:
    if value and count:
        raise InvalidSpecError(f"--simulate {value!r} says how many GPUs there are: leave --simulate-gpus {count} out")
    return str(Path(value).absolute()) if value and value not in PRESETS else value


def _simulated(value: str | None) -> int | None:
    if value is None or value == "":
        return None
    count = _number("simulate-gpus", value)
    if count != int(count) or not 0 <= count <= 1024:
        raise InvalidSpecError(f"--simulate-gpus {value!r}: give a whole number from 0 to 1024")
    return int(count)


def _number(flag: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1
    if not 0 <= number < 1e6:
        raise InvalidSpecError(f"--{flag} {value!r}: give a positive number")
    return number
