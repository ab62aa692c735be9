"""Phalanx: serverless functions that need gangs of GPUs.

    @phalanx.gpu_function(gpus=8)
    def train(steps: int) -> float: ...

    train.remote(1000)

Names are loaded when first used, so that importing this package is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx import webhooks
    from phalanx.app import App
    from phalanx.call import Call
    from phalanx.context import Context, current
    from phalanx.core.errors import (
        AuthError,
        CallCancelledError,
        CallError,
        CallTimeoutError,
        ConnectionFailedError,
        CostLimitError,
        GangHangError,
        GangStartError,
        GetTimeoutError,
        InvalidSpecError,
        NoBlobStoreError,
        NotBuiltError,
        NotFoundError,
        OutcomeUnknownError,
        OutOfMemoryError,
        PhalanxError,
        PoisonError,
        RankDiedError,
        RemoteError,
        SerializationError,
        UnschedulableError,
        VersionError,
    )
    from phalanx.environment import env
    from phalanx.function import Function, gpu_function
    from phalanx.gathering import gather
    from phalanx.logs import LogLine
    from phalanx.map_call import MapCall, MapProgress
    from phalanx.map_verbs import ForEachSummary
    from phalanx.retries import Retries
    from phalanx.streaming import AsyncItems, Items

_ERRORS = (
    "AuthError",
    "CallCancelledError",
    "CallError",
    "CallTimeoutError",
    "ConnectionFailedError",
    "CostLimitError",
    "GangHangError",
    "GangStartError",
    "GetTimeoutError",
    "InvalidSpecError",
    "NoBlobStoreError",
    "NotBuiltError",
    "NotFoundError",
    "OutOfMemoryError",
    "OutcomeUnknownError",
    "PhalanxError",
    "PoisonError",
    "RankDiedError",
    "RemoteError",
    "SerializationError",
    "UnschedulableError",
    "VersionError",
)
_HOMES = {
    "App": "phalanx.app",
    "AsyncItems": "phalanx.streaming",
    "Call": "phalanx.call",
    "Context": "phalanx.context",
    "ForEachSummary": "phalanx.map_verbs",
    "Function": "phalanx.function",
    "Items": "phalanx.streaming",
    "LogLine": "phalanx.logs",
    "Retries": "phalanx.retries",
    "MapCall": "phalanx.map_call",
    "MapProgress": "phalanx.map_call",
    "current": "phalanx.context",
    "env": "phalanx.environment",
    "gather": "phalanx.gathering",
    "gpu_function": "phalanx.function",
    "webhooks": "phalanx.webhooks",
    **dict.fromkeys(_ERRORS, "phalanx.core.errors"),
}

__all__ = [
    "App",
    "AsyncItems",
    "AuthError",
    "Call",
    "CallCancelledError",
    "CallError",
    "CallTimeoutError",
    "ConnectionFailedError",
    "Context",
    "CostLimitError",
    "ForEachSummary",
    "Function",
    "GangHangError",
    "GangStartError",
    "GetTimeoutError",
    "InvalidSpecError",
    "Items",
    "LogLine",
    "MapCall",
    "MapProgress",
    "NoBlobStoreError",
    "NotBuiltError",
    "NotFoundError",
    "OutOfMemoryError",
    "OutcomeUnknownError",
    "PhalanxError",
    "PoisonError",
    "RankDiedError",
    "RemoteError",
    "Retries",
    "SerializationError",
    "UnschedulableError",
    "VersionError",
    "current",
    "env",
    "gather",
    "gpu_function",
    "webhooks",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'phalanx' has no attribute {name!r}")
    import importlib

    module = importlib.import_module(home)
    value = module if home == f"phalanx.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
