"""What somebody who is not signed in is told to do next, by the page and by its JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest
from starlette.requests import Request
from starlette.routing import Route

from phalanx.core.clock import ManualClock
from phalanx.core.errors import AuthError
from phalanx_control.service.auth import Identity
from phalanx_control.state.model import Owner, State
from phalanx_control.web.app import STATIC, Pages
from phalanx_control.web.guard import Guard
from phalanx_control.web.sessions import PageSessions

ANA = Identity(owner=Owner(workspace="w", user="ana", token_id="t"), role="viewer")
NEW_LINK = "run `gpuctl open` for a new link"


@pytest.fixture
def sessions() -> PageSessions:
    return PageSessions(State, ManualClock(), b"secret", "http://127.0.0.1:1")


def _scope(path: str, query: str = "") -> dict[str, Any]:
    headers = [(b"host", b"127.0.0.1:1")]
    return {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "headers": headers}


def test_a_used_link_leads_to_the_command_that_makes_links(sessions: PageSessions) -> None:
    answer = asyncio.run(Pages(sessions, STATIC).login(Request(_scope("/login", "token=used"))))
    assert answer.status_code == 401
    assert NEW_LINK in bytes(answer.body).decode()


def test_a_cookie_that_is_not_good_leads_to_it_too(sessions: PageSessions) -> None:
    with pytest.raises(AuthError) as caught:
        sessions.identity("t.0.0.wrong")
    assert caught.value.hint == NEW_LINK


def test_json_for_a_stranger_names_the_same_command(sessions: PageSessions) -> None:
    sent: list[MutableMapping[str, Any]] = []

    async def never(*_: Any) -> Any:
        raise AssertionError("the guard lets nobody in")

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    nobody_asks: Any = None
    guard = Guard(
        never,
        [Route("/api/v1/calls", never)],
        hosts=frozenset({"127.0.0.1"}),
        controller=nobody_asks,
        sessions=sessions,
        clock=ManualClock(),
    )
    asyncio.run(guard(_scope("/api/v1/calls"), never, send))
    assert sent[0]["status"] == 401
    assert json.loads(sent[1]["body"])["hint"] == "run `gpuctl open` for a link that signs you in"
