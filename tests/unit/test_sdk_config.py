"""Where a setting comes from, and which one wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.config import Settings, resolve
from phalanx.core.errors import ConnectionFailedError, InvalidSpecError

PROFILES = """
profile = "work"
[profiles.work]
address = "work:1"
token = "px_work"
ca = "work.pem"
[profiles.other]
address = "other:1"
token = "px_other"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "config" / "phalanx").mkdir(parents=True)
    (tmp_path / "project" / "deep").mkdir(parents=True)
    return tmp_path


def settings(home: Path, flags: dict[str, str] | None = None, **environ: str) -> Settings:
    return resolve(
        flags, environ={"XDG_CONFIG_HOME": str(home / "config"), **environ}, folder=home / "project" / "deep"
    )


def profiles(home: Path, text: str = PROFILES) -> None:
    (home / "config" / "phalanx" / "config.toml").write_text(text)


def project(home: Path, text: str) -> Path:
    path = home / "project" / "phalanx.toml"
    path.write_text(text)
    return path


def test_with_nothing_configured_it_is_the_embedded_cluster(home: Path) -> None:
    found = settings(home)
    assert found.embedded
    assert found.address.origin == "embedded cluster"


def test_a_flag_wins_over_the_environment_and_that_over_files(home: Path) -> None:
    profiles(home)
    project(home, 'address = "project:1"')
    assert settings(home, {"address": "flag:1"}, PHALANX_ADDRESS="env:1").address.text == "flag:1"
    assert settings(home, PHALANX_ADDRESS="env:1").address.origin == "environment PHALANX_ADDRESS"
    assert settings(home).address.text == "project:1"


def test_the_project_file_is_found_from_a_folder_below(home: Path) -> None:
    path = project(home, 'address = "p:1"\nca = "ca.pem"')
    found = settings(home)
    assert found.address.origin == f"project file {path}"
    assert found.ca.text == str(path.parent / "ca.pem")


def test_the_search_ends_at_the_repository(home: Path) -> None:
    project(home, 'address = "p:1"')
    (home / "project" / "deep" / ".git").mkdir()
    assert settings(home).embedded


def test_the_default_profile_is_the_one_that_the_file_names(home: Path) -> None:
    profiles(home)
    found = settings(home)
    assert (found.address.text, found.token.text) == ("work:1", "px_work")
    assert "profile 'work'" in found.token.origin


def test_flag_environment_and_project_choose_a_profile(home: Path) -> None:
    profiles(home)
    assert settings(home, {"profile": "other"}).address.text == "other:1"
    assert settings(home, PHALANX_PROFILE="other").address.text == "other:1"
    project(home, 'profile = "other"')
    assert settings(home).token.text == "px_other"


def test_a_profile_that_is_not_there_is_named(home: Path) -> None:
    with pytest.raises(InvalidSpecError, match="'nope' is asked for"):
        settings(home, PHALANX_PROFILE="nope")
    profiles(home)
    with pytest.raises(InvalidSpecError, match=r"add a \[profiles.nope\] section"):
        settings(home, PHALANX_PROFILE="nope")


def test_a_project_file_cannot_send_the_profiles_token_elsewhere(home: Path) -> None:
    profiles(home)
    project(home, 'address = "evil:1"')
    found = settings(home)
    assert found.address.text == "evil:1"
    assert found.token.text == ""
    assert settings(home, PHALANX_TOKEN="px_mine").token.text == "px_mine"


def test_the_profiles_token_is_used_for_the_profiles_own_address(home: Path) -> None:
    profiles(home)
    project(home, 'address = "work:1"')
    assert settings(home).token.text == "px_work"


@pytest.mark.parametrize("text", ["address = ", "address = 3", "\xff"])
def test_a_file_that_is_wrong_is_named(home: Path, text: str) -> None:
    path = project(home, "")
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidSpecError, match=r"phalanx\.toml"):
        settings(home)


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:http"])
def test_an_address_without_a_port_is_refused(address: str) -> None:
    from phalanx.connection import Connection

    with pytest.raises(ConnectionFailedError, match="not host:port"):
        Connection(address, "", "")
