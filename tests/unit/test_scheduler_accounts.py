"""Whose turn it is: shares by workspace, team and user, guarantees, limits, priorities."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from phalanx.core.errors import InvalidSpecError, UnschedulableError, VersionError
from phalanx.core.states import CallState, GangState
from phalanx_control.lifecycle.decide import decide
from phalanx_control.state import commands as c
from phalanx_control.state.events import GangReserved
from phalanx_control.state.model import Gang, Owner
from tests.support.builders import World, call_id, events_of, node_info, spec
from tests.support.invariants import check_history
from tests.support.pictures import check_picture

HOUR_MS = 3_600_000


class Cell:
    """A world in which owners ask for GPUs, and gangs that hold them end when a test says so."""

    def __init__(self, *nodes: int, policy: dict[str, Any] | None = None) -> None:
        self.world = World(*(node_info(f"n{at}", gpus=gpus) for at, gpus in enumerate(nodes, start=1)))
        if policy is not None:
            self.set(policy)
        self._asked = 0

    def set(self, policy: dict[str, Any]) -> None:
        self.world.do(c.SetPolicy(policy=json.dumps(policy)))

    def ask(self, who: str, gpus: float, name: str = "f", **terms: Any) -> str:
        """``who``: workspace/user."""
        workspace, _, user = who.partition("/")
        owner = Owner(workspace=workspace, user=user)
        function = replace(spec(f"{name}-{user}-{workspace}", gpus=gpus), **terms)
        self.world.register(function, owner)
        self._asked += 1
        return self.world.submit(self._asked, function.function_id, owner)

    def run(self) -> list[str]:
        """One pass, and all gangs that it starts come up; returns who got them, in order."""
        started: list[str] = []
        for event in events_of(self.world.schedule(), GangReserved):
            assert isinstance(event, GangReserved)
            self.world.bring_up(event.gang)
            started.append(f"{event.gang.owner.workspace}/{event.gang.owner.user}")
        return started

    def gang_of(self, call: str) -> Gang:
        return next(g for g in self.world.state.gangs.values() if g.for_call == call)

    def end(self, call: str) -> None:
        """The call succeeds and its gang ends."""
        gang = self.gang_of(call)
        self.world.finish(call)
        self.world.end(self.world.state.gangs[gang.id])

    def reason(self, call: str) -> str:
        return self.world.call(call).reason


def test_users_of_one_workspace_take_turns_however_many_calls_one_of_them_has() -> None:
    cell = Cell(4)
    for at in range(6):
        cell.ask("lab/ana", 1, f"a{at}")
    for at in range(2):
        cell.ask("lab/bob", 1, f"b{at}")
    assert sorted(cell.run()) == ["lab/ana", "lab/ana", "lab/bob", "lab/bob"]


def test_workspaces_share_by_weight_and_their_users_within_them() -> None:
    cell = Cell(8, policy={"workspaces": {"big": {"weight": 3}}})
    for at in range(8):
        cell.ask("big/ana", 1, f"a{at}")
        cell.ask("small/eve", 1, f"e{at}")
        cell.ask("big/bob", 1, f"b{at}")
    started = cell.run()
    assert {who: started.count(who) for who in sorted(set(started))} == {"big/ana": 3, "big/bob": 3, "small/eve": 2}


def test_a_team_counts_as_one_beside_users_of_no_team() -> None:
    cell = Cell(4, policy={"workspaces": {"lab": {"teams": {"nlp": {"users": ["ana", "bob"]}}}}})
    for at in range(4):
        for user in ("ana", "bob", "eve"):
            cell.ask(f"lab/{user}", 1, f"f{at}")
    assert sorted(cell.run()) == ["lab/ana", "lab/bob", "lab/eve", "lab/eve"]


def test_the_dominant_resource_counts() -> None:
    cell = Cell(8)
    for at in range(4):
        cell.ask("one/ana", 1, f"a{at}", resources=spec(gpus=1, cpus=32.0).resources)
        cell.ask("two/bob", 1, f"b{at}")
    assert cell.run().count("two/bob") == 4, "half of all cores is as much as half of all GPUs"


def test_what_was_used_before_counts_and_is_forgotten() -> None:
    cell = Cell(1, policy={"half_life": "1h"})
    first = cell.ask("one/ana", 1)
    assert cell.run() == ["one/ana"]
    cell.world.wait(HOUR_MS)
    cell.end(first)
    cell.ask("one/ana", 1, "g")
    theirs = cell.ask("two/bob", 1)
    assert cell.run() == ["two/bob"], "ana came first and has used the cell for an hour"
    cell.end(theirs)
    cell.world.wait(30 * HOUR_MS)
    assert cell.run() == ["one/ana"]
    assert set(cell.world.state.usage) == {"one\x1fana", "two\x1fbob"}
    check_history(cell.world.history, cell.world.state)


def test_gangs_that_still_run_count_for_as_long_as_they_have_run() -> None:
    cell = Cell(3, policy={"half_life": "1h"})
    cell.ask("one/ana", 1)
    cell.run()
    cell.world.wait(10 * HOUR_MS)
    cell.ask("two/bob", 1)
    cell.run()
    cell.ask("one/ana", 1, "g")
    cell.ask("two/bob", 1, "g")
    assert cell.run() == ["two/bob"]
    check_picture(cell.world.state)


def test_a_step_of_priority_is_worth_ten_minutes() -> None:
    cell = Cell(1)
    cell.ask("lab/ana", 1, "low")
    cell.world.wait(599_000)
    high = cell.ask("lab/ana", 1, "high", priority=1)
    assert cell.run() == ["lab/ana"]
    assert cell.gang_of(high)
    cell = Cell(1)
    low = cell.ask("lab/ana", 1, "low")
    cell.world.wait(601_000)
    cell.ask("lab/ana", 1, "high", priority=1)
    cell.run()
    assert cell.gang_of(low)


def test_a_limit_holds_at_every_level_and_says_so() -> None:
    cell = Cell(8, policy={"workspaces": {"lab": {"limit": 4, "users": {"ana": {"limit": 2}}}}})
    calls = [cell.ask("lab/ana", 1, f"a{at}") for at in range(4)]
    others = [cell.ask("lab/bob", 1, f"b{at}") for at in range(4)]
    assert sorted(cell.run()) == ["lab/ana", "lab/ana", "lab/bob", "lab/bob"]
    assert cell.reason(calls[3]) == "needs 1 GPU; lab/ana holds 2 and may have 2"
    assert cell.reason(others[3]) == "needs 1 GPU; lab holds 4 and may have 4"
    cell.end(calls[0])
    assert len(cell.run()) == 1


def test_an_idle_gang_makes_room_within_its_accounts_limit() -> None:
    cell = Cell(8, policy={"workspaces": {"lab": {"limit": 2}}})
    first = cell.ask("lab/ana", 2)
    cell.run()
    gang = cell.gang_of(first)
    cell.world.finish(first)
    second = cell.ask("lab/bob", 1)
    assert cell.run() == []
    assert cell.world.state.gangs[gang.id].state is GangState.READY, "nobody said that it is idle"
    cell.world.idle_ms = {gang.id: 5}
    cell.run()
    assert cell.world.state.gangs[gang.id].stop_reason == "idle, and its GPUs are needed by f-bob-lab"
    cell.world.end(cell.world.state.gangs[gang.id])
    assert cell.run() == ["lab/bob"]
    assert cell.world.call(second).state is CallState.ASSIGNED


def test_a_gang_that_is_larger_than_its_accounts_limit_is_refused_at_submit() -> None:
    cell = Cell(8, policy={"workspaces": {"lab": {"limit": 2}}})
    with pytest.raises(UnschedulableError, match="f-ana-lab asks for 4 GPUs; lab may have 2 at most"):
        cell.ask("lab/ana", 4)


def test_what_is_guaranteed_to_others_cannot_be_had_for_good() -> None:
    cell = Cell(8, policy={"workspaces": {"prod": {"gpus": 6}, "lab": {"gpus": 1}}})
    with pytest.raises(UnschedulableError, match="lab may have 2 for good, the rest is guaranteed to others") as raised:
        cell.ask("lab/ana", 4)
    assert "preemptible=True" in raised.value.hint
    cell.ask("lab/ana", 4, "spot", preemptible=True)
    assert cell.run() == ["lab/ana"]


def test_guarantees_go_first_and_are_lent_to_preemptible_functions_only() -> None:
    cell = Cell(8, policy={"workspaces": {"prod": {"gpus": 6}}})
    firm = [cell.ask("lab/ana", 1, f"firm{at}") for at in range(4)]
    spot = [cell.ask("lab/ana", 1, f"spot{at}", preemptible=True) for at in range(4)]
    assert len(cell.run()) == 6
    assert [cell.world.call(each).state for each in firm].count(CallState.ASSIGNED) == 2, "eight less six"
    assert cell.reason(firm[3]).startswith(
        "needs 1 GPU; what is left beyond the guarantee of lab is guaranteed to others"
    )
    assert all(cell.world.call(each).state is CallState.ASSIGNED for each in spot)
    cell.ask("zoo/zoe", 1, preemptible=True)
    cell.ask("prod/eve", 1)
    assert cell.run()[0] == "prod/eve"


def test_a_policy_is_checked_kept_and_forgotten() -> None:
    cell = Cell(1)
    with pytest.raises(InvalidSpecError, match="unknown key"):
        cell.set({"nonsense": 1})
    text = json.dumps({"workspaces": {}})
    assert cell.world.kinds(cell.world.do(c.SetPolicy(policy=text))) == ["PolicySet"]
    assert cell.world.do(c.SetPolicy(policy=text)) == ()
    old = replace(cell.world.now, schema=7)
    with pytest.raises(VersionError, match="cannot read a policy"):
        decide(cell.world.state, c.SetPolicy(policy=""), old)
    cell.world.do(c.SetPolicy(policy=""))
    assert (cell.world.state.policy, len(cell.world.state.usage)) == ("", 0)
    assert call_id(1)
