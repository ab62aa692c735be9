"""Stands before every route of the page: host, method, permission row, identity, and headers on every answer.

Written as plain ASGI, so that a streamed answer is not copied. A route without a row in the permission table is not
found. Only GET and HEAD exist: the page reads, and changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phalanx.core.clock import Clock
from phalanx.core.errors import AuthError, PhalanxError
from phalanx.core.ids import new_raw_id
from phalanx_control.service.auth import NOBODY, Identity, authenticate, bearer
from phalanx_control.service.caller import set_caller
from phalanx_control.service.permissions import ROUTES, Need
from phalanx_control.service.ports import ControllerPort
from phalanx_control.web.problems import problem, problem_of
from phalanx_control.web.sessions import COOKIE, PageSessions

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
SECURITY_HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
logger = logging.getLogger(__name__)


class Guard:
    """The outermost layer of the page's application."""

    def __init__(
        self,
        app: ASGIApp,
        routes: Iterable[Route],
        *,
        hosts: frozenset[str],
        controller: ControllerPort,
        sessions: PageSessions,
        clock: Clock,
    ) -> None:
        self._app = app
        self._routes = tuple(routes)
        self._hosts = hosts
        self._controller = controller
        self._sessions = sessions
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = False

        async def with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            refusal = self._refusal(scope)
            await (refusal or self._app)(scope, receive, with_headers)
        except PhalanxError as e:
            await problem_of(e)(scope, receive, with_headers)
        except Exception:
            number = new_raw_id().hex()[:12]
            logger.exception("page request failed", extra={"path": scope["path"], "error_number": number})
            if started:
                raise
            answer = problem(500, f"the control plane failed inside; its log has more under {number}", code="INTERNAL")
            await answer(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Returns the answer that ends this request here, or None; sets the caller."""
        headers = Headers(scope=scope)
        if _host_name(headers.get("host", "")) not in self._hosts:
            return problem(421, "this address is not served here", code="WRONG-HOST", hint="gpuctl status")
        need = self._need(scope)
        if need is not Need.NOTHING:
            identity = self._identify(headers)
            set_caller(identity)
            scope.setdefault("state", {})["still_allowed"] = lambda: self._identify(headers)
            if need is None:
                return problem(404, "no such page", code="NOT-FOUND")
            identity.need(need, scope["path"])
        else:
            set_caller(NOBODY)
        if scope["method"] not in ("GET", "HEAD"):
            return problem(405, "the page only reads", code="READ-ONLY", hint="use gpuctl to change things")
        return None

    def _need(self, scope: Scope) -> Need | None:
        for route in self._routes:
            if route.matches(scope)[0] is not Match.NONE:
                return ROUTES.get(route.path)
        return None

    def _identify(self, headers: Headers) -> Identity:
        if "authorization" in headers:
            return authenticate(self._controller.state, bearer(headers["authorization"]), self._clock.wall_ms())
        cookie = session_cookie(headers)
        if not cookie:
            raise AuthError("you are not signed in", hint="run `gpuctl open` for a link that signs you in")
        return self._sessions.identity(cookie)


def _host_name(header: str) -> str:
    """The name without its port: a tunnel ends at a port of its own choice, and that is no risk."""
    name, colon, port = header.lower().rpartition(":")
    return name if colon and port.isdecimal() else header.lower()


def session_cookie(headers: Headers) -> str:
    """Returns the session cookie, or nothing."""
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return ""
    return cookies[COOKIE].value if COOKIE in cookies else ""
