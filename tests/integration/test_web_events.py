"""Live events of the page: snapshot, patches, and going on at another replica without a gap."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from phalanx_proto.v1 import control_pb2
from tests.support.control_plane import Client, client_of, running_replica
from tests.support.store import StoreServer

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Event:
    id: str
    name: str
    data: dict[str, Any]


class Stream:
    """An EventSource, by hand."""

    def __init__(self, response: httpx2.Response) -> None:
        self.headers = response.headers
        self._lines = response.aiter_lines()

    async def next(self) -> Event:
        """Returns the next event."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(TIMEOUT_S):
            async for line in self._lines:
                if not line and "event" in fields:
                    return Event(fields.get("id", ""), fields["event"], json.loads(fields["data"]))
                key, _, value = line.partition(": ")
                fields[key] = value
        raise AssertionError("the stream has ended")

    async def until(self, call_id: str, state: str) -> list[Event]:
        """Returns the events up to the patch that shows the call in ``state``."""
        seen: list[Event] = []
        while True:
            seen.append(await self.next())
            for subject, fields in seen[-1].data.get("calls", []):
                if subject == call_id and fields.get("state") == state:
                    return seen

    async def ends(self) -> bool:
        async with asyncio.timeout(TIMEOUT_S):
            async for _ in self._lines:
                pass
        return True


@asynccontextmanager
async def events_of(page: str, token: str, last_id: str = "") -> AsyncGenerator[Stream]:
    headers = {"authorization": f"Bearer {token}"}
    if last_id:
        headers["last-event-id"] = last_id
    timeout = httpx2.Timeout(TIMEOUT_S)
    async with (
        httpx2.AsyncClient(base_url=page, headers=headers, timeout=timeout) as browser,
        browser.stream("GET", "/api/v1/events") as response,
    ):
        response.raise_for_status()
        yield Stream(response)


async def test_a_page_sees_the_present_and_then_what_changes(admin: Client) -> None:
    function_id = await admin.register()
    first = await admin.submit(function_id)
    async with events_of(admin.page, admin.token) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        snapshot = await _snapshot_with(stream, first)
        assert snapshot.data["server"]["role"] == "leader"
        second = await admin.submit(function_id)
        await stream.until(second, "queued")
        await admin.ask("CancelCall", control_pb2.CallId(call_id=second))
        patch = (await stream.until(second, "cancelled"))[-1]
        fields = dict(patch.data["calls"])[second]
        assert "function" not in fields
        assert patch.data["now_ms"] > 0


async def test_a_page_of_another_workspace_is_told_nothing_of_it(admin: Client) -> None:
    function_id = await admin.register()
    other = await admin.token_for("other", "viewer")
    async with events_of(admin.page, other) as theirs, events_of(admin.page, admin.token) as ours:
        assert (await theirs.next()).data["calls"] == []
        call_id = await admin.submit(function_id)
        newest = (await ours.until(call_id, "queued"))[-1]
        while (event := await theirs.next()).id != newest.id:
            assert not event.data.get("calls")
        assert not event.data.get("calls")


async def test_a_page_goes_on_where_it_was(admin: Client) -> None:
    function_id = await admin.register()
    async with events_of(admin.page, admin.token) as stream:
        first = await admin.submit(function_id)
        last_id = (await _seen(stream, first)).id
    missed = await admin.submit(function_id)
    async with events_of(admin.page, admin.token, last_id) as stream:
        events = await stream.until(missed, "queued")
        assert {event.name for event in events} == {"patch"}


async def test_an_unknown_id_is_answered_with_reset(admin: Client) -> None:
    for last_id in ("1-1", "nonsense", "9999999999999-0"):
        async with events_of(admin.page, admin.token, last_id) as stream:
            assert (await stream.next()).name == "reset"


async def test_another_replica_goes_on_without_gap_or_double(store: StoreServer, tmp_path: Path, cell: str) -> None:
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        a = await first.enter_async_context(running_replica(store, tmp_path, cell=cell, replica_id="a"))
        b = await second.enter_async_context(running_replica(store, tmp_path, cell=cell, replica_id="b"))
        token = (tmp_path / "token").read_text()
        at_b = await second.enter_async_context(client_of(b, token))
        function_id = await at_b.register()
        async with events_of(b.addresses()["page"], token) as stream:
            seen = await _seen(stream, await at_b.submit(function_id))
        between = await at_b.submit(function_id)
        async with events_of(a.addresses()["page"], token, seen.id) as stream:
            events = await stream.until(between, "queued")
            ids = [event.id for event in events]
            assert seen.id not in ids
            assert ids == sorted(set(ids))


async def test_a_new_leader_tells_every_page_to_look_afresh(store: StoreServer, tmp_path: Path, cell: str) -> None:
    async with AsyncExitStack() as leaders, AsyncExitStack() as others:
        await leaders.enter_async_context(running_replica(store, tmp_path, cell=cell, replica_id="a"))
        standby = await others.enter_async_context(running_replica(store, tmp_path, cell=cell, replica_id="b"))
        async with events_of(standby.addresses()["page"], (tmp_path / "token").read_text()) as stream:
            assert (await stream.next()).name == "snapshot"
            await leaders.aclose()
            while (event := await stream.next()).name != "reset":
                pass
            assert event.name == "reset"


async def test_a_page_is_closed_when_its_token_is_revoked(admin: Client) -> None:
    made = await admin.ask("CreateToken", control_pb2.CreateTokenRequest(user="ben", role="viewer"))
    async with events_of(admin.page, made.token) as stream:
        await stream.next()
        await admin.ask("RevokeToken", control_pb2.RevokeTokenRequest(token_id=made.token_id))
        assert await stream.ends()


async def _snapshot_with(stream: Stream, call_id: str) -> Event:
    """The picture is drawn twice a second: a call of just now is in it, or in the first patch."""
    event = await stream.next()
    assert event.name == "snapshot"
    if call_id not in {call["call_id"] for call in event.data["calls"]}:
        await stream.until(call_id, "queued")
    return event


async def _seen(stream: Stream, call_id: str) -> Event:
    """Returns the first event that shows the call."""
    while True:
        event = await stream.next()
        shown = {call["call_id"] if isinstance(call, dict) else call[0] for call in event.data.get("calls", [])}
        if call_id in shown and event.id:
            return event
