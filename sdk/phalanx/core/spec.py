"""What a function needs: plain data, checked when it is made.

Every message says what is wrong, with which value, and what to do. Nothing here touches the network or torch.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field

from phalanx.core.errors import InvalidSpecError
from phalanx.core.webhooks import check_url

MAX_NAME_CHARS = 200
MAX_RETRIES = 100
MAX_RETRY_ON = 32
MAX_CLASS_CHARS = 300
MAX_DELAY_S = 86_400.0
FABRICS = ("nvlink", "rail")
"""What may be required to connect a gang. "nvlink": all GPUs are in one NVLink domain; "rail": all nodes are in one of
the smallest domains of the cell's fabric, where the ports of one rail meet."""
INLINE_BODY_BYTES = 64 * 1024
"""Arguments and results up to this size ride inside messages; larger ones go to the blob store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What each call of a function occupies.

    ``gpus`` counts GPUs of the whole gang: an integer, 0 for CPU functions, or a fraction below 1 for
    single-rank functions. ``cpus`` and ``memory_gb`` (10^9 bytes) are per rank; 0 means no limit.
    ``nodes`` 0 means as few as possible. ``node`` names the only node that will do: for looking after it.
    ``min_memory_gb`` (10^9 bytes) is what each GPU has at least. ``isolation`` "node" keeps everybody else off the
    gang's nodes. ``max_gpus``: an elastic gang gets as many between ``gpus`` and that as can be had when it is placed.
    ``spread`` takes as many nodes as can be had instead of as few. ``fabric`` says what must connect all
    of the gang's GPUs, ``prefer_fabric`` what does where that can be had.
    """

    gpus: float = 1
    gpu: str = ""
    cpus: float = 0
    memory_gb: float = 0
    nodes: int = 0
    node: str = ""
    min_memory_gb: float = 0
    isolation: str = ""
    spread: bool = False
    fabric: str = ""
    prefer_fabric: str = ""
    max_gpus: int = 0

    @property
    def world_size(self) -> int:
        """Ranks of the gang: one per whole GPU, one for CPU functions and fractions; of an elastic one the fewest."""
        return max(1, int(self.gpus))

    def __post_init__(self) -> None:
        _as_floats(self, "gpus", "cpus", "memory_gb", "min_memory_gb")
        _as_int(self, "nodes")
        _as_int(self, "max_gpus")
        if self.gpus < 0 or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise InvalidSpecError(
                f"gpus={self.gpus:g}: use a whole number of GPUs, 0 for a CPU function, or a fraction below 1 "
                f"such as 0.5 for a single-rank function"
            )
        if self.cpus < 0 or self.memory_gb < 0:
            raise InvalidSpecError(
                f"cpus={self.cpus:g}, memory_gb={self.memory_gb:g}: give positive numbers, or leave them out"
            )
        if self.node and self.nodes > 1:
            raise InvalidSpecError(f"nodes={self.nodes!r} on node {self.node!r} alone: leave one of the two out")
        self._check_elastic()
        if self.nodes < 0 or (self.nodes and self.world_size % self.nodes):
            raise InvalidSpecError(
                f"nodes={self.nodes!r} does not divide gpus={self.gpus:g}: every node of a gang gets the same number "
                f"of GPUs; use a divisor of {self.world_size}"
            )
        self._check_where()

    def _check_elastic(self) -> None:
        """Also draws the bounds together to what so many nodes can share."""
        if not self.max_gpus:
            return
        asked = f"gpus=({self.gpus:g}, {self.max_gpus})"
        if self.gpus < 1 or self.max_gpus <= self.gpus:
            raise InvalidSpecError(f"{asked}: give whole numbers, the first from 1 on and below the second")
        if self.nodes > 0:
            least, most = -(-int(self.gpus) // self.nodes) * self.nodes, self.max_gpus // self.nodes * self.nodes
            if most < least:
                raise InvalidSpecError(
                    f"nodes={self.nodes} divides no number of GPUs from {self.gpus:g} to {self.max_gpus}: every node "
                    f"of a gang gets the same number of GPUs"
                )
            object.__setattr__(self, "gpus", float(least))
            object.__setattr__(self, "max_gpus", most if most > least else 0)

    def _check_where(self) -> None:
        if self.min_memory_gb < 0 or (self.min_memory_gb and not self.gpus):
            raise InvalidSpecError(
                f"min_memory_gb={self.min_memory_gb:g} with gpus={self.gpus:g}: give what each GPU has, as 80, "
                f"for functions that ask for GPUs"
            )
        if self.isolation not in ("", "node"):
            raise InvalidSpecError(f"isolation={self.isolation!r}: use 'node', or leave it out")
        if self.spread and (max(self.gpus, self.max_gpus) < 2 or self.nodes or self.node):
            raise InvalidSpecError(
                f"spread=True with gpus={self.gpus:g}, nodes={self.nodes}: it takes as many nodes as can be, for two "
                f"GPUs or more; leave it or nodes out"
            )
        for name, value in (("fabric", self.fabric), ("prefer_fabric", self.prefer_fabric)):
            if value not in ("", *FABRICS):
                raise InvalidSpecError(f"{name}={value!r}: use one of {', '.join(map(repr, FABRICS))}, or leave it out")
            if value and self.gpus < 1:
                raise InvalidSpecError(f"{name}={value!r} with gpus={self.gpus:g}: it is for gangs of whole GPUs")
        if self.fabric and self.prefer_fabric:
            raise InvalidSpecError(
                f"fabric={self.fabric!r}, prefer_fabric={self.prefer_fabric!r}: one must be had, the other need not; "
                f"leave one of the two out"
            )


_LATER_RESOURCES = ("node", "min_memory_gb", "isolation", "spread", "fabric", "prefer_fabric", "max_gpus")
"""No part of a function's id while they ask for nothing: ids are older than they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """Which failures are tried again, and after how long: ``initial_delay_s``, times ``backoff`` with each further one,
    at most ``max_delay_s``. ``retry_on`` names classes with their modules; empty: whatever eats retries.
    """

    backoff: float = 2
    initial_delay_s: float = 1
    max_delay_s: float = 60
    retry_on: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _as_floats(self, "backoff", "initial_delay_s", "max_delay_s")
        object.__setattr__(self, "retry_on", tuple(self.retry_on))
        if not 1 <= self.backoff <= 100:
            raise InvalidSpecError(f"backoff={self.backoff:g}: give a number from 1 (the same wait each time) to 100")
        if not 0 <= self.initial_delay_s <= self.max_delay_s <= MAX_DELAY_S:
            raise InvalidSpecError(
                f"initial_delay={self.initial_delay_s:g}, max_delay={self.max_delay_s:g}: give seconds, the first not "
                f"above the second, and that at most {MAX_DELAY_S:g} (one day)"
            )
        if len(self.retry_on) > MAX_RETRY_ON or any(not 0 < len(name) <= MAX_CLASS_CHARS for name in self.retry_on):
            raise InvalidSpecError(
                f"retry_on has {len(self.retry_on)} names: give at most {MAX_RETRY_ON}, of 1 to {MAX_CLASS_CHARS} "
                f"characters; a base class stands for all of its subclasses"
            )

    def delay_ms(self, failed: int) -> int:
        """Returns the wait before the next attempt, after ``failed`` ones besides the last."""
        grown = self.initial_delay_s * self.backoff ** min(failed, MAX_RETRIES)
        return round(min(self.max_delay_s, grown) * 1000)


_TIME_LIMITS = (
    "timeout_s",
    "startup_timeout_s",
    "grace_s",
    "disconnect_grace_s",
    "scaledown_window_s",
    "hang_timeout_s",
    "hold_on_failure_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits in seconds; 0 means none. ``grace_s`` lies between SIGTERM and SIGKILL."""

    timeout_s: float = 0
    startup_timeout_s: float = 300
    grace_s: float = 3
    disconnect_grace_s: float = 300
    scaledown_window_s: float = 60
    retries: int = 0
    retrying: Retrying = field(default_factory=Retrying)
    hang_timeout_s: float = 0
    """How long nothing of a call may go on before its gang is ended."""
    hold_on_failure_s: float = 0
    """How long the gang of a call that failed is kept for people to look at."""

    def __post_init__(self) -> None:
        _as_floats(self, *_TIME_LIMITS)
        _as_int(self, "retries")
        for name in _TIME_LIMITS:
            value = getattr(self, name)
            if not 0 <= value <= 30 * 86400:
                raise InvalidSpecError(
                    f"{name.removesuffix('_s')}={value:g}: give seconds between 0 and 2,592,000 (30 days)"
                )
        check_retries(self.retries)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """The environment that ranks are forked from: pip requirements, modules imported before the fork, variables."""

    pip: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def digest(self) -> str:
        """Names the zygote: equal digests share one. Variables are set after the fork and do not count."""
        if not self.pip and not self.preload:
            return ""
        text = json.dumps([self.pip, self.preload])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRef:
    """Where the callable is: a blob with its pickled reference or value, and the source bundle it imports from."""

    callable_blob: str = ""
    bundle_blob: str = ""
    python: str = ""
    """Major.minor of the interpreter that pickled the callable, compared before anything is loaded."""


MAX_PRIORITY = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSpec:
    """A function as the control plane knows it. Equal specs have equal ids, so registering twice is harmless."""

    name: str
    module: str = ""
    app: str = ""
    resources: Resources = field(default_factory=Resources)
    limits: Limits = field(default_factory=Limits)
    env: EnvSpec = field(default_factory=EnvSpec)
    code: CodeRef = field(default_factory=CodeRef)
    backend: str = "auto"
    launch: str = "per_gpu"
    returns: str = "rank0"
    streams: bool = False
    """It is a generator function: its calls are streams, with one reader each, and are never run twice."""
    fresh: bool = False
    """Each call gets a gang of its own, which ends with it."""
    webhook: str = ""
    """Who is told of the end of each call."""
    priority: int = 0
    """Among the calls of one user: a step is worth ten minutes of waiting."""
    preemptible: bool = False
    """Its gangs give way to others, and its calls run again later."""

    def __post_init__(self) -> None:
        for field_name, value, legal in (
            ("backend", self.backend, ("auto", "nccl", "gloo")),
            ("launch", self.launch, ("per_gpu", "per_node", "single")),
            ("returns", self.returns, ("rank0", "all")),
        ):
            if value not in legal:
                raise InvalidSpecError(f"{field_name}={value!r}: use one of {', '.join(map(repr, legal))}")
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise InvalidSpecError(
                f"priority={self.priority}: give a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}, 0 is the usual"
            )
        if self.resources.spread and self.launch == "single":
            raise InvalidSpecError("spread=True with launch='single': one process is on one node; leave one out")
        check_name("function name", self.name)
        if self.app:
            check_name("app name", self.app)
        if self.webhook:
            check_url(self.webhook)

    @property
    def function_id(self) -> str:
        """A content hash over everything that changes what a call does."""
        values = asdict(self)
        if not self.webhook:
            del values["webhook"]
        for name in _LATER_RESOURCES:
            if not values["resources"][name]:
                del values["resources"][name]
        if self.limits.retrying == Retrying():
            del values["limits"]["retrying"]
        for name in ("hang_timeout_s", "hold_on_failure_s"):
            if not values["limits"][name]:
                del values["limits"][name]
        for name in ("streams", "fresh", "priority", "preemptible"):
            if not values[name]:
                del values[name]
        text = json.dumps(values, sort_keys=True, default=list)
        return "f-" + hashlib.sha256(text.encode()).hexdigest()[:26]

    @property
    def world_size(self) -> int:
        """Processes that the platform starts: one per GPU, one per node, or a single one."""
        if self.launch == "per_gpu":
            return self.resources.world_size
        return max(1, self.resources.nodes) if self.launch == "per_node" else 1


def check_retries(retries: int) -> None:
    """Raises InvalidSpecError for a number of retries that is too large, or below zero."""
    if not 0 <= retries <= MAX_RETRIES:
        raise InvalidSpecError(f"retries={retries!r}: give a whole number between 0 and {MAX_RETRIES}")


def _as_floats(record: Resources | Limits | Retrying, *names: str) -> None:
    """Makes ``1`` and ``1.0`` one value, so that they do not make two functions of one."""
    for name in names:
        value = getattr(record, name)
        if not isinstance(value, int | float):
            raise InvalidSpecError(f"{name.removesuffix('_s')}={value!r}: give a number")
        object.__setattr__(record, name, float(value))


def _as_int(record: Resources | Limits, name: str) -> None:
    value = getattr(record, name)
    if not isinstance(value, int | float) or value % 1:
        raise InvalidSpecError(f"{name}={value!r}: give a whole number")
    object.__setattr__(record, name, int(value))


def check_name(what: str, name: str) -> None:
    """Refuses names that are empty, too long, or hold control characters or a slash."""
    if not name or len(name) > MAX_NAME_CHARS:
        raise InvalidSpecError(f"{what} has {len(name)} characters: use 1 to {MAX_NAME_CHARS}")
    bad = sorted({c for c in name if not c.isprintable() or c in "/\\"})
    if bad or name in (".", "..") or name.startswith("-"):
        raise InvalidSpecError(
            f"{what} {name[:40]!r} is not allowed: no slashes, control characters, leading dash, '.' or '..'"
        )
