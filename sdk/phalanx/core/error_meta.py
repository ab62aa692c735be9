"""A call's error as a frame's meta carries it: a JSON object; the pickled exception travels beside it, as the body."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any, cast

from phalanx.core.messages import ErrorInfo, RankFailure
from phalanx.core.states import Cause

_ERROR_FIELDS = {f.name for f in fields(ErrorInfo)} - {"cause", "ranks", "pickled", "kinds"}
_RANK_FIELDS = {f.name for f in fields(RankFailure)}


def error_to_meta(error: ErrorInfo) -> dict[str, Any]:
    """Returns the error without its pickled exception."""
    data = asdict(error)
    del data["pickled"]
    return data


def error_from_meta(data: object, *, otherwise: Cause) -> ErrorInfo:
    """Reads what `error_to_meta` wrote; what is missing or unknown gets its default, an unknown cause ``otherwise``."""
    values = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    try:
        cause = Cause(str(values.get("cause")))
    except ValueError:
        cause = otherwise
    ranks = tuple(_rank_from_meta(r) for r in values.get("ranks") or ())
    kinds = tuple(str(kind) for kind in values.get("kinds") or ())
    return ErrorInfo(cause=cause, ranks=ranks, kinds=kinds, **{k: v for k, v in values.items() if k in _ERROR_FIELDS})


def _rank_from_meta(data: object) -> RankFailure:
    values = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    return RankFailure(**{k: v for k, v in values.items() if k in _RANK_FIELDS})
