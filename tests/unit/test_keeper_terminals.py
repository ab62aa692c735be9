"""What clients and ranks may say to a keeper: whatever it is, it goes on, and says what it does not do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.frames import NO_ID, Frame, Kind
from phalanx.core.ids import id_text, new_raw_id
from tests.support.gang_of_fakes import GangOfFakes


@pytest.fixture
def node(tmp_path: Path) -> Iterator[GangOfFakes]:
    gang = GangOfFakes(tmp_path, ranks=2)
    yield gang
    gang.close()


def wanted(node: GangOfFakes, call: bytes, **meta: Any) -> tuple[bytes, Frame]:
    """Asks for a terminal; returns its id and the answer."""
    terminal = new_raw_id()
    node.gang.from_agent(Frame(Kind.TERMINAL, terminal, {"call": id_text("c", call), **meta}))
    return terminal, next(f for f in node.told if f.id == terminal)


@pytest.mark.parametrize("mode", ["", "root", "Shell", None, 7])
def test_there_are_two_kinds_of_terminals(node: GangOfFakes, mode: object) -> None:
    _, answer = wanted(node, node.call(), mode=mode, rank=0)
    assert answer.kind is Kind.REFUSED
    assert "is no kind of terminal: ask for attach or shell" in answer.meta["error"]
    assert not node.shells.requests


@pytest.mark.parametrize("rank", ["a", 1.5, [0], {}, float("inf"), None, 1 << 80])
@pytest.mark.parametrize("mode", ["attach", "shell"])
def test_a_rank_that_is_no_number_is_no_harm(node: GangOfFakes, mode: str, rank: object) -> None:
    _, answer = wanted(node, node.call(), mode=mode, rank=rank)
    assert answer.kind in (Kind.REFUSED, Kind.TERMINAL)


@pytest.mark.parametrize("size", ["x", -1, float("inf"), [80], 1 << 80])
def test_a_size_that_is_no_number_is_no_harm(node: GangOfFakes, size: object) -> None:
    terminal, answer = wanted(node, node.call(), mode="shell", rank=0, rows=size, columns=size)
    assert answer.kind is Kind.TERMINAL
    node.gang.from_agent(Frame(Kind.TYPED, terminal, {"rows": size, "columns": size, "taken": size}, b"ls\n"))
    assert node.shells.ends[0].recv(100) == b"ls\n"


@pytest.mark.parametrize("step", [float("inf"), float("nan"), "x", None, [1]])
def test_marks_that_are_no_numbers_say_nothing(node: GangOfFakes, step: object) -> None:
    node.call()
    for said in ({"marks": [[step, 1]]}, {"entered": [["0", step, 1, 1]]}, {"marks": step}, {"ahead_us": step}):
        meta = {"event": "progress", "marks": [], **said}
        node.says(0, Frame(Kind.RANK, NO_ID, meta))
        node.gang.from_agent(Frame(Kind.RANK, NO_ID, {"rank": 1, **meta}))
    assert not node.gang.steps.rows()


def test_a_person_is_told_what_waits_where_he_cannot_attach(node: GangOfFakes) -> None:
    call = node.call()
    node.stops(1)
    _, answer = wanted(node, call, mode="attach", rank=0)
    assert answer.kind is Kind.REFUSED
    assert "rank 1 waits at a breakpoint, train.py:7" in answer.meta["error"]
