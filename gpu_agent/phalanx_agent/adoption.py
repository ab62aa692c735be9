"""Finding the gangs that a former agent left: their keepers live on, or wrote down how they ended. Reads files only."""

from __future__ import annotations

import json
import logging
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.core.files import replace_file
from phalanx.core.messages import ErrorInfo
from phalanx.core.states import Cause
from phalanx_agent.dataplane.failures import error_from_meta
from phalanx_agent.gang_config import GangConfig, config_from_json

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One gang directory. ``alive``: its keeper takes connections. Otherwise ``error`` says how it ended."""

    config: GangConfig
    alive: bool
    clean: bool = False
    error: ErrorInfo = field(default_factory=ErrorInfo)
    peer_tickets: tuple[str, ...] = ()


def find_gangs(gangs_dir: Path) -> list[Found]:
    """Returns every gang below ``gangs_dir`` whose description can be read; the others are only logged."""
    found: list[Found] = []
    for directory in sorted(gangs_dir.iterdir()) if gangs_dir.exists() else ():
        try:
            config = config_from_json((directory / "gang.json").read_text())
        except (OSError, ValueError, KeyError, TypeError) as e:
            log.warning("a gang directory cannot be read", extra={"path": str(directory), "reason": str(e)})
            continue
        found.append(_look(directory, config))
    return found


def write_peer_tickets(gang_dir: Path, tickets: tuple[str, ...]) -> None:
    """Keeps the lead's tickets to the other nodes for a restarted agent, readable by its owner only."""
    replace_file(gang_dir / "peers.json", json.dumps(tickets))


def _look(directory: Path, config: GangConfig) -> Found:
    if _listens(directory / "keeper.sock"):
        return Found(config=config, alive=True, peer_tickets=_peer_tickets(directory))
    report = _read(directory / "ended.json")
    if report is not None:
        error = report.get("error")
        return Found(
            config=config,
            alive=False,
            clean=bool(report.get("clean")),
            error=error_from_meta(error, node_id=config.node_id) if error else ErrorInfo(),
        )
    return Found(config=config, alive=False, error=_lost(directory, config))


def _lost(directory: Path, config: GangConfig) -> ErrorInfo:
    """The keeper left no report: its own record of deaths, where there is one, names the first."""
    try:
        first = json.loads((directory / "deaths.jsonl").read_text().splitlines()[0])
        return ErrorInfo(
            cause=Cause.INFRASTRUCTURE,
            type_name="RankDiedError",
            message=f"rank {first['rank']} died, then the keeper, while no agent was there",
            rank=int(first["rank"]),
            node_id=config.node_id,
            exit_code=int(first.get("exit_code", 0)),
            signal=int(first.get("signal", 0)),
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return ErrorInfo(
            cause=Cause.INFRASTRUCTURE,
            type_name="RankDiedError",
            message="the gang's keeper ended while no agent was there",
            node_id=config.node_id,
        )


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(2)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _peer_tickets(directory: Path) -> tuple[str, ...]:
    try:
        return tuple(str(t) for t in json.loads((directory / "peers.json").read_text()))
    except (OSError, ValueError, TypeError):
        return ()
