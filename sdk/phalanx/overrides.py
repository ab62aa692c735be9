"""`Function.options`: what single calls ask for instead of what their function says, checked when it is said.

What the same gang can do (timeout, retries, deadline, key, webhook) travels with each call. What needs another gang
makes a variant of the function: one of its own, of the same code. Calls with terms of their own go through the control
plane, which counts and remembers; a timeout is the gang's to keep.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from phalanx.core.clock import SystemClock
from phalanx.core.errors import InvalidSpecError
from phalanx.core.messages import CallTerms
from phalanx.core.spec import MAX_NAME_CHARS, Retrying
from phalanx.definition import Decorated, Definition, Deployed, Target
from phalanx.durations import Duration, positive
from phalanx.options import Fabric, check_names, webhook_url
from phalanx.retries import Retries, RetryOn, class_names, merged

if TYPE_CHECKING:
    from phalanx.client import Client


class CallOptions(TypedDict, total=False):
    """What `Function.options` takes."""

    timeout: Duration
    retries: int | Retries
    retry_on: RetryOn
    deadline: Duration | datetime
    idempotency_key: str
    webhook: str
    gpus: float | tuple[int, int]
    gpu: str | None
    min_memory_gb: float | None
    isolation: Literal["node"] | None
    spread: bool
    fabric: Fabric
    prefer_fabric: Fabric
    startup_timeout: Duration
    grace: Duration
    hold_on_failure: Duration | None


_OF_THE_CALL = ("timeout", "retries", "retry_on", "deadline", "idempotency_key", "webhook")
_OF_THE_GANG = (
    "gpus",
    "gpu",
    "min_memory_gb",
    "isolation",
    "spread",
    "fabric",
    "prefer_fabric",
    "startup_timeout",
    "grace",
    "hold_on_failure",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The part that travels with each call; None, 0 and "" ask for nothing."""

    timeout_ms: int = 0
    retries: int | Retries | None = None
    retry_on: tuple[str, ...] | None = None
    deadline_in_ms: int = 0
    deadline_wall_ms: int = 0
    key: str = ""
    webhook: str = ""

    def of(self, target: Target) -> Target:
        """Returns the target as these calls see it. Raises InvalidSpecError where the two do not fit."""
        number, retrying = merged(target.retries, target.retrying, self.retries, self.retry_on)
        own = self.retries is not None or self.retry_on is not None
        terms = CallTerms(
            own_retries=own,
            retries=number if own else 0,
            retrying=retrying if own else Retrying(),
            deadline_in_ms=self.deadline_in_ms,
            deadline_wall_ms=self.deadline_wall_ms,
            idempotency_key=self.key,
            webhook=self.webhook or target.terms.webhook,
        )
        direct = target.direct and terms == target.terms
        return replace(target, timeout_ms=self.timeout_ms, terms=terms, direct=direct)


class Overridden:
    """A function whose calls have terms of their own."""

    def __init__(self, inner: Definition, asked: Asked) -> None:
        self.inner = inner
        self.asked = asked

    @property
    def name(self) -> str:
        return self.inner.name

    def target(self, client: Client) -> Target:
        return self.asked.of(self.inner.target(client))

    def ready(self, client: Client) -> Target | None:
        found = self.inner.ready(client)
        return None if found is None else self.asked.of(found)


def overridden(definition: Definition, options: CallOptions) -> Definition:
    """Returns what stands for the function with these options; later ones win over those given before.

    Raises TypeError for a name that does not exist, InvalidSpecError for a value that is wrong.
    """
    given = cast("dict[str, Any]", options)
    check_names(f"{definition.name}.options(…)", given, (*_OF_THE_CALL, *_OF_THE_GANG))
    asked = definition.asked if isinstance(definition, Overridden) else Asked()
    inner = definition.inner if isinstance(definition, Overridden) else definition
    changes = {name: given[name] for name in _OF_THE_GANG if name in given}
    if changes:
        inner = _variant(inner, changes)
    if any(name in given for name in _OF_THE_CALL):
        asked = replace(asked, **_asked(given))
        if isinstance(inner, Decorated):
            asked.of(inner.unregistered())
    return inner if asked == Asked() else Overridden(inner, asked)


def refuse_key(definition: Definition, verb: str) -> None:
    """Raises InvalidSpecError where a verb that makes many calls is asked for with one key for all."""
    if isinstance(definition, Overridden) and definition.asked.key:
        raise InvalidSpecError(
            f"idempotency_key={definition.asked.key!r} stands for one call, and {verb} makes one for each input",
            hint="spawn them one by one, each with a key of its own",
        )


def _variant(definition: Definition, changes: dict[str, Any]) -> Definition:
    if isinstance(definition, (Decorated, Deployed)):
        return definition.variant(changes)
    raise InvalidSpecError(
        f"{', '.join(changes)}: {definition.name} is known by its id only, so its resources cannot be changed here",
        hint="pass options(...) of the function itself, or use Function.from_name",
    )


def _asked(given: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if "timeout" in given:
        out["timeout_ms"] = max(1, round(positive("timeout", given["timeout"]) * 1000))
    if "retries" in given:
        merged(0, Retrying(), given["retries"], None)
        out["retries"] = given["retries"]
    if "retry_on" in given:
        out["retry_on"] = class_names(given["retry_on"])
    if "deadline" in given:
        out |= _deadline(given["deadline"])
    if "idempotency_key" in given:
        out["key"] = _key(given["idempotency_key"])
    if "webhook" in given:
        out["webhook"] = webhook_url(given["webhook"])
    return out


def _deadline(value: Duration | datetime) -> dict[str, int]:
    """A duration begins anew with each call; a time is the same for all."""
    if not isinstance(value, datetime):
        return {"deadline_in_ms": max(1, round(positive("deadline", value) * 1000)), "deadline_wall_ms": 0}
    if value.tzinfo is None:
        raise InvalidSpecError(
            f"deadline={value.isoformat()}: a time needs its time zone",
            hint="use datetime.now(timezone.utc) + timedelta(minutes=10), or give a duration such as '10m'",
        )
    wall_ms = round(value.timestamp() * 1000)
    now_ms = SystemClock().wall_ms()
    if wall_ms <= now_ms:
        now = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="seconds")
        raise InvalidSpecError(f"deadline={value.isoformat()} is over: it is {now}")
    return {"deadline_in_ms": 0, "deadline_wall_ms": wall_ms}


def _key(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARS or not value.isprintable():
        raise InvalidSpecError(
            f"idempotency_key={value!r:.60}: give text of 1 to {MAX_NAME_CHARS} printable characters, as 'order-17'"
        )
    return value
