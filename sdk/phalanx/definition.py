"""What a handle stands for: a decorated function, a deployed name, or an id; and how each becomes a target.

A target is what calls are sent to. A decorated function becomes one by uploading what the cluster lacks of its code
and registering it; equal code is uploaded once.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from phalanx import context
from phalanx.core.clock import SystemClock
from phalanx.core.errors import ConnectionFailedError, InvalidSpecError, SerializationError
from phalanx.core.messages import CallTerms
from phalanx.core.spec import CodeRef, FunctionSpec, Retrying
from phalanx.loader import Bundle, bundle_for, dump_callable, python_version
from phalanx.options import changed_resources

if TYPE_CHECKING:
    from collections.abc import Generator

    from phalanx.client import Client

RESOLVE_AGAIN_MS = 2000
"""A deployed name is looked up again after this long, so that a new version is soon in use."""


_AS_USUAL = Retrying()
_NO_TERMS = CallTerms()


@dataclass(frozen=True, slots=True)
class Target:
    """A registered function, and the terms of the calls to it. ``returns`` is "rank0" or "all", "" where it is not
    known here; ``retries`` and ``retrying`` are the function's; ``timeout_ms`` 0 stands for the function's.
    """

    function_id: str
    name: str
    returns: str = ""
    direct: bool = True
    """False where only the control plane may run it, because it counts retries, gives each call a gang of its own, runs
    it again after it gave way or tells somebody of its end, or for terms of the call's own."""
    retries: int = 0
    retrying: Retrying = _AS_USUAL
    timeout_ms: int = 0
    terms: CallTerms = _NO_TERMS
    streams: bool = False
    """It is a generator function: `.stream` calls it, nothing else does."""

    def refuse_stream(self) -> None:
        """Raises InvalidSpecError for a generator function."""
        if self.streams:
            raise InvalidSpecError(f"{self.name} is a generator function", hint=f"for item in {self.name}.stream(...)")

    def refuse_plain(self) -> None:
        """Raises InvalidSpecError for what is no generator function, and for terms that no stream can keep."""
        if not self.streams:
            raise InvalidSpecError(
                f"{self.name} is not a generator function: it yields nothing", hint=f"use {self.name}.remote(...)"
            )
        if self.terms.idempotency_key or self.terms.retries:
            asked = "idempotency_key" if self.terms.idempotency_key else "retries"
            raise InvalidSpecError(f"{asked} does not fit .stream: a stream has one reader, and is not run again")


class Definition(Protocol):
    """``name`` is for messages."""

    @property
    def name(self) -> str: ...

    def target(self, client: Client) -> Target:
        """Returns where calls go, registering first what is not registered. May do I/O."""
        ...

    def ready(self, client: Client) -> Target | None:
        """Returns the target where that needs no I/O."""
        ...


class Decorated:
    """A function of this process."""

    def __init__(self, func: Callable[..., Any], spec: FunctionSpec, owner: object) -> None:
        self.func = func
        self.spec = spec
        self.owner = owner
        self._lock = threading.RLock()
        self._client: Client | None = None
        self._data = b""
        self._target: Target | None = None
        self.variants: dict[FunctionSpec, Decorated] = {self.spec: self}

    @property
    def name(self) -> str:
        return self.spec.name

    def variant(self, changes: Mapping[str, Any]) -> Decorated:
        """Returns the same function with other resources; equal ones are one and the same, and registered once."""
        spec = changed_resources(self.spec, changes)
        with self._lock:
            found = self.variants.get(spec)
            if found is None:
                found = self.variants[spec] = Decorated(self.func, spec, self.owner)
                found.variants = self.variants
            return found

    def unregistered(self) -> Target:
        """Returns what is known of the target before it is one: all but its id."""
        return target_of("", self.spec)

    def target(self, client: Client) -> Target:
        found = self.ready(client)
        if found is not None:
            return found
        with self._lock:
            spec, blobs = self.code()
            data = blobs[spec.code.callable_blob]
            if self._target is None or self._client is not client or data != self._data:
                client.put_missing(blobs)
                self._target = target_of(client.register(spec), spec)
                self._client, self._data = client, data
            return self._target

    def ready(self, client: Client) -> Target | None:
        """In a notebook names may be bound anew at any time, so there the code is looked at before every call."""
        return self._target if self._client is client and not _is_interactive() else None

    def code(self) -> tuple[FunctionSpec, dict[str, bytes]]:
        """Returns the spec with its code, and the blobs that it names. Raises SerializationError."""
        with _dumping(self):
            data = dump_callable(self.func, owner=self.owner)
        bundle = _Bundles.of(self.func)
        name = f"sha256:{hashlib.sha256(data).hexdigest()}"
        code = CodeRef(callable_blob=name, bundle_blob=bundle.blob, python=python_version())
        blobs = {name: data, bundle.blob: bundle.data} if bundle.data else {name: data}
        return replace(self.spec, code=code), blobs


class Deployed:
    """``app/name``, whichever version is deployed; with ``changes`` a function of its own with other resources."""

    def __init__(self, app: str, function: str, changes: Mapping[str, Any] | None = None) -> None:
        self.app = app
        self.function = function
        self._changes = dict(changes or {})
        self._variants: dict[str, Deployed] = {}
        self._clock = SystemClock()
        self._known: tuple[Client, Target, int] | None = None

    @property
    def name(self) -> str:
        return f"{self.app}/{self.function}"

    def target(self, client: Client) -> Target:
        found = self.ready(client)
        if found is None:
            view, spec = client.resolve(self.app, self.function)
            function_id = view.function_id
            if self._changes:
                spec = changed_resources(spec, self._changes)
                function_id = client.register(spec)
            found = target_of(function_id, spec)
            self._known = (client, found, self._clock.monotonic_ms())
        return found

    def ready(self, client: Client) -> Target | None:
        known = self._known
        if known is None or known[0] is not client:
            return None
        return known[1] if self._clock.monotonic_ms() - known[2] < RESOLVE_AGAIN_MS else None

    def variant(self, changes: Mapping[str, Any]) -> Deployed:
        """Returns the same function with other resources, on top of those that were changed before."""
        changed_resources(FunctionSpec(name=self.function), changes)
        changes = {**self._changes, **changes}
        return self._variants.setdefault(repr(sorted(changes.items())), Deployed(self.app, self.function, changes))


class ById:
    """A handle that came in a closure or an argument."""

    def __init__(self, target: Target) -> None:
        self._target = target

    @property
    def name(self) -> str:
        return self._target.name

    def target(self, client: Client | None = None) -> Target:
        """Needs nobody: a rank that knows no cluster may pass the handle on."""
        del client
        return self._target

    def ready(self, client: Client) -> Target | None:
        return self.target(client)


class Own:
    """A function's handle inside that very function, in a gang: its id is that of the running call."""

    def __init__(self, known: Target) -> None:
        self._known = known
        self._target: Target | None = None

    @property
    def name(self) -> str:
        return self._known.name

    def target(self, client: Client) -> Target:
        if self._target is None:
            call_id = context.current().call_id
            if not call_id:
                raise ConnectionFailedError(f"{self.name} is not running in a gang, so its id is not known here")
            self._target = replace(self._known, function_id=client.get_call(call_id).function_id)
        return self._target

    def ready(self, client: Client) -> Target | None:
        del client
        return self._target


def target_of(function_id: str, spec: FunctionSpec) -> Target:
    limits = spec.limits
    return Target(
        function_id,
        spec.name,
        spec.returns,
        limits.retries == 0 and not spec.fresh and not spec.webhook and not spec.preemptible,
        terms=CallTerms(webhook=spec.webhook) if spec.webhook else _NO_TERMS,
        retries=limits.retries,
        retrying=limits.retrying,
        streams=spec.streams,
    )


def being_dumped(definition: Definition) -> bool:
    """True inside the pickling of ``definition`` itself.

    Raises SerializationError when another one's pickling, started by this one's, has come back to it.
    """
    stack = _DUMPING.stack
    if definition not in stack:
        return False
    if stack[-1] is not definition:
        names = ", ".join(d.name for d in stack)
        raise SerializationError(
            f"these functions refer to each other: {names}",
            hint="put them into a module of their own, or deploy them and use Function.from_name",
        )
    return True


def is_dumping() -> bool:
    """True while the code of any function is pickled on this thread."""
    return bool(_DUMPING.stack)


class _Dumping(threading.local):
    """The definitions whose pickling is under way on this thread, outermost first."""

    def __init__(self) -> None:
        self.stack: list[Definition] = []


_DUMPING = _Dumping()


@contextmanager
def _dumping(definition: Definition) -> Generator[None]:
    stack = _DUMPING.stack
    stack.append(definition)
    try:
        yield
    finally:
        stack.pop()


class _Bundles:
    """The last bundle, kept for the other functions of the same program."""

    lock = threading.Lock()
    key: tuple[object, ...] = ()
    bundle = Bundle(b"")

    @classmethod
    def of(cls, func: Callable[..., Any]) -> Bundle:
        """A program that was changed on disk since its start still ships what it was when first asked for."""
        second = SystemClock().monotonic_ms() // 1000 if _is_interactive() else 0
        key = (getattr(func, "__module__", ""), len(sys.modules), second)
        with cls.lock:
            if key != cls.key:
                cls.bundle = bundle_for(func)
                cls.key = key
            return cls.bundle


def _is_interactive() -> bool:
    return not hasattr(sys.modules.get("__main__"), "__file__")
