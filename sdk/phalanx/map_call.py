"""`spawn_map`: many durable calls under one id that outlive the process, and their results from anywhere.

The id is all there is: it holds how many calls there are, and the ids of the calls follow from it. So nothing grows
with the number of inputs here, and any process that knows the id can ask.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from phalanx import aio
from phalanx.call import Call, Twin
from phalanx.client import Client
from phalanx.core.errors import CallCancelledError, InvalidSpecError
from phalanx.core.ids import id_raw, id_text, new_raw_id
from phalanx.core.serialization import Packed
from phalanx.core.states import CallState
from phalanx.definition import Target
from phalanx.giving_up import STOPS
from phalanx.inputs import Inputs
from phalanx.pipelining import Job, pipelined
from phalanx.runner import Runner, current

R = TypeVar("R")

ASK_AT_ONCE = 1000
UNKNOWN = "unknown"
"""The state of a call that was never accepted, or is older than the history."""
_WAIT_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class MapProgress:
    """How many of a map's calls are in which state; ``ended`` counts those in a terminal one."""

    calls: int
    ended: int
    states: dict[str, int] = field(default_factory=dict[str, int])


def progress(states: Iterable[str]) -> MapProgress:
    """Counts calls by state."""
    counted = Counter(states)
    ended = sum(n for state, n in counted.items() if state != UNKNOWN and CallState(state).terminal)
    return MapProgress(calls=counted.total(), ended=ended, states=dict(counted))


class MapCall(Generic[R]):
    """Many calls of one function. Made by `Function.spawn_map` and `MapCall.from_id`."""

    def __init__(self, map_id: str, *, returns: str = "") -> None:
        self.id = map_id
        self._raw, self._count = _parts(map_id)
        self._returns = returns
        self.status: Twin[MapProgress] = Twin(self._status)
        self.cancel: Twin[MapProgress] = Twin(self._cancel)
        self.results: MapResults[R] = MapResults(self)

    @classmethod
    def from_id(cls, map_id: str) -> MapCall[Any]:
        """Returns the map of that id. Whether its calls exist is seen when they are asked for.

        Raises InvalidSpecError for what is no map id.
        """
        return MapCall(map_id)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[R]:
        return self.results()

    def call(self, number: int) -> Call[R]:
        """Returns the call of one input, counted from 0. Raises IndexError."""
        if not 0 <= number < self._count:
            raise IndexError(f"input {number}: map {self.id} has {self._count}")
        return Call(id_text("c", raw_call_id(self._raw, number)), returns=self._returns)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.id, self._returns)

    def __repr__(self) -> str:
        return f"<phalanx.MapCall {self.id}>"

    def _status(self) -> MapProgress:
        """Returns how far it has come: one question per 1000 calls."""
        return progress(state for _, _, state in self.states(current().client))

    def _cancel(self) -> MapProgress:
        client = current().client
        self.cancel_by(client)
        return progress(state for _, _, state in self.states(client))

    def states(self, client: Client) -> Iterator[tuple[int, str, str]]:
        """Yields each input's number, counted from 0, its call's id and state: one question per 1000 calls."""
        for start in range(0, self._count, ASK_AT_ONCE):
            ids = self._ids(start)
            for number, (call_id, state) in enumerate(zip(ids, client.call_states(ids), strict=True), start):
                yield number, call_id, state or UNKNOWN

    def cancel_by(self, client: Client) -> None:
        """Cancels all calls that have not ended, the last ones first, so that none begins meanwhile."""
        for job in pipelined(self._alive(client), client.cancel):
            job.result()

    def _alive(self, client: Client) -> Iterator[str]:
        for start in reversed(range(0, self._count, ASK_AT_ONCE)):
            ids = self._ids(start)
            known = zip(reversed(ids), reversed(client.call_states(ids)), strict=True)
            yield from (call_id for call_id, state in known if state and not CallState(state).terminal)

    def _ids(self, start: int) -> list[str]:
        return [self.call(n).id for n in range(start, min(start + ASK_AT_ONCE, self._count))]


class MapResults(Generic[R]):
    """The values of a map, in the order of its inputs."""

    def __init__(self, map_call: MapCall[R]) -> None:
        self._map = map_call

    def __call__(self, *, return_exceptions: bool = False) -> Iterator[R]:
        """Yields each value once its call has ended; may be asked for again and again, and left at any time.

        The first failure is raised, or yielded with ``return_exceptions``; the calls go on in any case.
        """
        return self._results(return_exceptions, threading.Event())

    def aio(self, *, return_exceptions: bool = False) -> aio.Results[R]:
        """The same for ``async for``."""
        stop = threading.Event()
        return aio.Results(self._results(return_exceptions, stop), stop=stop.set)

    def _results(self, return_exceptions: bool, stop: threading.Event) -> Generator[R]:
        calls = (self._map.call(number) for number in range(len(self._map)))
        try:
            for number, job in enumerate(pipelined(calls, lambda call: call.get.until(stop))):
                if job.error is not None:
                    job.error.add_note(f"this was input {number} of map {self._map.id}, counted from 0")
                    if return_exceptions and isinstance(job.error, Exception):
                        yield job.error  # pyright: ignore[reportReturnType]
                        continue
                yield job.result()
        finally:
            stop.set()


class Spawning:
    """Submits a call per input. Use once: `run`."""

    def __init__(self, target: Target, inputs: Inputs, runner: Runner, stop: threading.Event) -> None:
        """Raises InvalidSpecError for calls with an idempotency key. ``stop``: nobody wants the map any more."""
        if target.terms.idempotency_key:
            raise InvalidSpecError("idempotency_key: a map makes many calls, and a key stands for one")
        self._target = self._item_target = target
        self._inputs = inputs
        self._runner = runner
        self._stop = stop
        self._raw = new_raw_id()
        if target.terms.webhook:
            self._item_target = replace(target, terms=replace(target.terms, map_id=id_text("m", self._raw)))
        self._taken = 0
        self._error: BaseException | None = None

    def run(self) -> MapCall[Any]:
        """Returns when all calls are durable.

        What breaks it off leaves the calls that were accepted, and a note on the error says how to find them. After
        ``stop`` nobody could be told: they are cancelled.
        """
        try:
            for job in pipelined(self._numbered(), self._submit):
                self._look_at(job)
            if self._error is not None:
                raise self._error
        except (Exception, *STOPS) as e:
            self._tell_what_goes_on(e)
            raise
        finally:
            self._inputs.close()
        if self._stop.is_set():
            self._made().cancel()
            raise CallCancelledError("the map was left before all of its calls were made")
        return self._made()

    def _numbered(self) -> Iterator[tuple[int, Packed]]:
        """Yields inputs until one fails, so that those before it are all submitted."""
        while not self._stop.is_set() and self._error is None:
            try:
                more = self._inputs.peek()
                packed = self._inputs.take() if more else None
            except Exception as e:  # noqa: BLE001  it is raised again behind what was accepted
                self._error = e
                return
            if packed is not None:
                self._taken += 1
                yield self._taken - 1, packed
            elif more is None:
                self._inputs.wait(_WAIT_S)
            else:
                return

    def _submit(self, item: tuple[int, Packed]) -> None:
        self._runner.submit(self._item_target, raw_call_id(self._raw, item[0]), item[1])

    def _look_at(self, job: Job[tuple[int, Packed], None]) -> None:
        if job.error is not None and self._error is None:
            job.error.add_note(f"this was input {job.item[0]} of the map, counted from 0")
            self._error = job.error

    def _tell_what_goes_on(self, error: BaseException) -> None:
        if self._taken:
            error.add_note(
                f"up to {self._taken} calls were accepted before that and go on; "
                f"phalanx.MapCall.from_id({self._made().id!r}) finds and cancels them"
            )

    def _made(self) -> MapCall[Any]:
        return MapCall(f"{id_text('m', self._raw)}-{self._taken}", returns=self._target.returns)


def raw_call_id(raw: bytes, number: int) -> bytes:
    """Returns the id of the call of one input."""
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=16, key=raw).digest()


def _parts(map_id: str) -> tuple[bytes, int]:
    head, _, count = map_id.rpartition("-")
    try:
        raw = id_raw(head)
        known = head.startswith("m-") and count.isdecimal() and count.isascii()
    except ValueError:
        raw, known = b"", False
    if not known:
        raise InvalidSpecError(f"{map_id!r} is not a map id: they look like m-0123…-1000, see MapCall.id")
    return raw, int(count)


def _again(map_id: str, returns: str) -> MapCall[Any]:
    return MapCall(map_id, returns=returns)
