"""PhalanxError → HTTP: RFC 9457 problem documents with the error's code and hint."""

from __future__ import annotations

from starlette.responses import JSONResponse

from phalanx.core import errors
from phalanx.wire_errors import NotAllowedError

_STATUS_OF: dict[type[errors.PhalanxError], int] = {
    errors.InvalidSpecError: 400,
    NotAllowedError: 403,
    errors.AuthError: 401,
    errors.NotFoundError: 404,
    errors.ConnectionFailedError: 503,
    errors.PhalanxError: 500,
}
_TITLES = {
    400: "Bad request",
    401: "Not signed in",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    421: "Wrong host",
    500: "Internal error",
    503: "Not available",
}


def problem(status: int, detail: str, *, code: str, hint: str = "") -> JSONResponse:
    """Returns a problem document."""
    body = {"type": "about:blank", "title": _TITLES[status], "status": status, "detail": detail, "code": code}
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse({**body, "hint": hint}, status, headers, media_type="application/problem+json")


def problem_of(error: errors.PhalanxError) -> JSONResponse:
    """Returns the problem document of an error."""
    status = next(_STATUS_OF[cls] for cls in type(error).__mro__ if cls in _STATUS_OF)
    return problem(status, str(error), code=error.code, hint=error.hint)
