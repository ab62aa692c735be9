"""What gpuctl says of a command line that it cannot carry out, and what it says to do instead."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NoReturn

import pytest

from phalanx.cli.commands.token import revoke
from phalanx.cli.endings import tell
from phalanx.cli.exits import Exit
from phalanx.cli.main import root
from phalanx.cli.options import Session
from phalanx.cli.problem import problem_of
from phalanx.cli.render import Look, Screen
from phalanx.core.errors import NotFoundError


def told(*words: str) -> list[str]:
    """Returns the lines that gpuctl writes about a command line that is wrong usage."""
    err = io.StringIO()
    with pytest.raises(Exception) as caught:  # noqa: PT011 (click's usage errors, whichever)
        root.main(list(words), prog_name="gpuctl", standalone_mode=False, obj=Session())
    assert tell(caught.value, Screen(Look(), out=io.StringIO(), err=err)) is Exit.USAGE
    return err.getvalue().splitlines()


@pytest.mark.parametrize(
    ("words", "what", "why"),
    [
        (("logs",), "Missing argument 'CALL'.", "the usage is gpuctl logs [OPTIONS] CALL"),
        (("down", "now"), "Got unexpected extra argument (now)", "the usage is gpuctl down [OPTIONS]"),
        (("ps", "--timeout", "-1"), "Invalid value for '--timeout'", "-1.0 is not in the range x>0."),
        (("logs", "c-1", "--rank", "x"), "Invalid value for '--rank'", "'x' is not a valid integer."),
        (("frobnicate",), "No such command 'frobnicate'.", "the usage is gpuctl [OPTIONS] COMMAND [ARGS]..."),
    ],
)
def test_wrong_usage_says_what_is_wrong_and_what_would_be_right(words: tuple[str, ...], what: str, why: str) -> None:
    first, second, third = told(*words)
    assert first == f"error[USAGE]: {what}"
    assert second == f"why: {why}"
    assert third.startswith("try: gpuctl ")
    assert third.endswith(" --help")


@pytest.mark.parametrize(("typed", "meant"), [("--verbos", "--verbose"), ("--jsn", "--json"), ("--al", "--all")])
def test_an_option_that_was_almost_right_is_answered_with_the_right_one(typed: str, meant: str) -> None:
    assert told("ps", typed)[0].endswith(f"Did you mean {meant!r}?")


@pytest.mark.parametrize("typed", ["--bogus", "--frobnicate", "--x"])
def test_an_option_that_is_like_no_other_is_not_compared(typed: str) -> None:
    first, why, _ = told("ps", typed)
    assert typed in first
    assert "Did you mean" not in first
    assert why == "why: the usage is gpuctl ps [OPTIONS]"


@pytest.mark.parametrize("target", ["nope.py", "nope.py::train", "."])
def test_run_says_of_a_file_that_is_not_there_what_deploy_says(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    what, why, hint = told("run", target)
    assert [what, why] == told("deploy", target.partition("::")[0])[:2]
    assert hint == "try: gpuctl run --help"


def test_a_token_that_is_not_known_leads_to_the_list_of_tokens() -> None:
    with pytest.raises(NotFoundError) as caught:
        revoke(NoTokens(), "nope")
    problem = problem_of(caught.value)
    assert (problem.what, problem.hint) == ("no token 'nope'", "gpuctl token list")


class NoTokens(Session):
    """A session at a control plane that knows no token."""

    def client(self) -> Any:
        return self

    def revoke_token(self, token_id: str) -> NoReturn:
        raise NotFoundError(f"no token {token_id!r}")
