"""The decorator's options, checked at decoration: wrong use fails there, with the fix in the message. Pure."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from phalanx.core.errors import InvalidSpecError
from phalanx.core.spec import FABRICS, EnvSpec, FunctionSpec, Limits, Resources, Retrying, check_name
from phalanx.core.webhooks import check_url
from phalanx.durations import Duration, positive, seconds
from phalanx.retries import Retries, RetryOn, merged

DEFAULT_DISCONNECT_GRACE_S = 300.0
Fabric = Literal["nvlink", "rail", "any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What stands in the decorator's brackets."""

    gpus: float | tuple[int, int] = 1
    gpu: str | None = None
    cpus: float | None = None
    memory_gb: float | None = None
    nodes: int | None = None
    min_memory_gb: float | None = None
    isolation: Literal["node"] | None = None
    spread: bool = False
    fabric: Fabric = "any"
    prefer_fabric: Fabric = "any"
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    launch: Literal["per_gpu", "per_node", "single"] = "per_gpu"
    returns: Literal["rank0", "all"] = "rank0"
    timeout: Duration | None = None
    startup_timeout: Duration = 300
    hang_timeout: Duration | None = None
    hold_on_failure: Duration | None = None
    grace: Duration = 3
    disconnect_grace: Duration | None = None
    retries: int | Retries = 0
    retry_on: RetryOn | None = None
    scaledown_window: Duration = 60
    reuse: bool = True
    env: EnvSpec | None = None
    name: str | None = None
    webhook: str | None = None
    priority: int = 0
    preemptible: bool = False


def spec_for(func: Callable[..., Any], options: Options, *, app: str = "") -> FunctionSpec:
    """Returns the function's spec, still without its code. Raises InvalidSpecError."""
    check_callable(func)
    if options.env is not None and not isinstance(options.env, EnvSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSpecError(f"env={options.env!r}: make it with phalanx.env(pip=[...], preload=[...], vars={{...}})")
    limits = _limits(options)
    if is_generator(func) and limits.retries:
        raise InvalidSpecError(
            f"retries={options.retries}: {default_name(func)} is a generator, "
            f"and a stream that broke off is not run again",
            hint="leave retries out",
        )
    return FunctionSpec(
        name=default_name(func) if options.name is None else options.name,
        module=getattr(func, "__module__", None) or "",
        app=app,
        resources=_resources(options),
        limits=limits,
        env=options.env or EnvSpec(),
        backend=options.backend,
        launch=options.launch,
        returns=options.returns,
        streams=is_generator(func),
        fresh=not _flag("reuse", options.reuse),
        webhook=webhook_url(options.webhook),
        priority=_whole("priority", options.priority),
        preemptible=_preemptible(func, options),
    )


def _preemptible(func: Callable[..., Any], options: Options) -> bool:
    wanted = _flag("preemptible", options.preemptible)
    if wanted and is_generator(func):
        raise InvalidSpecError(
            f"preemptible=True: {default_name(func)} is a generator, and a stream that broke off is not run again",
            hint="leave preemptible out",
        )
    return wanted


def check_callable(func: object) -> None:
    """Refuses by name what could never run as a call."""
    if isinstance(func, type):
        raise InvalidSpecError(f"{func.__qualname__} is a class: decorate a function that makes and uses it")
    if not callable(func):
        raise InvalidSpecError(
            f"gpu_function needs a function, not {func!r}", hint="write @phalanx.gpu_function(gpus=4)"
        )


def is_generator(func: Callable[..., Any]) -> bool:
    """Says whether calls of ``func`` yield items, synchronously or not. Decorators that name what they wrap are looked
    through."""
    inner = inspect.unwrap(func)
    call = inner if inspect.isroutine(inner) else getattr(inner, "func", getattr(inner, "__call__", inner))  # noqa: B004
    return inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call)


def default_name(func: object) -> str:
    """Returns the name users see: without the functions that it was defined in."""
    inner = getattr(func, "func", func)
    name = getattr(inner, "__qualname__", None) or type(func).__qualname__
    return name.rpartition("<locals>.")[2]


def _resources(options: Options) -> Resources:
    return Resources(
        **_gpus(options.gpus),
        gpu=_text("gpu", options.gpu),
        cpus=_number("cpus", options.cpus or 0),
        memory_gb=_number("memory_gb", options.memory_gb or 0),
        nodes=0 if options.nodes is None else _at_least_one("nodes", options.nodes),
        min_memory_gb=_min_memory(options.min_memory_gb),
        isolation=_isolation(options.isolation),
        spread=_flag("spread", options.spread),
        fabric=_fabric("fabric", options.fabric),
        prefer_fabric=_fabric("prefer_fabric", options.prefer_fabric),
    )


def _gpus(value: object) -> dict[str, Any]:
    """Returns how many there must be, and may be; 0: no more than that."""
    if not isinstance(value, tuple | list):
        return {"gpus": _number("gpus", value), "max_gpus": 0}
    both = tuple(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if len(both) != 2 or any(isinstance(each, bool) or not isinstance(each, int) for each in both):
        raise InvalidSpecError(f"gpus={value!r}: give a number, or two whole ones: the least and the most, as (4, 16)")
    least, most = both
    return {"gpus": least, "max_gpus": 0 if least == most else most}


def _min_memory(value: object) -> float:
    return 0 if value is None else _number("min_memory_gb", value)


def _isolation(value: object) -> str:
    if value not in (None, "node"):
        raise InvalidSpecError(f"isolation={value!r}: use 'node', or leave it out")
    return "" if value is None else "node"


def _fabric(what: str, value: object) -> str:
    """Returns "" for "any", which asks for nothing."""
    if value not in ("any", *FABRICS):
        legal = ", ".join(map(repr, (*FABRICS, "any")))
        raise InvalidSpecError(f"{what}={value!r}: use one of {legal}")
    return "" if value == "any" else str(value)


def _limits(options: Options) -> Limits:
    disconnect = options.disconnect_grace
    retries, retrying = merged(0, Retrying(), options.retries, options.retry_on)
    return Limits(
        timeout_s=0 if options.timeout is None else positive("timeout", options.timeout),
        startup_timeout_s=positive("startup_timeout", options.startup_timeout),
        grace_s=seconds("grace", options.grace),
        disconnect_grace_s=DEFAULT_DISCONNECT_GRACE_S
        if disconnect is None
        else seconds("disconnect_grace", disconnect),
        scaledown_window_s=seconds("scaledown_window", options.scaledown_window),
        hang_timeout_s=0 if options.hang_timeout is None else positive("hang_timeout", options.hang_timeout),
        hold_on_failure_s=_hold(options.hold_on_failure),
        retries=retries,
        retrying=retrying,
    )


def _hold(value: Duration | None) -> float:
    return 0 if value is None else positive("hold_on_failure", value)


def check_names(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises TypeError for an option that does not exist, naming the one that was meant where there is one alike."""
    known = tuple(known)
    for name in given:
        if name not in known:
            alike = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            meant = f"did you mean {alike[0]}?" if alike else f"there are {', '.join(known)}"
            raise TypeError(f"{where} has no option {name!r}: {meant}")


def changed_resources(spec: FunctionSpec, changes: Mapping[str, Any]) -> FunctionSpec:
    """Returns the spec with other resources, ``startup_timeout``, ``grace`` or ``hold_on_failure``.

    Raises InvalidSpecError.
    """
    resources = {name: _RESOURCES[name](value) for name, value in changes.items() if name in _RESOURCES}
    if "gpus" in changes:
        resources |= _gpus(changes["gpus"])
    limits: dict[str, Any] = {}
    if "startup_timeout" in changes:
        limits["startup_timeout_s"] = positive("startup_timeout", changes["startup_timeout"])
    if "grace" in changes:
        limits["grace_s"] = seconds("grace", changes["grace"])
    if "hold_on_failure" in changes:
        limits["hold_on_failure_s"] = _hold(changes["hold_on_failure"])
    return replace(spec, resources=replace(spec.resources, **resources), limits=replace(spec.limits, **limits))


def webhook_url(value: object) -> str:
    """Returns the address; "" for None. Raises InvalidSpecError for what no webhook can go to."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidSpecError(f"webhook={value!r:.80}: give an address such as 'https://example.com/hooks/phalanx'")
    check_url(value)
    return value


def _number(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:  # noqa: PLR0124
        raise InvalidSpecError(f"{what}={value!r}: give a number")
    return value


def _flag(what: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidSpecError(f"{what}={value!r}: give True or False")
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


_RESOURCES: dict[str, Callable[[object], object]] = {
    "gpu": partial(_text, "gpu"),
    "min_memory_gb": _min_memory,
    "isolation": _isolation,
    "spread": partial(_flag, "spread"),
    "fabric": partial(_fabric, "fabric"),
    "prefer_fabric": partial(_fabric, "prefer_fabric"),
}
"""How the resources are read that `.options` may change."""
