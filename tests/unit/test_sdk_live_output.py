"""When the output of calls is shown where they are waited for."""

from __future__ import annotations

import io

import pytest

from phalanx.live_output import wants_output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PHALANX_LOGS", "CI", "PHALANX_QUIET", "PHALANX_GANG"):
        monkeypatch.delenv(name, raising=False)


def test_a_terminal_is_shown_it_and_a_file_is_not() -> None:
    assert wants_output(Terminal())
    assert not wants_output(io.StringIO())
    assert not wants_output(None)


@pytest.mark.parametrize("name", ["CI", "PHALANX_QUIET", "PHALANX_GANG"])
def test_where_nobody_looks_it_is_not_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert not wants_output(Terminal())


def test_what_the_user_says_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_LOGS", "0")
    assert not wants_output(Terminal())
    monkeypatch.setenv("PHALANX_LOGS", "1")
    monkeypatch.setenv("CI", "1")
    assert wants_output(io.StringIO())
    assert not wants_output(None)
