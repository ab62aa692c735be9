"""The page's model, its messages and its sessions, without a server."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from immutables import Map

from phalanx.core.clock import ManualClock
from phalanx.core.errors import AuthError
from phalanx.core.messages import GpuInfo, NodeInfo
from phalanx.core.spec import FunctionSpec
from phalanx.core.states import CallState
from phalanx_control.controller_facts import Facts
from phalanx_control.service.auth import Identity
from phalanx_control.service.pictures import StatePictures, load_price_book
from phalanx_control.state.model import Call, Function, Node, Owner, State, Token
from phalanx_control.web.page_messages import Shared, event, from_fact, patch, snapshot, to_fact
from phalanx_control.web.page_model import LOOKS_PER_NODES, MAX_ENDED_CALLS, Change, Item, PageModel
from phalanx_control.web.sessions import ABSOLUTE_MS, IDLE_MS, LINK_LIFETIME_MS, PageSessions

OWNER = Owner(workspace="w", user="ana")
FUNCTION = Function(id="f-1", owner=OWNER, spec=FunctionSpec(name="f"))


def _state(*calls: Call, nodes: tuple[Node, ...] = ()) -> State:
    return msgspec.structs.replace(
        State(),
        functions=Map({FUNCTION.id: FUNCTION}),
        calls=Map({call.id: call for call in calls}),
        nodes=Map({node.info.node_id: node for node in nodes}),
    )


def _call(call_id: str = "c-1", **changes: Any) -> Call:
    return Call(id=call_id, function_id=FUNCTION.id, owner=OWNER, **changes)


def _model() -> PageModel:
    return PageModel(StatePictures(Facts(ManualClock()), load_price_book(None)))


# ---- model ----


def test_the_first_look_shows_everything() -> None:
    changes = _model().look(_state(_call()), None)
    assert [(change.key, change.workspace) for change in changes] == [(("calls", "c-1"), "w")]
    assert changes[0].fields is not None
    assert changes[0].fields["state"] == "queued"


def test_a_later_look_tells_only_what_differs() -> None:
    model = _model()
    model.look(_state(_call()), None)
    changes = model.look(_state(_call(reason="because")), {"c-1"})
    assert changes == [Change(("calls", "c-1"), "w", {"reason": "because"})]


def test_what_was_not_touched_is_not_looked_at() -> None:
    model = _model()
    model.look(_state(_call()), None)
    assert model.look(_state(_call(reason="because")), set()) == []


def test_nodes_are_looked_at_now_and_then_for_when_they_were_heard() -> None:
    clock = ManualClock()
    facts = Facts(clock)
    model = PageModel(StatePictures(facts, load_price_book(None)))
    state = _state(nodes=(Node(info=NodeInfo(node_id="n1")),))
    model.look(state, None)
    facts.heard("n1")
    changes = [change for _ in range(LOOKS_PER_NODES) for change in model.look(state, set())]
    assert [change.fields for change in changes] == [{"last_seen_ms": clock.wall_ms()}]


def test_what_leaves_the_state_leaves_the_page() -> None:
    model = _model()
    model.look(_state(_call()), None)
    assert model.look(_state(), {"c-1"}) == [Change(("calls", "c-1"), "w", None)]
    assert model.items == {}


def test_old_ended_calls_leave_the_page_by_and_by() -> None:
    model = _model()
    for number in range(3 * MAX_ENDED_CALLS):
        call = _call(f"c-{number}", state=CallState.SUCCEEDED, ended_wall_ms=number + 1)
        model.look(_state(call), {call.id})
    assert len(model.items) <= 2 * MAX_ENDED_CALLS
    assert ("calls", f"c-{3 * MAX_ENDED_CALLS - 1}") in model.items


# ---- messages ----


def test_a_patch_crosses_the_live_stream_unchanged() -> None:
    shared = Shared(changes=(Change(("calls", "c-1"), "w", {"a": 1}), Change(("gangs", "g"), "w", None)), now_ms=5)
    assert from_fact(json.loads(json.dumps(to_fact(shared)))) == shared


@pytest.mark.parametrize("fact", [{}, {"kind": "other"}, {"kind": "page", "changes": 3}])
def test_other_facts_of_the_live_stream_are_passed_over(fact: dict[str, Any]) -> None:
    assert from_fact(fact) is None


def test_a_patch_holds_its_own_workspaces_items_alone() -> None:
    shared = Shared(
        changes=(
            Change(("calls", "c-1"), "w", {"state": "running"}),
            Change(("calls", "c-2"), "v", {"state": "queued"}),
            Change(("gangs", "g-1"), "v", None),
        )
    )
    assert patch(shared, "w", {})["calls"] == [["c-1", {"state": "running"}]]
    assert "removed" not in patch(shared, "w", {})
    assert patch(shared, "v", {})["removed"] == {"gangs": ["g-1"]}


def test_nodes_are_seen_by_all_without_the_names_of_others() -> None:
    gpus = [
        {"info": {}, "gang_id": "g-1", "function": "train", "user": "ana"},
        {"info": {}, "gang_id": "", "function": "", "user": ""},
    ]
    items = {("nodes", "n1"): Item("", {"node_id": "n1", "gpus": gpus})}
    mine = snapshot(items, {"g-1": "w"}, "w", {}, 0)["nodes"][0]["gpus"]
    theirs = snapshot(items, {"g-1": "w"}, "v", {}, 0)["nodes"][0]["gpus"]
    assert mine == gpus
    assert (theirs[0]["function"], theirs[0]["user"], theirs[1]) == ("", "other user", gpus[1])


def test_a_node_is_drawn_with_its_gpus() -> None:
    info = NodeInfo(node_id="n1", gpus=(GpuInfo(uuid="GPU-1", model="H200"),))
    changes = _model().look(_state(nodes=(Node(info=info),)), None)
    assert changes[0].fields is not None
    assert changes[0].fields["gpus"][0]["info"]["state"] == "free"


def test_an_event_is_one_block_of_lines_whatever_the_data() -> None:
    data = event("patch", {"text": "a\nb\r\n\u2028<script>"}, "7-0")
    assert data.startswith(b"id: 7-0\nevent: patch\ndata: {")
    assert data.endswith(b"\n\n")
    assert data.count(b"\n") == 4


# ---- sessions ----


def _sessions(clock: ManualClock, *, token: bool = True) -> PageSessions:
    held = Token(id="t", sha256="", owner=OWNER, role="viewer", created_wall_ms=0)
    state = msgspec.structs.replace(State(), tokens=Map({"t": held} if token else {}))
    return PageSessions(lambda: state, clock, b"secret", "http://127.0.0.1:1")


ANA = Identity(owner=Owner(workspace="w", user="ana", token_id="t"), role="viewer")


def _login(sessions: PageSessions) -> str:
    return sessions.redeem(sessions.new_link(ANA).partition("token=")[2])


def test_a_link_works_for_five_minutes() -> None:
    clock = ManualClock()
    sessions = _sessions(clock)
    late = sessions.new_link(ANA).partition("token=")[2]
    clock.advance(LINK_LIFETIME_MS)
    with pytest.raises(AuthError, match="five minutes"):
        sessions.redeem(late)


def test_a_cookie_of_one_replica_is_good_at_another() -> None:
    clock = ManualClock()
    assert _sessions(clock).identity(_login(_sessions(clock))).owner.user == "ana"


def test_a_cookie_ends_after_twelve_hours_without_a_visit_and_seven_days_with() -> None:
    clock = ManualClock()
    sessions = _sessions(clock)
    cookie = _login(sessions)
    assert sessions.renewed(cookie) is None
    for _ in range(ABSOLUTE_MS // IDLE_MS):
        clock.advance(IDLE_MS)
        sessions.identity(cookie)
        cookie = sessions.renewed(cookie) or cookie
    clock.advance(1)
    with pytest.raises(AuthError, match="signed out"):
        sessions.identity(cookie)


def test_an_unvisited_cookie_ends_after_twelve_hours() -> None:
    clock = ManualClock()
    sessions = _sessions(clock)
    cookie = _login(sessions)
    clock.advance(IDLE_MS + 1)
    with pytest.raises(AuthError, match="signed out"):
        sessions.identity(cookie)


@pytest.mark.parametrize("position", [0, 2, -1])
def test_a_changed_cookie_is_worth_nothing(position: int) -> None:
    sessions = _sessions(ManualClock())
    letters = list(_login(sessions))
    letters[position] = "x" if letters[position] != "x" else "y"
    for changed in ("".join(letters), "".join(letters) + "x", "a.b.c.d"):
        with pytest.raises(AuthError, match="not signed in"):
            sessions.identity(changed)


def test_a_cookie_of_a_revoked_token_is_worth_nothing() -> None:
    clock = ManualClock()
    with pytest.raises(AuthError, match="revoked"):
        _sessions(clock, token=False).identity(_login(_sessions(clock)))
