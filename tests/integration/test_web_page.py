"""The page's HTTP: signing in, hosts, headers, JSON, files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import httpx2
import pytest

from phalanx_control.replica import Replica
from phalanx_control.service.permissions import ROUTES, Need
from phalanx_proto.v1 import control_pb2
from tests.support.control_plane import Client, agent_of, client_of
from tests.support.wait import wait_until_async

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
CLOSED = [path.replace("{path:path}", "x.js").replace("{call_id}", "c-1") for path in ROUTES if ROUTES[path]]


@pytest.fixture
async def stranger(admin: Client) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=admin.page) as browser:
        yield browser


@pytest.fixture
async def browser(admin: Client) -> AsyncIterator[httpx2.AsyncClient]:
    async with aclosing(await admin.sign_in()) as signed_in:
        yield signed_in


async def test_every_route_but_signing_in_is_closed_to_strangers(stranger: httpx2.AsyncClient) -> None:
    assert len(CLOSED) == len(ROUTES) - 1
    for path in (*CLOSED, "/nowhere", "/api/v1/nowhere"):
        answer = await stranger.get(path)
        assert (path, answer.status_code) == (path, 401)
        assert answer.json()["code"] == "AUTH"


async def test_a_link_signs_in_once(admin: Client, stranger: httpx2.AsyncClient) -> None:
    link = (await admin.ask("CreateLoginLink")).url
    assert (await stranger.head(link)).status_code == 204
    first = await stranger.get(link)
    cookie = first.headers["set-cookie"].lower()
    assert first.status_code == 200
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert (await stranger.get("/")).status_code == 200
    again = await httpx2.AsyncClient().get(link)
    assert again.status_code == 401
    assert "set-cookie" not in again.headers


async def test_an_invented_link_or_cookie_signs_nobody_in(stranger: httpx2.AsyncClient) -> None:
    assert (await stranger.get("/login?token=guess")).status_code == 401
    assert (await stranger.get("/login")).status_code == 401
    for cookie in ("x", "a.1.2.mac", "...", "é", '"'):
        headers = [(b"cookie", f"phalanx_session={cookie}".encode())]
        assert (await stranger.get("/", headers=headers)).status_code == 401


async def test_a_cookie_dies_with_the_token_that_asked_for_the_link(admin: Client, replica: Replica) -> None:
    made = await admin.ask("CreateToken", control_pb2.CreateTokenRequest(user="ben", role="viewer"))
    async with client_of(replica, made.token) as ben, aclosing(await ben.sign_in()) as browser:
        assert (await browser.get("/api/v1/nodes")).status_code == 200
        await admin.ask("RevokeToken", control_pb2.RevokeTokenRequest(token_id=made.token_id))
        assert (await browser.get("/api/v1/nodes")).status_code == 401


async def test_a_bearer_token_opens_the_json_too(admin: Client, stranger: httpx2.AsyncClient) -> None:
    headers = {"authorization": f"Bearer {admin.token}"}
    assert (await stranger.get("/api/v1/overview", headers=headers)).status_code == 200
    assert (await stranger.get("/api/v1/overview", headers={"authorization": "Bearer px_a_b"})).status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "", "localhost."])
async def test_a_name_that_was_rebound_to_this_machine_is_not_served(browser: httpx2.AsyncClient, host: str) -> None:
    for path in ("/", "/login", "/api/v1/nodes"):
        assert (await browser.get(path, headers={"host": host})).status_code == 421


async def test_a_tunnel_may_end_at_any_port(browser: httpx2.AsyncClient) -> None:
    assert (await browser.get("/", headers={"host": "localhost:9999"})).status_code == 200


async def test_every_answer_carries_the_strict_policy(browser: httpx2.AsyncClient) -> None:
    for path in ("/", "/login", "/static/none.js", "/api/v1/nodes", "/api/v1/calls/none", "/nowhere"):
        answer = await browser.get(path)
        assert answer.headers["content-security-policy"] == CSP
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "cache-control" in answer.headers
        assert "server" not in answer.headers


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
async def test_nothing_can_be_changed_through_the_page(browser: httpx2.AsyncClient, method: str) -> None:
    for path in ("/", "/login", "/api/v1/calls", "/api/v1/calls/x"):
        answer = await browser.request(method, path)
        assert answer.status_code == 405


async def test_calls_nodes_and_cost_are_told_as_json(
    admin: Client, browser: httpx2.AsyncClient, tmp_path: Path
) -> None:
    call_id = await admin.submit(await admin.register())
    async with agent_of(admin, "n1", (tmp_path / "join").read_text()) as agent:
        await agent.begin()

        async def nodes() -> list[dict[str, object]]:
            return (await browser.get("/api/v1/nodes")).json()["nodes"]

        await wait_until_async(nodes, "the node is on the page")
    assert (await browser.get("/api/v1/calls")).json()["calls"][0]["call_id"] == call_id
    assert (await browser.get(f"/api/v1/calls/{call_id}")).json()["call_id"] == call_id
    overview = (await browser.get("/api/v1/overview")).json()
    assert (overview["nodes"], overview["server"]["role"]) == (1, "leader")
    assert (await browser.get("/api/v1/cost?group_by=function")).json()["costs"][-1]["subject"] == "total"
    assert (await browser.get("/api/v1/gangs")).status_code == 200


async def test_errors_are_problem_documents_with_code_and_hint(browser: httpx2.AsyncClient) -> None:
    answer = await browser.get("/api/v1/calls/c-none")
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["status"], problem["code"], problem["hint"]) == (404, "NOT-FOUND", "gpuctl ps --all")
    for query in ("limit=x", "limit=99999", "state=odd", "limit=-1"):
        assert (await browser.get(f"/api/v1/calls?{query}")).status_code == 400
    assert (await browser.get("/api/v1/cost?group_by=odd")).status_code == 400


async def test_another_workspaces_page_shows_none_of_it(admin: Client, replica: Replica) -> None:
    call_id = await admin.submit(await admin.register())
    token = await admin.token_for("other", "viewer")
    async with client_of(replica, token) as other, aclosing(await other.sign_in()) as browser:
        assert (await browser.get(f"/api/v1/calls/{call_id}")).status_code == 404
        assert (await browser.get("/api/v1/calls?all=1")).json()["calls"] == []


@pytest.mark.parametrize(
    "name", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "x/../../app.py", ".hidden", "a%00.js", "ui"]
)
async def test_no_file_outside_the_static_folder_is_served(browser: httpx2.AsyncClient, name: str) -> None:
    answer = await browser.get(f"/static/{name}")
    assert answer.status_code == 404


def test_the_login_route_is_the_only_open_one() -> None:
    assert [path for path, need in ROUTES.items() if need is Need.NOTHING] == ["/login"]
