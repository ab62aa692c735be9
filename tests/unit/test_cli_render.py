"""What is written where, with which flags."""

from __future__ import annotations

import io
import json

import pytest

from phalanx.cli.folding import Folded
from phalanx.cli.render import Look, Screen, plain, plain_table
from phalanx.core.errors import NotFoundError
from phalanx.core.messages import ErrorInfo
from phalanx.core.views import CallView


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CI", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def screen(look: Look, *, terminal: bool = False) -> tuple[Screen, io.StringIO, io.StringIO]:
    out, err = (Terminal(), Terminal()) if terminal else (io.StringIO(), io.StringIO())
    return Screen(look, out=out, err=err), out, err


def test_data_goes_to_standard_output_and_notes_to_standard_error() -> None:
    shown, out, err = screen(Look())
    shown.data("42")
    shown.note("done")
    assert (out.getvalue(), err.getvalue()) == ("42\n", "done\n")


def test_quiet_shows_data_only() -> None:
    shown, out, err = screen(Look(quiet=True))
    shown.data("42")
    shown.note("done")
    assert (out.getvalue(), err.getvalue()) == ("42\n", "")


def test_json_is_one_document_on_one_line_with_stable_keys() -> None:
    shown, out, _ = screen(Look(json=True))
    shown.emit(CallView(call_id="c-1", state="running"))
    document = json.loads(out.getvalue())
    assert out.getvalue().count("\n") == 1
    assert (document["call_id"], document["state"], document["cost"]["currency"]) == ("c-1", "running", "USD")


def test_an_error_that_says_nothing_is_null_in_json() -> None:
    assert plain(CallView(state="succeeded"))["error"] is None
    assert plain(CallView(state="failed", error=ErrorInfo(message="no")))["error"]["cause"] == "user_exception"


def test_a_terminal_gets_colours_and_a_pipe_none() -> None:
    line = Folded((3,), 1, "stdout", "hello")
    shown, out, _ = screen(Look(), terminal=True)
    shown.log(line)
    assert "\x1b[38;5;" in out.getvalue()
    shown, out, _ = screen(Look())
    shown.log(line)
    assert out.getvalue() == "[r3 n1] hello\n"


@pytest.mark.parametrize(
    ("variable", "terminal", "coloured"), [("NO_COLOR", True, False), ("FORCE_COLOR", False, True)]
)
def test_the_environment_turns_colours_on_and_off(
    monkeypatch: pytest.MonkeyPatch, variable: str, terminal: bool, coloured: bool
) -> None:
    monkeypatch.setenv(variable, "1")
    shown, out, _ = screen(Look(), terminal=terminal)
    shown.log(Folded((0,), 0, "stdout", "x"))
    assert ("\x1b[" in out.getvalue()) == coloured


def test_no_color_as_a_flag_wins_over_force_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown, out, _ = screen(Look(colour=False), terminal=True)
    shown.log(Folded((0,), 0, "stdout", "x"))
    assert out.getvalue() == "[r0 n0] x\n"


def test_lines_push_the_status_line_down() -> None:
    shown, _, err = screen(Look(), terminal=True)
    shown.status("running")
    shown.note("hello")
    assert err.getvalue().endswith("hello\nrunning")
    shown.clear_status()
    assert err.getvalue().endswith("\r\x1b[2K")


@pytest.mark.parametrize("look", [Look(json=True), Look(quiet=True), Look(progress=False)])
def test_no_status_line_where_it_is_not_wanted(look: Look) -> None:
    shown, _, err = screen(look, terminal=True)
    shown.status("running")
    assert err.getvalue() == ""


def test_no_status_line_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    shown, _, err = screen(Look(), terminal=True)
    shown.status("running")
    assert err.getvalue() == ""


def test_an_error_as_json_is_on_standard_error() -> None:
    shown, out, err = screen(Look(json=True))
    shown.problem(NotFoundError("no such call"))
    assert out.getvalue() == ""
    assert json.loads(err.getvalue())["error"]["code"] == "NOT-FOUND"


def test_tables_in_a_pipe_are_aligned_and_cut_nothing_off() -> None:
    rows = [("n0", "2", "x" * 300), ("node-1", "16", "y")]
    lines = plain_table(("NODE", "GPUS", "WHY"), rows)
    assert lines[0] == "NODE    GPUS  WHY"
    assert lines[2] == "node-1    16  y"
    assert lines[1].endswith("x" * 300)


def test_an_empty_table_says_what_to_do() -> None:
    shown, out, err = screen(Look())
    shown.table(("CALL",), [], empty="no calls")
    assert (out.getvalue(), err.getvalue()) == ("", "no calls\n")


def test_what_the_locale_cannot_write_is_escaped() -> None:
    raw = io.BytesIO()
    shown = Screen(Look(), out=io.TextIOWrapper(raw, encoding="ascii"), err=io.StringIO())
    shown.data("naïve")
    assert raw.getvalue() == b"na\\xefve\n"
