"""Jobs from texts: openb's lists of pods, Philly's list of jobs, and our own JSON lines. No I/O, no dice of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from phalanx.core.errors import InvalidSpecError
from phalanx_control.simulator.jobs import Job
from phalanx_control.simulator.tables import Row, rows_of

Shuffle = Callable[[list[Job]], None]
FORMATS = (
    "a list of pods as openb has it (name,cpu_milli,memory_mib,num_gpu,gpu_milli,…), of jobs as Philly has it "
    '(timestamp,duration,num_gpus,…,cluster), or lines like {"at": 0, "duration": 60, "gpus": 8}'
)
_PODS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_PHILLY = ("timestamp", "duration", "num_gpus", "cluster")
_MIB_PER_GB = 10**9 / (1 << 20)
_BETWEEN_MS = 1_000
"""Between the arrivals of jobs whose list has no times."""
_KEYS = frozenset(
    ("at", "duration", "gpus", "workspace", "user", "gpu", "cpus", "memory_gb", "one_node", "priority", "preemptible")
)


def read_jobs(text: str, *, name: str, shuffle: Shuffle) -> tuple[Job, ...]:
    """Returns the jobs in order of their arrival, the first at 0. ``shuffle`` orders those of a list without times.

    Raises InvalidSpecError naming file, line and column.
    """
    first = text.lstrip("\ufeff \t\r\n")[:4096].partition("\n")[0]
    if first.startswith("{"):
        jobs = [_job_of_json(line, number, name) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    elif "gpu_milli" in first:
        jobs = _pods(text, name, shuffle)
    elif "num_gpus" in first and "timestamp" in first:
        jobs = [_philly(row) for row in rows_of(text, name, _PHILLY, what="a list of jobs")]
    else:
        raise InvalidSpecError(f"{name} is no list of jobs: it begins with {first[:60]!r}", hint=f"give {FORMATS}")
    if not jobs:
        raise InvalidSpecError(f"{name} has no jobs", hint=f"give {FORMATS}")
    return in_order(jobs)


def in_order(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """Returns jobs by arrival, numbered, the first at 0."""
    ordered = sorted(jobs, key=lambda job: job.at_ms)
    first_ms = ordered[0].at_ms if ordered else 0
    return tuple(replace(job, number=at, at_ms=job.at_ms - first_ms) for at, job in enumerate(ordered))


def _pods(text: str, name: str, shuffle: Shuffle) -> list[Job]:
    rows = list(rows_of(text, name, _PODS, what="a list of pods"))
    timed = bool(rows) and "creation_time" in rows[0].cells
    jobs = [_pod(row, timed=timed) for row in rows]
    if not timed:
        shuffle(jobs)
        jobs = [replace(job, at_ms=at * _BETWEEN_MS) for at, job in enumerate(jobs)]
    return jobs


def _pod(row: Row, *, timed: bool) -> Job:
    count, milli = row.whole("num_gpu"), row.whole("gpu_milli")
    if count and not 0 < milli <= 1000:
        raise row.wrong("gpu_milli", "must be 1 to 1000")
    at_ms, duration_ms = 0, None
    if timed:
        at_ms = round(row.number("creation_time") * 1000)
        ends_ms = round(row.number("deletion_time") * 1000)
        began = row.text("scheduled_time")
        began_ms = round(row.number("scheduled_time") * 1000) if began else at_ms
        duration_ms = max(1, ends_ms - began_ms)
    return Job(
        number=0,
        at_ms=at_ms,
        duration_ms=duration_ms,
        gpus=milli / 1000 if count == 1 else count,
        gpu=row.text("gpu_spec"),
        cpus=row.whole("cpu_milli") / 1000,
        memory_gb=row.whole("memory_mib") / _MIB_PER_GB,
        one_node=True,
    )


def _philly(row: Row) -> Job:
    try:
        at = datetime.fromisoformat(row.text("timestamp")).replace(tzinfo=UTC)
    except ValueError:
        raise row.wrong("timestamp", "is no time such as 2017-10-09 07:01:55") from None
    gpus = row.whole("num_gpus")
    if not gpus:
        raise row.wrong("num_gpus", "must be 1 or more")
    return Job(
        number=0,
        at_ms=round(at.timestamp() * 1000),
        duration_ms=max(1, round(row.number("duration") * 1000)),
        gpus=gpus,
        workspace=row.text("cluster") or "default",
    )


def _job_of_json(line: str, number: int, file: str) -> Job:
    where = f"{file}, line {number}"
    try:
        said = json.loads(line)
    except json.JSONDecodeError as e:
        raise InvalidSpecError(f"{where}, column {e.colno}: {e.msg}", hint=f"mend line {number} of {file}") from e
    if not isinstance(said, dict) or not {"at", "gpus"} <= said.keys():
        raise InvalidSpecError(f'{where} has no "at" and "gpus"', hint='{"at": 0, "duration": 60, "gpus": 8}')
    unknown = sorted(said.keys() - _KEYS)
    if unknown:
        raise InvalidSpecError(f"{where}: unknown key {unknown[0]!r}", hint=f"known are {', '.join(sorted(_KEYS))}")
    return _job(said, where)


def _job(said: Mapping[str, Any], where: str) -> Job:
    numbers = {key: _number(said, key, where) for key in ("at", "gpus", "cpus", "memory_gb")}
    gpus = numbers["gpus"]
    if gpus > 1 and gpus != int(gpus):
        raise InvalidSpecError(f'{where}, key "gpus": {gpus:g} is neither a whole number nor a fraction below 1')
    lasts = None if said.get("duration") is None else _number(said, "duration", where)
    return Job(
        number=0,
        at_ms=round(numbers["at"] * 1000),
        duration_ms=None if lasts is None else max(1, round(lasts * 1000)),
        gpus=gpus,
        workspace=str(said.get("workspace") or "default"),
        user=str(said.get("user") or ""),
        gpu=str(said.get("gpu") or ""),
        cpus=numbers["cpus"],
        memory_gb=numbers["memory_gb"],
        one_node=bool(said.get("one_node")),
        priority=int(_number(said, "priority", where)),
        preemptible=bool(said.get("preemptible")),
    )


def _number(said: Mapping[str, Any], key: str, where: str) -> float:
    value = said.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise InvalidSpecError(f'{where}, key "{key}": {str(value)[:60]!r} is no number of 0 or more')
    return float(value)


def sizes_of(jobs: Sequence[Job]) -> dict[int, float]:
    """Returns the sizes asked for, in thousandths of a GPU, and the share of jobs that ask for each."""
    counts: dict[int, int] = {}
    for job in jobs:
        counts[job.milli] = counts.get(job.milli, 0) + 1
    return {milli: count / len(jobs) for milli, count in sorted(counts.items())}
