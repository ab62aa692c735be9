"""The page: static files, sign-in, JSON and live events, as one Starlette router behind `Guard`."""

from __future__ import annotations

import html
import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from phalanx.core.clock import Clock
from phalanx.core.errors import AuthError, NotFoundError
from phalanx_control.service.ports import ControllerPort
from phalanx_control.web.api import Api
from phalanx_control.web.guard import Guard, session_cookie
from phalanx_control.web.sessions import ABSOLUTE_MS, COOKIE, PageSessions

STATIC = Path(__file__).parent / "static"
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,120}")
_HASHED = re.compile(r".*-[A-Za-z0-9]{8,}\.[a-z0-9]+(\.map)?")
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
_NO_ICON = '<link rel="icon" href="data:,">'
_NO_BUNDLE = "The page is not built. Run <code>make ui</code> in the checkout, and reload."


class Pages:
    """Handlers of everything that is not JSON."""

    def __init__(self, sessions: PageSessions, static: Path) -> None:
        self._sessions = sessions
        self._static = static

    async def index(self, request: Request) -> Response:
        page = self._static / "index.html"
        answer: Response = FileResponse(page, media_type=_TYPES[".html"]) if page.is_file() else _plain_page(_NO_BUNDLE)
        answer.headers["cache-control"] = "no-cache"
        cookie = session_cookie(request.headers)
        renewed = self._sessions.renewed(cookie) if cookie else None
        if renewed:
            set_session(answer, renewed)
        return answer

    async def file(self, request: Request) -> Response:
        name: str = request.path_params["path"]
        path = self._static / name
        kind = _TYPES.get(path.suffix)
        if not _FILE_NAME.fullmatch(name) or kind is None or not path.is_file():
            raise NotFoundError(f"no file {name[:80]!r}")
        caching = "public, max-age=31536000, immutable" if _HASHED.fullmatch(name) else "no-cache"
        return FileResponse(path, media_type=kind, headers={"cache-control": caching})

    async def login(self, request: Request) -> Response:
        """Signs in once per link. The answer is a page that moves on by itself: a redirect from another site would
        arrive without the SameSite=Strict cookie.
        """
        if request.method != "GET":
            return Response(status_code=204)
        try:
            cookie = self._sessions.redeem(request.query_params.get("token", ""))
        except AuthError as e:
            return _plain_page(html.escape(f"{e}: {e.hint}."), 401)
        answer = _plain_page('Signed in. <a href="/">Go to the page.</a>', refresh=True)
        set_session(answer, cookie)
        return answer


def make_app(
    api: Api,
    sessions: PageSessions,
    *,
    controller: ControllerPort,
    clock: Clock,
    hosts: frozenset[str],
    static: Path = STATIC,
) -> ASGIApp:
    """Returns the application. ``hosts`` are the names in Host headers that it answers to, without ports."""
    found = routes(api, Pages(sessions, static))
    router = Router(found, redirect_slashes=False)
    return Guard(router, found, hosts=hosts, controller=controller, sessions=sessions, clock=clock)


def routes(api: Api, pages: Pages) -> list[Route]:
    """Returns every route; each has a row in `service.permissions.ROUTES`."""
    return [
        Route("/login", pages.login),
        Route("/", pages.index),
        Route("/static/{path:path}", pages.file),
        Route("/api/v1/overview", api.overview),
        Route("/api/v1/calls", api.calls),
        Route("/api/v1/calls/{call_id}", api.call),
        Route("/api/v1/nodes", api.nodes),
        Route("/api/v1/gangs", api.gangs),
        Route("/api/v1/cost", api.cost),
        Route("/api/v1/events", api.events),
    ]


def set_session(answer: Response, cookie: str) -> None:
    answer.set_cookie(COOKIE, cookie, max_age=ABSOLUTE_MS // 1000, path="/", httponly=True, samesite="strict")


def _plain_page(text: str, status: int = 200, *, refresh: bool = False) -> HTMLResponse:
    onward = '<meta http-equiv="refresh" content="0;url=/">' if refresh else ""
    head = f'<meta charset="utf-8"><title>Phalanx</title>{_NO_ICON}{onward}'
    return HTMLResponse(f'<!doctype html><html lang="en">{head}<p>{text}</p></html>', status)
