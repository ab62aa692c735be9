"""The deployment files name programs, flags and folders that exist: there is no container engine where tests run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx_agent.settings import read as parse_agent
from phalanx_control.settings import parse as parse_control

INFRA = Path(__file__).parents[2] / "infra"
COMPOSE: dict[str, Any] = yaml.safe_load((INFRA / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PARSERS: dict[str, Callable[..., object]] = {"phalanx-control": parse_control, "phalanx-agent": parse_agent}
OURS = [name for name, service in SERVICES.items() if service["command"][0] in PARSERS]


def flag(service: str, name: str) -> str:
    return next(word.partition("=")[2] for word in SERVICES[service]["command"] if word.startswith(f"--{name}="))


def test_the_cell_has_a_store_two_replicas_and_two_agents() -> None:
    assert OURS == ["control-a", "control-b", "agent-a", "agent-b"]


@pytest.mark.parametrize("name", OURS)
def test_each_command_line_is_accepted_by_the_real_program(name: str) -> None:
    program, *arguments = SERVICES[name]["command"]
    PARSERS[program](arguments, {})


def test_the_store_writes_every_entry_to_disk_and_drops_none() -> None:
    command = SERVICES["store"]["command"]
    settings = dict(zip(command[1::2], command[2::2], strict=True))
    assert settings["--appendfsync"] == "always"
    assert settings["--appendonly"] == "yes"
    assert settings["--maxmemory-policy"] == "noeviction"


def test_replicas_share_store_and_data_but_no_address() -> None:
    for shared in ("store", "data-dir", "blobs"):
        assert flag("control-a", shared) == flag("control-b", shared)
    ports = [flag(r, f"{p}listen") for r in ("control-a", "control-b") for p in ("", "agents-", "web-")]
    assert len(set(ports)) == 6


def test_agents_know_both_replicas_and_never_see_the_authoritys_key() -> None:
    addresses = ",".join(flag(replica, "listen") for replica in ("control-a", "control-b"))
    for agent in ("agent-a", "agent-b"):
        assert flag(agent, "control") == addresses
        assert all(not volume.startswith("control:") for volume in SERVICES[agent]["volumes"])


def test_every_volume_that_is_mounted_is_declared_and_every_dependency_exists() -> None:
    for service in SERVICES.values():
        assert {v.split(":")[0] for v in service.get("volumes", [])} <= set(COMPOSE["volumes"])
        assert set(service.get("depends_on", {})) <= set(SERVICES)


def test_the_image_runs_as_an_ordinary_user_and_holds_the_programs() -> None:
    text = (INFRA / "Dockerfile").read_text()
    last = text.rsplit("\nFROM ", 1)[1]
    assert re.search(r"^USER (?!0|root)\S+", last, re.MULTILINE)
    assert "[agent,control-plane]" in last
    ignored = (INFRA / "Dockerfile.dockerignore").read_text().split()
    assert {".git", "control_plane/phalanx_control/web/static"} <= set(ignored)
