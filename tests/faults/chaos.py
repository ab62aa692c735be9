"""Chaos: random kills and stops under a mixed load, from a seed, with every answer written down.

    python -m tests.faults.chaos [--faults 24] [--calls 300] [--seed N] [--seconds 240]

Nothing here judges the history: the callers below check that what they were told is right, and the cluster's
aftermath checks everything else. The same seed gives the same faults in the same order; their timing is the machine's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import phalanx
from tests.faults import work
from tests.support.aftermath import judged_cluster, use
from tests.support.cluster import Cluster, Server

CALLERS = 6
STOPS_S = (0.2, 3.0)
"""How long a stopped process stays stopped; longer ones outlast the leader's lease of 2 s."""
PAUSES_S = (0.5, 3.0)
_TOLD = (phalanx.RankDiedError, phalanx.OutcomeUnknownError, phalanx.PoisonError)
"""What a caller may be told when a fault met its call."""


def flaky(value: int) -> int:
    """Fails at the first attempt of every third value."""
    if value % 3 == 0 and phalanx.current().attempt == 1:
        raise LookupError(value)
    return value


@dataclass(slots=True)
class Load:
    """Callers that call without pause until told to stop. ``wrong`` collects whatever they must never see."""

    seed: int
    done: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    stop: threading.Event = field(default_factory=threading.Event)
    _kinds: list[Callable[[int], None]] = field(default_factory=list[Callable[[int], None]])

    def __post_init__(self) -> None:
        single = work.single(work.square, scaledown_window=5, disconnect_grace=5)
        again = work.single(flaky, retries=2, scaledown_window=5, disconnect_grace=5)
        ranks = work.gang(work.sum_of_ranks, nodes=2, retries=1, scaledown_window=3, disconnect_grace=5)
        self._kinds = [
            lambda n: self._expect(single.remote(n), n * n),
            lambda n: self._expect(single.remote(n), n * n),
            lambda n: self._spawned(single, n, n * n),
            lambda n: self._spawned(again, n, n),
            lambda n: self._spawned(ranks, n, 6.0 * n),
            lambda n: self._cancelled(single, n),
        ]

    @property
    def calls(self) -> int:
        return sum(self.done.values())

    def call_for_ever(self, caller: int) -> None:
        rng = random.Random(f"{self.seed} {caller}")
        while not self.stop.is_set():
            self._one(rng.choice(self._kinds), rng.randrange(1000))

    def _one(self, kind: Callable[[int], None], n: int) -> None:
        try:
            kind(n)
        except _TOLD as e:
            self.done[type(e).__name__] += 1
        except Exception as e:
            self.wrong.append(f"{type(e).__name__}: {e}")
            self.done["wrong"] += 1

    def _expect(self, value: object, expected: object) -> None:
        if value != expected:
            raise AssertionError(f"{value!r} instead of {expected!r}")
        self.done["right"] += 1

    def _spawned(self, function: Any, n: int, expected: object) -> None:
        call = function.spawn(n)
        self._expect(call.get(120), expected)
        if phalanx.Call.from_id(call.id).get(30) != expected:
            raise AssertionError(f"{call.id} has another value when it is read again")

    def _cancelled(self, function: Any, n: int) -> None:
        state = function.spawn(n).cancel().state
        if state not in ("cancelled", "succeeded", "failed"):
            raise AssertionError(f"{state} after a cancel")
        self.done[f"cancel: {state}"] += 1


class Faults:
    """What can be done to a cluster, and undone. One at a time."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._kinds: dict[str, Callable[[], None]] = {
            "kill leader": lambda: self._restart(self._control(leads=True)),
            "kill standby": lambda: self._restart(self._control(leads=False)),
            "kill store": self._restart_store,
            "kill agent": lambda: self._restart(rng.choice(cluster.nodes)),
            "kill rank": self._kill_rank,
            "stop leader": lambda: self._stop(self._control(leads=True).pid),
            "stop standby": lambda: self._stop(self._control(leads=False).pid),
            "stop store": lambda: self._stop(cluster.store.pid),
            "stop agent": lambda: self._stop(rng.choice(cluster.nodes).pid),
            "stop rank": self._stop_rank,
        }

    def one(self) -> str:
        """Does the next fault, repairs it, and returns its name."""
        name = self._rng.choice(sorted(self._kinds))
        self._kinds[name]()
        return name

    def _control(self, *, leads: bool) -> Server:
        leader = self._cluster.leader()
        return self._cluster.controls[leader if leads else 1 - leader]

    def _restart(self, server: Server) -> None:
        server.kill()
        self._pause(STOPS_S)
        server.start()
        server.wait_ready()

    def _restart_store(self) -> None:
        self._cluster.kill_store()
        self._pause(STOPS_S)
        self._cluster.start_store()

    def _stop(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            self._pause(STOPS_S)
            os.kill(pid, signal.SIGCONT)

    def _ranks(self) -> list[int]:
        """Returns the ranks of some gang, where there is one."""
        with contextlib.suppress(phalanx.PhalanxError):
            views = [c for c in self._cluster.connect(self._cluster.leader()).list_calls() if c.ranks]
            return [r.pid for r in self._rng.choice(views).ranks if r.pid] if views else []
        return []

    def _kill_rank(self) -> None:
        for pid in self._ranks()[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _stop_rank(self) -> None:
        for pid in self._ranks()[:1]:
            self._stop(pid)

    def _pause(self, between: tuple[float, float]) -> None:
        threading.Event().wait(self._rng.uniform(*between))


def run(folder: Path, *, seed: int, faults: int, calls: int, seconds: float) -> Load:
    """Runs the load under ``faults`` faults until there were ``calls`` calls, and leaves the cluster judged."""
    rng = random.Random(seed)
    with judged_cluster(folder, replicas=2, agents=2) as cluster:
        use(cluster, 1 - cluster.leader())
        load = Load(seed)
        with ThreadPoolExecutor(CALLERS) as pool:
            callers = [pool.submit(load.call_for_ever, n) for n in range(CALLERS)]
            try:
                for name in _faults(Faults(cluster, rng), rng, faults, seconds):
                    print(f"{load.calls:6d} calls, then {name}", flush=True)
                _wait_for_calls(load, calls, seconds)
            finally:
                load.stop.set()
        for caller in callers:
            caller.result()
    return load


def _faults(faults: Faults, rng: random.Random, count: int, seconds: float) -> Iterator[str]:
    until = time.monotonic() + seconds
    for _ in range(count):
        if time.monotonic() > until:
            return
        threading.Event().wait(rng.uniform(*PAUSES_S))
        yield faults.one()


def _wait_for_calls(load: Load, calls: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while load.calls < calls and time.monotonic() < until:
        threading.Event().wait(0.1)


def main(arguments: list[str]) -> int:
    """Returns 1 when a caller was told something wrong; a broken invariant raises."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=24)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args(arguments)
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="px-chaos-") as folder:
        load = run(Path(folder), seed=given.seed, faults=given.faults, calls=given.calls, seconds=given.seconds)
    print(dict(load.done), *load.wrong, sep="\n")
    return 1 if load.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
