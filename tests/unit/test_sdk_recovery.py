"""A connection is lost in the middle of a direct call: what became of the call is asked, never guessed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.errors import OutcomeUnknownError
from phalanx.core.frames import Frame, Kind
from phalanx.core.ids import id_text, new_raw_id
from phalanx.core.messages import Body
from phalanx.core.serialization import pack, pack_arguments
from phalanx.core.views import CallView, GangAddress
from phalanx.definition import Target
from phalanx.runner import Runner
from tests.support.fake_gang import FakeGang

TARGET = Target("f-1", "lost")


class ControlPlane:
    """Runs what is submitted at once, and remembers it. ``gang`` is chosen first, and ``later`` from then on."""

    def __init__(self, gang: GangAddress, *, later: GangAddress | None = None) -> None:
        self.submitted: list[str] = []
        self.gang = gang
        self._chosen = gang
        self._later = later or gang

    def gang_address(self, _function_id: str, *, gang_id: str = "") -> GangAddress:
        if gang_id:
            return self.gang if gang_id == self.gang.gang_id else GangAddress()
        chosen, self._chosen = self._chosen, self._later
        return chosen

    def knows(self, call_id: str) -> bool:
        return call_id in self.submitted

    def submit(self, call_id: str, _function_id: str, _args: Body, **_options: object) -> str:
        self.submitted.append(call_id)
        return "queued"

    def watch(self, call_id: str, *, until_ms: int | None = None) -> Iterator[CallView]:
        del until_ms
        yield CallView(call_id=call_id, state="succeeded", result=Body(data=pack("again").tobytes()))

    def close(self) -> None:
        """Nothing is open."""


def drops_calls(gang: FakeGang, _frame: Frame) -> list[Frame]:
    gang.drop_clients()
    return []


@pytest.fixture
def gang() -> Iterator[FakeGang]:
    with tempfile.TemporaryDirectory(prefix="px") as folder:
        fake = FakeGang(Path(folder), drops_calls)
        yield fake
        fake.close()


def run(gang: FakeGang, raw_id: bytes, plane: ControlPlane) -> Any:
    client: Any = plane
    return Runner(client).run(TARGET, raw_id, pack_arguments((1,), {}))


def test_a_call_that_the_gang_never_had_goes_the_durable_way_under_its_id(gang: FakeGang) -> None:
    raw_id, plane = new_raw_id(), ControlPlane(gang.address)
    gang.asked[raw_id] = Frame(Kind.UNKNOWN, raw_id, {"never_ran": True})
    assert run(gang, raw_id, plane) == "again"
    assert plane.submitted == [id_text("c", raw_id)]


def test_a_call_that_may_have_run_is_not_sent_again(gang: FakeGang) -> None:
    raw_id, plane = new_raw_id(), ControlPlane(gang.address)
    with pytest.raises(OutcomeUnknownError, match="may have run"):
        run(gang, raw_id, plane)
    assert plane.submitted == []


def test_an_outcome_that_the_gang_kept_is_fetched(gang: FakeGang) -> None:
    raw_id, plane = new_raw_id(), ControlPlane(gang.address)
    gang.asked[raw_id] = Frame(Kind.RESULT, raw_id, {}, pack("kept").tobytes())
    assert run(gang, raw_id, plane) == "kept"
    assert plane.submitted == []


def test_the_gang_that_had_the_call_is_asked_though_another_one_is_chosen_now(gang: FakeGang) -> None:
    other = replace(gang.address, gang_id="g-other", unix_path="/nowhere")
    raw_id, plane = new_raw_id(), ControlPlane(gang.address, later=other)
    gang.asked[raw_id] = Frame(Kind.RESULT, raw_id, {}, pack("kept").tobytes())
    assert run(gang, raw_id, plane) == "kept"


def test_a_call_whose_gang_is_gone_may_have_run(gang: FakeGang) -> None:
    plane = ControlPlane(gang.address)
    plane.gang = replace(gang.address, gang_id="g-another")
    with pytest.raises(OutcomeUnknownError, match="may have run"):
        run(gang, new_raw_id(), plane)


def test_an_agent_that_does_not_know_yet_is_asked_again(gang: FakeGang) -> None:
    raw_id, plane = new_raw_id(), ControlPlane(gang.address)
    gang.asked_in_turn[raw_id] = [
        *(Frame(Kind.BUSY, raw_id) for _ in range(4)),
        Frame(Kind.RESULT, raw_id, {}, pack("late").tobytes()),
    ]
    assert run(gang, raw_id, plane) == "late"
    assert plane.submitted == []
