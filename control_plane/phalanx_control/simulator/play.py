"""A whole simulation: jobs, a fleet and what is asked of them in, results out. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from phalanx.core.errors import InvalidSpecError, UnschedulableError
from phalanx.policy import policy_from_json
from phalanx_control.scheduler.capacity import ensure_possible
from phalanx_control.simulator import engine
from phalanx_control.simulator.baselines import Baseline
from phalanx_control.simulator.engine import Progress
from phalanx_control.simulator.grid import best_fit
from phalanx_control.simulator.happenings import Scheduler
from phalanx_control.simulator.jobs import Job, at_load
from phalanx_control.simulator.live import LiveScheduler, Options, start_of
from phalanx_control.simulator.machines import Fleet
from phalanx_control.simulator.results import results_of
from phalanx_control.simulator.traces import in_order
from phalanx_control.simulator.watch import Watch

LIVE = "live"
POLICIES = (LIVE, "fifo", "easy", "any")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """``load`` 0: as the trace is. ``limit`` 0: all jobs. ``accounts``: who gets how much, as JSON; "": all alike."""

    policy: str = LIVE
    load: float = 0
    limit: int = 0
    accounts: str = ""
    options: Options = field(default_factory=Options)


def play(jobs: Iterable[Job], fleet: Fleet, asked: Asked, progress: Progress | None = None) -> dict[str, Any]:
    """Returns the results. Raises InvalidSpecError where no job could ever run on the fleet."""
    chosen = in_order(jobs)
    chosen = chosen[: asked.limit] if asked.limit else chosen
    able = in_order(possible(chosen, fleet))
    if not able:
        raise InvalidSpecError(f"{fleet.name} could run none of {len(chosen):,} jobs", hint="give a larger --fleet")
    if asked.load:
        able = at_load(able, fleet.gpus, asked.load)
    accounts = policy_from_json(asked.accounts).accounts
    watch = Watch(fleet, able, {path[0]: account.weight for path, account in accounts.items() if len(path) == 1})
    engine.run(able, scheduler_of(fleet, asked), watch, progress)
    return results_of(fleet, able, watch, policy=asked.policy, refused=len(chosen) - len(able))


def scheduler_of(fleet: Fleet, asked: Asked) -> Scheduler:
    """Returns a fresh scheduler of the policy."""
    if asked.policy == LIVE:
        return LiveScheduler(fleet, asked.options, accounts=asked.accounts)
    return Baseline(fleet, asked.policy, best_fit)


def possible(jobs: Iterable[Job], fleet: Fleet) -> list[Job]:
    """Returns the jobs that an empty fleet could run; live, the others would be refused at once."""
    state = start_of(fleet)
    known: dict[tuple[object, ...], bool] = {}
    able: list[Job] = []
    for job in jobs:
        shape = (job.gpus, job.gpu, job.cpus, job.memory_gb, job.one_node)
        fits = known.get(shape)
        if fits is None:
            try:
                ensure_possible(state, job.spec(fresh=True))
            except UnschedulableError:
                fits = False
            else:
                fits = True
            known[shape] = fits
        if fits:
            able.append(job)
    return able
