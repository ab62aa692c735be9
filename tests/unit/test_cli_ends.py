"""What `gpuctl cancel` and `gpuctl down` say that they ended."""

from __future__ import annotations

import io
from typing import Any

import pytest

from phalanx.cli.commands.cancel import cancel
from phalanx.cli.commands.down import outcome
from phalanx.cli.options import Session
from phalanx.cli.render import Look, Screen
from phalanx.core.views import CallView

CALL = "c-00000000000000000000000000"


class OneCall(Session):
    """A session at a control plane with one call, which goes through ``states`` as it is asked for and cancelled."""

    def __init__(self, *states: str, phase: str = "") -> None:
        super().__init__()
        self.states = list(states)
        self.phase = phase
        self.err = io.StringIO()

    def screen(self) -> Screen:
        return Screen(Look(), out=io.StringIO(), err=self.err)

    def client(self) -> Any:
        return self

    def get_call(self, call_id: str) -> CallView:
        return CallView(call_id=call_id, function="shop/sell", state=self.states.pop(0), phase=self.phase)

    cancel = get_call

    def watch(self, call_id: str) -> list[CallView]:
        return [self.get_call(call_id)]


@pytest.mark.parametrize("state", ["succeeded", "failed", "timed_out", "cancelled"])
def test_cancelling_a_call_that_has_ended_says_that_it_had(state: str) -> None:
    session = OneCall(state, state)
    cancel(session, (CALL,), wait=False)
    assert session.err.getvalue() == f"had ended already: {state}  {CALL}  shop/sell\n"


@pytest.mark.parametrize(
    ("states", "said"),
    [(("failed", "failed"), "released"), (("running", "cancelling", "cancelled"), "cancelled")],
    ids=["held", "at a breakpoint"],
)
def test_only_a_gang_that_is_held_is_released(states: tuple[str, ...], said: str) -> None:
    session = OneCall(*states, phase="debug")
    cancel(session, (CALL,), wait=True)
    assert f"{said}  {CALL}" in session.err.getvalue()


@pytest.mark.parametrize(
    ("states", "wait", "said"),
    [
        (("queued", "cancelled"), False, "cancelled"),
        (("running", "cancelling"), False, "cancelling"),
        (("running", "cancelling", "cancelled"), True, "cancelled"),
    ],
)
def test_cancelling_a_call_that_goes_on_tells_its_state(states: tuple[str, ...], wait: bool, said: str) -> None:
    session = OneCall(*states)
    cancel(session, (CALL,), wait=wait)
    assert f" {said}  {CALL}" in session.err.getvalue()
    assert "already" not in session.err.getvalue()


def test_a_call_that_ends_by_itself_while_it_is_cancelled_is_not_told_as_a_success() -> None:
    session = OneCall("running", "cancelling", "succeeded")
    cancel(session, (CALL,), wait=True)
    assert session.err.getvalue().startswith("had ended already: succeeded  ")


@pytest.mark.parametrize(
    ("stopped", "alive", "said"),
    [
        (False, None, "no embedded cluster was running"),
        (True, None, "stopped the embedded cluster"),
        (True, 0, "stopped the embedded cluster"),
        (True, 1, "stopped the embedded cluster; 1 call had not ended"),
        (True, 100, "stopped the embedded cluster; 100 or more calls had not ended"),
    ],
)
def test_down_says_how_many_calls_it_ended_where_it_knows(stopped: bool, alive: int | None, said: str) -> None:
    assert outcome(stopped, alive) == said
