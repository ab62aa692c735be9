"""The decorator's options, checked at decoration: wrong use fails there, with the fix in the message. Pure."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from phalanx.core.errors import InvalidSpecError, NotBuiltError
from phalanx.core.spec import EnvSpec, FunctionSpec, Limits, Resources, check_name

Duration = float | str | timedelta
"""Seconds, or text such as "90s", "10m", "1h30m", "500ms"."""

DEFAULT_DISCONNECT_GRACE_S = 300.0
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What stands in the decorator's brackets."""

    gpus: float = 1
    gpu: str | None = None
    cpus: float | None = None
    memory_gb: float | None = None
    nodes: int | None = None
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    launch: Literal["per_gpu", "per_node", "single"] = "per_gpu"
    returns: Literal["rank0", "all"] = "rank0"
    timeout: Duration | None = None
    startup_timeout: Duration = 300
    hang_timeout: Duration | None = None
    grace: Duration = 3
    disconnect_grace: Duration | None = None
    retries: int = 0
    scaledown_window: Duration = 60
    env: EnvSpec | None = None
    name: str | None = None


def spec_for(func: Callable[..., Any], options: Options, *, app: str = "") -> FunctionSpec:
    """Returns the function's spec, still without its code. Raises InvalidSpecError or NotBuiltError."""
    check_callable(func)
    if options.hang_timeout is not None:
        raise NotBuiltError(
            f"hang_timeout={options.hang_timeout!r}: hang detection is not built yet",
            hint="leave hang_timeout out, and set timeout= to bound a call",
        )
    if options.env is not None and not isinstance(options.env, EnvSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSpecError(f"env={options.env!r}: make it with phalanx.env(pip=[...], preload=[...], vars={{...}})")
    return FunctionSpec(
        name=options.name or default_name(func),
        module=getattr(func, "__module__", None) or "",
        app=app,
        resources=_resources(options),
        limits=_limits(options),
        env=options.env or EnvSpec(),
        backend=options.backend,
        launch=options.launch,
        returns=options.returns,
    )


def check_callable(func: object) -> None:
    """Refuses by name what could never run as a call."""
    if isinstance(func, type):
        raise InvalidSpecError(f"{func.__qualname__} is a class: decorate a function that makes and uses it")
    if not callable(func):
        raise InvalidSpecError(
            f"gpu_function needs a function, not {func!r}", hint="write @phalanx.gpu_function(gpus=4)"
        )
    inner = inspect.unwrap(func)
    call = inner if inspect.isroutine(inner) else getattr(inner, "func", getattr(inner, "__call__", inner))  # noqa: B004
    name = default_name(func)
    if inspect.iscoroutinefunction(call):
        raise NotBuiltError(
            f"{name} is an async function, which ranks do not run yet",
            hint="write a plain function that calls asyncio.run(...) inside; callers can still use .remote.aio",
        )
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise NotBuiltError(f"{name} is a generator, and streams are not built yet", hint="return a list")


def default_name(func: object) -> str:
    """Returns the name users see: without the functions that it was defined in."""
    inner = getattr(func, "func", func)
    name = getattr(inner, "__qualname__", None) or type(func).__qualname__
    return name.rpartition("<locals>.")[2]


def seconds(what: str, value: Duration) -> float:
    """Returns a duration in seconds. Raises InvalidSpecError with examples of what is right."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:  # noqa: PLR0124
        return float(value)
    if isinstance(value, str):
        parts = _DURATION.findall(value)
        if parts and not _DURATION.sub("", value).strip():
            return sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    raise InvalidSpecError(f"{what}={value!r}: give seconds as a number, or text such as '90s', '10m', '1h30m'")


def _resources(options: Options) -> Resources:
    return Resources(
        gpus=_number("gpus", options.gpus),
        gpu=_text("gpu", options.gpu),
        cpus=_number("cpus", options.cpus or 0),
        memory_gb=_number("memory_gb", options.memory_gb or 0),
        nodes=0 if options.nodes is None else _at_least_one("nodes", options.nodes),
    )


def _limits(options: Options) -> Limits:
    disconnect = options.disconnect_grace
    return Limits(
        timeout_s=0 if options.timeout is None else _positive("timeout", options.timeout),
        startup_timeout_s=_positive("startup_timeout", options.startup_timeout),
        grace_s=seconds("grace", options.grace),
        disconnect_grace_s=DEFAULT_DISCONNECT_GRACE_S
        if disconnect is None
        else seconds("disconnect_grace", disconnect),
        scaledown_window_s=seconds("scaledown_window", options.scaledown_window),
        retries=_whole("retries", options.retries),
    )


def _positive(what: str, value: Duration) -> float:
    number = seconds(what, value)
    if number <= 0:
        raise InvalidSpecError(f"{what}={value!r}: give more than 0 seconds, or leave it out")
    return number


def _number(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:  # noqa: PLR0124
        raise InvalidSpecError(f"{what}={value!r}: give a number")
    return value


def _whole(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidSpecError(f"{what}={value!r}: give a whole number")
    return value


def _at_least_one(what: str, value: object) -> int:
    number = _whole(what, value)
    if number < 1:
        raise InvalidSpecError(f"{what}={value!r}: give a whole number from 1 on, or leave it out")
    return number


def _text(what: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidSpecError(f"{what}={value!r}: give the model's name, as 'H100', or leave it out")
    check_name(what, value)
    return value
