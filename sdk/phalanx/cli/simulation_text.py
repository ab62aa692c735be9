"""Results of a simulation as lines and rows for people. Pure."""

from __future__ import annotations

from typing import Any

from phalanx.cli.text import count, duration

COLUMNS = ("GPUS", "JOBS", "MEAN WAIT", "P50", "P95", "LONGEST", "NEVER BEGAN")


def headlines(found: dict[str, Any]) -> list[str]:
    """Returns what is true of the whole run, a line each."""
    fleet, jobs = found["fleet"], found["jobs"]
    lines = [
        f"{count(jobs['submitted'], 'job')} on {count(fleet['nodes'], 'node')}, {count(fleet['gpus'], 'GPU')}; "
        f"they ask for {found['offered_load']:.0%} of it; policy {found['policy']}",
        f"{found['utilisation']:.1%} of GPUs held while jobs arrived; all done after {_time(found['makespan_s'])}",
        f"{found['idle_gpu_hours_while_waiting']:,.1f} GPU-hours idle while somebody waited; "
        f"{found['fragmented']:.2%} of GPUs free where the mix could not use them",
    ]
    if len(found["workspaces"]) > 1:
        lines.append(
            f"{found['share_error']:.1%} of GPUs held by others than those entitled to them, while somebody waited"
        )
    if jobs["stopped"]:
        lines.append(f"{jobs['stopped']:,} jobs gave way, {found['lost_gpu_hours']:,.1f} GPU-hours of work lost")
    if jobs["refused"]:
        lines.append(f"{jobs['refused']:,} jobs could never run on this fleet and are left out")
    return lines


def wait_rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Returns a row for each class of sizes, and one for all."""
    return [
        (
            row["size"],
            f"{row['started'] + row['never']:,}",
            *(_time(row[name]) for name in ("mean_s", "p50_s", "p95_s", "max_s")),
            f"{row['never']:,}" if row["never"] else "",
        )
        for row in found["waits"]
    ]


def _time(seconds: float) -> str:
    return duration(round(seconds * 1000))
