"""`@phalanx.gpu_function` and the handle that it makes: `.remote`, `.spawn`, `.map`, `.for_each`, `.local`
and their kin.

Calling the handle plainly runs the function here, as if it were not decorated. Arguments are checked against the
signature before anything is sent.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, ParamSpec, TypeVar, Unpack, overload

from phalanx.core.errors import InvalidSpecError, SerializationError
from phalanx.core.serialization import Packed, pack_arguments
from phalanx.core.spec import EnvSpec, FunctionSpec, check_name
from phalanx.definition import ById, Decorated, Definition, Deployed, Own, Target, being_dumped, is_dumping, target_of
from phalanx.durations import Duration
from phalanx.loader import function_of, is_offered_by_name
from phalanx.map_verbs import ForEach, Map, SpawnMap, StarMap
from phalanx.options import Fabric, Options, check_names, spec_for
from phalanx.overrides import Asked, CallOptions, Overridden, overridden
from phalanx.retries import Retries, RetryOn
from phalanx.verbs import Local, Remote, Spawn, StreamVerb

if TYPE_CHECKING:
    from phalanx.app import App

P = ParamSpec("P")
R = TypeVar("R")


class Function(Generic[P, R]):
    """A function that runs on a gang. Made by `gpu_function`, `App.function` and `Function.from_name`."""

    __name__: str

    def __init__(self, definition: Definition, wrapped: Callable[P, R] | None = None) -> None:
        self.definition = definition
        self.wrapped = wrapped
        self.prefix: tuple[Any, ...] = ()
        self._check = _Arity(wrapped) if wrapped is not None else None
        self._remote: Remote[P, R] = Remote(self)
        self._stream: StreamVerb[P, R] = StreamVerb(self)
        self._spawn: Spawn[P, R] = Spawn(self)
        self._map: Map[R] = Map(self)
        if wrapped is not None:
            functools.update_wrapper(self, _named(wrapped), updated=())

    @classmethod
    def from_name(cls, app: str, name: str) -> Function[..., Any]:
        """Returns the handle of a deployed function. It is looked up at the first call, which raises NotFoundError."""
        check_name("app name", app)
        check_name("function name", name)
        return Function(Deployed(app, name))

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def spec(self) -> FunctionSpec | None:
        """What the decorator asked for, with other resources where `options` gave them; None for a function that is
        known by name or id only.
        """
        definition = self.definition.inner if isinstance(self.definition, Overridden) else self.definition
        return definition.spec if isinstance(definition, Decorated) else None

    @property
    def remote(self) -> Remote[P, R]:
        """``f.remote(x)`` runs the function on a gang and returns its value, or raises what it raised."""
        return self._remote

    @property
    def spawn(self) -> Spawn[P, R]:
        """``f.spawn(x)`` returns a `Call` as soon as it is accepted; any process finds it again by its id."""
        return self._spawn

    @property
    def map(self) -> Map[R]:
        """``for y in f.map(xs)``: a call for each input, side by side; results in order, or as they come."""
        return self._map

    @property
    def starmap(self) -> StarMap[R]:
        """``f.starmap(pairs)`` is `map` for inputs that are tuples of arguments."""
        return StarMap(self)

    @property
    def for_each(self) -> ForEach[R]:
        """``f.for_each(xs)`` runs a call for each input and returns how many succeeded and failed."""
        return ForEach(self)

    @property
    def spawn_map(self) -> SpawnMap[R]:
        """``f.spawn_map(xs)`` is a map that outlives this program; it returns a `MapCall`."""
        return SpawnMap(self)

    @property
    def stream(self) -> StreamVerb[P, R]:
        """``for item in f.stream(x)``: what a generator function yields, as it is made."""
        return self._stream

    @property
    def local(self) -> Local[P, R]:
        """``f.local(x)`` runs the function here, as a plain ``f(x)`` does."""
        return Local(self)

    def options(self, **options: Unpack[CallOptions]) -> Function[P, R]:
        """Returns this function with other terms for the calls that are made through what is returned.

        timeout, retries, retry_on: instead of the function's. deadline: a duration from each call's submission, or an
        aware datetime; a call that has not ended by then ends as a CallTimeoutError, whatever it waits for.
        idempotency_key: within 24 h the same key of the same function is the same call, with the same outcome; with
        other arguments it is refused. webhook: instead of the function's. Such calls go through the control plane, to
        the same warm gangs.
        gpus, gpu, min_memory_gb, isolation, spread, fabric, prefer_fabric, startup_timeout, grace, hold_on_failure: a
        variant of the function, with gangs of its own.

        Raises TypeError for a name that does not exist, and InvalidSpecError for a wrong value.
        """
        return self.with_definition(overridden(self.definition, options))

    def with_definition(self, definition: Definition) -> Function[P, R]:
        made: Function[P, R] = Function(definition, self.wrapped)
        made.prefix = self.prefix
        return made

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function here."""
        return self.run_here(*args, **kwargs)

    def run_here(self, *args: Any, **kwargs: Any) -> R:
        """Runs the function in this process. Raises InvalidSpecError where its code is not here."""
        if self.wrapped is None:
            raise InvalidSpecError(
                f"{self.name} is known by its name only, its code is not here", hint="use .remote(...)"
            )
        call: Callable[..., R] = self.wrapped
        return call(*self.prefix, *args, **kwargs)

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, stream: bool = False) -> Packed:
        """Returns the arguments as bytes. Raises TypeError where they do not fit the signature, and InvalidSpecError
        where the function is known not to be called this way."""
        spec = self.spec
        if spec is not None and spec.streams is not stream:
            known = target_of("", spec)
            known.refuse_plain() if stream else known.refuse_stream()
        args = (*self.prefix, *args)
        if self._check is not None:
            self._check(args, kwargs)
        return pack_arguments(args, kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Function[..., R]:
        """A decorated method, taken from an instance, gets the instance as its first argument."""
        if instance is None or self.wrapped is None:
            return self
        bound: Function[..., R] = Function(self.definition, self.wrapped)
        bound.prefix = (instance,)
        return bound

    def __reduce__(self) -> tuple[Any, ...]:
        """A handle travels as the function's id; inside its own function, as that function's own.

        With the code of a function travels that of the functions which it uses, so that it can call them plainly.
        """
        if isinstance(self.definition, Overridden):
            return _asking, (self.with_definition(self.definition.inner), self.definition.asked)
        if isinstance(self.definition, Decorated) and being_dumped(self.definition):
            return _own, (self.definition.unregistered(), self._code())
        if isinstance(self.definition, ById):
            return _by_id, (self.definition.target(), self.prefix, self._code())
        from phalanx.connection import connect

        return _by_id, (self.definition.target(connect()), self.prefix, self._code())

    def _code(self) -> Code | None:
        if self.wrapped is None or not is_dumping():
            return None
        owner = self.definition.owner if isinstance(self.definition, Decorated) else None
        return Code.named(self.wrapped) if is_offered_by_name(self.wrapped, owner) else Code(self.wrapped)

    def __repr__(self) -> str:
        return f"<phalanx.Function {self.name}>"


@overload
def gpu_function(func: Callable[P, R], /) -> Function[P, R]: ...


@overload
def gpu_function(
    *,
    gpus: float | tuple[int, int] = ...,
    gpu: str | None = ...,
    cpus: float | None = ...,
    memory_gb: float | None = ...,
    nodes: int | None = ...,
    min_memory_gb: float | None = ...,
    isolation: Literal["node"] | None = ...,
    spread: bool = ...,
    fabric: Fabric = ...,
    prefer_fabric: Fabric = ...,
    backend: Literal["auto", "nccl", "gloo"] = ...,
    launch: Literal["per_gpu", "per_node", "single"] = ...,
    returns: Literal["rank0"] = ...,
    timeout: Duration | None = ...,
    startup_timeout: Duration = ...,
    hang_timeout: Duration | None = ...,
    hold_on_failure: Duration | None = ...,
    grace: Duration = ...,
    disconnect_grace: Duration | None = ...,
    retries: int | Retries = ...,
    retry_on: RetryOn | None = ...,
    scaledown_window: Duration = ...,
    reuse: bool = ...,
    env: EnvSpec | None = ...,
    name: str | None = ...,
    webhook: str | None = ...,
    priority: int = ...,
    preemptible: bool = ...,
    app: App | None = ...,
) -> Decorator: ...


@overload
def gpu_function(
    *,
    gpus: float | tuple[int, int] = ...,
    gpu: str | None = ...,
    cpus: float | None = ...,
    memory_gb: float | None = ...,
    nodes: int | None = ...,
    min_memory_gb: float | None = ...,
    isolation: Literal["node"] | None = ...,
    spread: bool = ...,
    fabric: Fabric = ...,
    prefer_fabric: Fabric = ...,
    backend: Literal["auto", "nccl", "gloo"] = ...,
    launch: Literal["per_gpu", "per_node", "single"] = ...,
    returns: Literal["all"],
    timeout: Duration | None = ...,
    startup_timeout: Duration = ...,
    hang_timeout: Duration | None = ...,
    hold_on_failure: Duration | None = ...,
    grace: Duration = ...,
    disconnect_grace: Duration | None = ...,
    retries: int | Retries = ...,
    retry_on: RetryOn | None = ...,
    scaledown_window: Duration = ...,
    reuse: bool = ...,
    env: EnvSpec | None = ...,
    name: str | None = ...,
    webhook: str | None = ...,
    priority: int = ...,
    preemptible: bool = ...,
    app: App | None = ...,
) -> AllDecorator: ...


def gpu_function(  # noqa: PLR0913  the public decorator
    func: Any = None,
    /,
    *,
    gpus: float | tuple[int, int] = 1,
    gpu: str | None = None,
    cpus: float | None = None,
    memory_gb: float | None = None,
    nodes: int | None = None,
    min_memory_gb: float | None = None,
    isolation: Literal["node"] | None = None,
    spread: bool = False,
    fabric: Fabric = "any",
    prefer_fabric: Fabric = "any",
    backend: Literal["auto", "nccl", "gloo"] = "auto",
    launch: Literal["per_gpu", "per_node", "single"] = "per_gpu",
    returns: Literal["rank0", "all"] = "rank0",
    timeout: Duration | None = None,
    startup_timeout: Duration = 300,
    hang_timeout: Duration | None = None,
    hold_on_failure: Duration | None = None,
    grace: Duration = 3,
    disconnect_grace: Duration | None = None,
    retries: int | Retries = 0,
    retry_on: RetryOn | None = None,
    scaledown_window: Duration = 60,
    reuse: bool = True,
    env: EnvSpec | None = None,
    name: str | None = None,
    webhook: str | None = None,
    priority: int = 0,
    preemptible: bool = False,
    app: App | None = None,
    **unknown: Any,
) -> Any:
    """Makes a function run on a gang of GPUs.

    gpus: GPUs of the whole gang; 0 for a CPU function, a fraction for a part of one GPU; two numbers, as (4, 16), for
    as many between them as can be had at once: `phalanx.current().world_size` says how many that were.
    gpu: the model, as "H100".
    cpus, memory_gb: limits per rank (10^9 bytes). min_memory_gb: what each GPU has at least, as 80.
    nodes: machines to spread over, evenly; without, as few as can be. spread: as many as can be instead, evenly.
    isolation: "node" keeps everybody else off the gang's nodes while it is there; it goes only where nobody is.
    fabric: what must connect all GPUs of the gang: "nvlink", one NVLink domain; "rail", the nodes are in one of the
    smallest domains of the cell's fabric (`gpuctl topo fabric`). It waits until it has that. prefer_fabric: has that
    where it can be had at once, and else takes what there is. backend: "auto" is NCCL on
    GPUs and gloo elsewhere. launch: processes to start, one "per_gpu", one "per_node", or a "single" one.
    returns: rank 0's value, or "all" for the list by rank.
    Durations are seconds or text such as "10m". timeout: of one execution. startup_timeout: until the gang is ready.
    hang_timeout: how long a call may go without a progress mark, a collective, output or a returning rank before its
    gang is ended with a GangHangError that names the odd rank; half of it after, a stall is told. Without one, a stall
    is told after five minutes and nothing is ended. hold_on_failure: how long the gang of a call that failed is kept,
    for `gpuctl shell` and `stack`; the caller has the failure at once. `gpuctl release` ends it sooner.
    grace: between SIGTERM and SIGKILL. disconnect_grace: how long a gang outlives the loss of its control plane (300).
    scaledown_window: how long an idle gang stays warm. reuse: False gives each call a gang of its own, which ends with
    it; otherwise calls run in the same processes, which are put back in order between them.
    retries: further attempts after a user exception, a timeout or running out of memory, as a number (1 s doubled each
    time between them) or `phalanx.Retries`; with 0 the function runs at most once. retry_on: only after these exception
    classes, or dotted names, and what is derived from them. Functions with retries go through the control plane.
    env: made with `phalanx.env`. name: instead of the function's own. app: collects it for `gpuctl deploy`.
    webhook: the address that is told when a call has ended, signed: see `phalanx.webhooks.verify`. Such calls go
    through the control plane.
    priority: from -100 to 100, among the calls of one user: a step is worth ten minutes of waiting.
    preemptible: its gangs may be ended when others need their GPUs, and its calls run again later, which eats no
    retry; only such functions may use what is guaranteed to others (`gpuctl policy`). Their calls go through the
    control plane.

    Raises InvalidSpecError on wrong use, TypeError for an option that does not exist, and NotBuiltError for one that
    does not exist yet. `Function.options` overrides some of them for single calls.
    """
    check_names("gpu_function", unknown, (*(field.name for field in fields(Options)), "app"))
    options = Options(
        gpus=gpus,
        gpu=gpu,
        cpus=cpus,
        memory_gb=memory_gb,
        nodes=nodes,
        min_memory_gb=min_memory_gb,
        isolation=isolation,
        spread=spread,
        fabric=fabric,
        prefer_fabric=prefer_fabric,
        backend=backend,
        launch=launch,
        returns=returns,
        timeout=timeout,
        startup_timeout=startup_timeout,
        hang_timeout=hang_timeout,
        hold_on_failure=hold_on_failure,
        grace=grace,
        disconnect_grace=disconnect_grace,
        retries=retries,
        retry_on=retry_on,
        scaledown_window=scaledown_window,
        reuse=reuse,
        env=env,
        name=name,
        webhook=webhook,
        priority=priority,
        preemptible=preemptible,
    )
    if func is not None:
        return decorate(func, options, app)
    return lambda wrapped: decorate(wrapped, options, app)  # pyright: ignore[reportUnknownLambdaType]


def decorate(func: Callable[..., Any], options: Options, app: App | None) -> Function[..., Any]:
    """Returns the handle of ``func``, entered into ``app`` where one is given."""
    if isinstance(func, Function):
        raise InvalidSpecError(f"{func.name} is decorated twice: keep one @gpu_function")
    if isinstance(func, (staticmethod, classmethod)):
        raise InvalidSpecError("put @staticmethod above @gpu_function, not below it")
    spec = spec_for(func, options, app=app.name if app is not None else "")
    function: Function[..., Any] = Function(Decorated(func, spec, owner=None), func)
    assert isinstance(function.definition, Decorated)
    function.definition.owner = function
    if app is not None:
        app.add(function)
    return function


if TYPE_CHECKING:
    from typing import Protocol

    class Decorator(Protocol):
        """What `gpu_function(...)` returns: rank 0's value comes back."""

        def __call__(self, func: Callable[P, R], /) -> Function[P, R]: ...

    class AllDecorator(Protocol):
        """With ``returns="all"``: `.remote` returns the list by rank."""

        def __call__(self, func: Callable[P, R], /) -> Function[P, list[R]]: ...


class _Arity:
    """Checks arguments against a signature, which is read at the first call: a function that is still being loaded
    has none. Plain positional calls are not bound.
    """

    def __init__(self, func: Callable[..., Any]) -> None:
        self._name = getattr(func, "__name__", type(func).__name__)
        self._func = func

    @functools.cached_property
    def _signature(self) -> inspect.Signature | None:
        try:
            return inspect.signature(self._func)
        except (ValueError, TypeError):
            return None

    @functools.cached_property
    def _counts(self) -> range:
        """How many arguments fit for certain, when they are given by position alone."""
        parameters = self._signature.parameters.values() if self._signature else ()
        plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if self._signature is None or any(p.kind not in plain for p in parameters):
            return range(0)
        return range(sum(p.default is inspect.Parameter.empty for p in parameters), len(parameters) + 1)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not kwargs and len(args) in self._counts:
            return
        if self._signature is None:
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as e:
            raise TypeError(f"{self._name}{self._shown()}: {self._unknown(kwargs) or e}") from None

    def _unknown(self, kwargs: dict[str, Any]) -> str:
        """Names an argument that the function does not have: more to the point than one that is missing for it."""
        names = [p.name for p in self._signature.parameters.values()] if self._signature is not None else []
        given = next((name for name in kwargs if name not in names), None)
        if given is None:
            return ""
        near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
        return f"it has no argument {given!r}" + (f", did you mean {near[0]!r}?" if near else "")

    def _shown(self) -> inspect.Signature | None:
        """The signature with its annotations as they were written, where they can be looked up."""
        try:
            return inspect.signature(self._func, eval_str=True)
        except Exception:  # noqa: BLE001  evaluating annotations runs user code; the plain signature does as well
            return self._signature


def _named(func: Callable[..., Any]) -> Callable[..., Any]:
    """Partials have no name of their own: their function's is used."""
    return getattr(func, "func", func) if not hasattr(func, "__name__") else func


class Code(NamedTuple):
    """A function's code inside another's: by value, or as the name that its module offers."""

    value: Callable[..., Any] | None = None
    module: str = ""
    name: str = ""

    @classmethod
    def named(cls, func: Callable[..., Any]) -> Code:
        return cls(None, func.__module__, func.__qualname__)

    def load(self) -> Callable[..., Any] | None:
        """Returns the function, or None where its module is not here."""
        if self.value is not None:
            return self.value
        try:
            return function_of(self.module, self.name)
        except (ImportError, SerializationError):
            return None


def _by_id(target: Target, prefix: tuple[Any, ...], code: Code | None) -> Function[..., Any]:
    function: Function[..., Any] = Function(ById(target), code and code.load())
    function.prefix = prefix
    return function


def _own(known: Target, code: Code | None) -> Function[..., Any]:
    return Function(Own(known), code and code.load())


def _asking(function: Function[..., Any], asked: Asked) -> Function[..., Any]:
    return function.with_definition(Overridden(function.definition, asked))
