"""The page's JSON: the same questions as the clients' RPCs, through the same `Queries`. Reads only."""

# ruff: noqa: ARG002 (handlers have Starlette's signature)
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from phalanx.core.errors import InvalidSpecError
from phalanx_control.service.caller import caller
from phalanx_control.service.follow import Follower
from phalanx_control.service.queries import MAX_LIMIT, Queries
from phalanx_control.service.server_info import AboutServer
from phalanx_control.web.page_model import plain, shown_call
from phalanx_control.web.sse import LiveHub

_encode = msgspec.json.Encoder().encode


class Api:
    """Handlers of /api/v1."""

    def __init__(self, queries: Queries, follower: Follower, about: AboutServer, hub: LiveHub) -> None:
        self._queries = queries
        self._follower = follower
        self._about = about
        self._hub = hub

    async def overview(self, request: Request) -> Response:
        nodes = self._queries.nodes()
        gpus = Counter(str(gpu.info.state) for node in nodes for gpu in node.gpus)
        calls = Counter(view.state for view in await self._queries.calls(limit=MAX_LIMIT))
        total = await self._queries.costs("", "")
        return _json(
            {
                "server": plain(self._about.view()),
                "nodes": len(nodes),
                "gpus": dict(gpus),
                "calls": dict(calls),
                "gangs": len(self._queries.gangs()),
                "cost": _plain_all(total),
            }
        )

    async def calls(self, request: Request) -> Response:
        query = request.query_params
        views = await self._queries.calls(
            state=query.get("state", ""),
            function=query.get("function", ""),
            limit=_limit(query.get("limit", "")),
            ended_too=query.get("all", "") in ("1", "true"),
        )
        return _json({"calls": _plain_all(shown_call(view) for view in views)})

    async def call(self, request: Request) -> Response:
        view = await self._follower.view(await self._queries.find(request.path_params["call_id"]))
        return _json(plain(shown_call(view)))

    async def nodes(self, request: Request) -> Response:
        return _json({"nodes": _plain_all(self._queries.nodes())})

    async def gangs(self, request: Request) -> Response:
        return _json({"gangs": _plain_all(self._queries.gangs())})

    async def cost(self, request: Request) -> Response:
        query = request.query_params
        costs = await self._queries.costs(query.get("call_id", ""), query.get("group_by", ""))
        return _json({"costs": _plain_all(costs)})

    async def events(self, request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        last_id = request.headers.get("last-event-id", "")
        stream = self._hub.stream(caller().owner.workspace, last_id, request.state.still_allowed)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


def _limit(text: str) -> int:
    if text and not text.isdecimal():
        raise InvalidSpecError(f"limit {text[:40]!r}: use a whole number up to {MAX_LIMIT}")
    return int(text or "0")


def _plain_all(views: Iterable[Any]) -> list[dict[str, Any]]:
    return [plain(view) for view in views]


def _json(value: dict[str, Any]) -> Response:
    return Response(_encode(value), media_type="application/json")
