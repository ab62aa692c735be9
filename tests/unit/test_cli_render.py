"""What is written where, with which flags."""

from __future__ import annotations

import io
import json

import pytest

from phalanx.cli.folding import Folded
from phalanx.cli.render import Look, Screen, plain
from phalanx.cli.tables import fitted_table, plain_table
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


CALLS = ("CALL", "FUNCTION", "STATE", "GPUS", "TIME", "COST", "USER", "WHAT")
LONG_WHY = "queued (1st, needs 4 GPUs on 1 node; best node vm has 0 free of 8 (8 held by f of admin))"
ALIVE = [
    ("c-77th65k915492fbzh9r7pcd1gm", "training.pretrain", "queued", "4", "3.2 s", "0.00 USD", "admin", LONG_WHY),
    ("c-2pejj5ezqb6p329pt3hzd6115b", "f8.f", "running", "8", "3.2 s", "0.0138 USD", "admin", "running"),
]


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_in_a_terminal_a_table_fits_and_keeps_ids_states_numbers_and_all_of_the_prose(width: int) -> None:
    lines = fitted_table(CALLS, ALIVE, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(cell in text for row in ALIVE for cell in (row[0], *row[2:7]))
    assert set(LONG_WHY.split()) <= set(text.split())


def test_in_a_narrow_terminal_models_are_shortened_and_nothing_else() -> None:
    columns = ("NODE", "STATE", "GPUS", "FREE", "MODEL", "CPUS", "MEMORY", "POOL", "SEEN")
    row = ("vm", "ready", "8", "4", "NVIDIA H100 80GB HBM3 (simulated)", "2", "25.3 GB", "default", "1.8 s ago")
    line = fitted_table(columns, [row], 80)[1]
    assert len(line) <= 80
    assert [line.startswith("vm    ready     8  4"), line.endswith("2     25.3 GB  default  1.8 s ago")] == [True, True]
    assert "NVIDIA H100" in line
    assert "…" in line


def test_what_cannot_be_made_to_fit_is_left_to_the_terminal() -> None:
    assert fitted_table(("NODE", "POOL"), [("n" * 50, "p" * 50)], 80)[1].startswith("n" * 50)


def test_a_terminal_shows_a_whole_table_with_the_states_in_colour() -> None:
    shown, out, _ = screen(Look(), terminal=True)
    shown.table(CALLS, ALIVE, empty="")
    assert out.getvalue().count(ALIVE[0][0]) == 1
    assert "\x1b[" in out.getvalue()


def test_an_empty_table_says_what_to_do() -> None:
    shown, out, err = screen(Look())
    shown.table(("CALL",), [], empty="no calls")
    assert (out.getvalue(), err.getvalue()) == ("", "no calls\n")


def test_what_the_locale_cannot_write_is_escaped() -> None:
    raw = io.BytesIO()
    shown = Screen(Look(), out=io.TextIOWrapper(raw, encoding="ascii"), err=io.StringIO())
    shown.data("naïve")
    assert raw.getvalue() == b"na\\xefve\n"
