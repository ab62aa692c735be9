"""The scheduler beside other ways: packing of fractions, waits and shares on a trace, time to decide, nearness, rails.

    python -m benchmarks.scheduler [--parts packing,philly,…] [--seeds 3] [--out scheduler.json]

Peers are our own, written from what was published about them (`benchmarks/scheduler_peers`). Traces are read beside
the checkout, or where PHALANX_TRACES says; parts without their traces are left out and say so.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import scheduler_domains, scheduler_latency, scheduler_packing, scheduler_philly, scheduler_rails
from benchmarks.report import machine

PARTS = ("packing", "philly", "latency", "domains", "rails")
TRACES = Path(os.environ.get("PHALANX_TRACES", Path(__file__).parents[2] / "shared" / "traces"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=0, help="jobs of the Philly trace; 0: all of its seven weeks")
    parser.add_argument("--nodes", default=",".join(map(str, scheduler_latency.NODES)))
    parser.add_argument("--decisions", type=int, default=1_000)
    parser.add_argument("--out", type=Path, help="parts that are not run stay as they are in it")
    options = parser.parse_args()
    data: dict[str, Any] = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    data |= {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine()}
    for part in options.parts.split(","):
        print(f"## {part}\n", flush=True)
        data[part] = _RUNS[part](options)
        print(flush=True)
    if options.out:
        options.out.write_text(json.dumps(data, indent=1) + "\n")


def _packing(options: argparse.Namespace) -> Any:
    if _is_missing(scheduler_packing.NODES):
        return None
    rows = scheduler_packing.measure(TRACES, options.seeds)
    print(scheduler_packing.table(rows))
    return [asdict(row) for row in rows]


def _philly(options: argparse.Namespace) -> Any:
    if _is_missing(scheduler_philly.FILE):
        return None
    rows = scheduler_philly.measure(TRACES, options.limit, _say)
    found = rows[0].found
    print(
        f"{found['jobs']['submitted']:,} jobs of {len(found['workspaces'])} clusters on {scheduler_philly.FLEET}: "
        f"{found['offered_load']:.1%} is asked for\n"
    )
    print(scheduler_philly.table(rows))
    for row in rows:
        del row.found["series"]
    return [asdict(row) for row in rows]


def _latency(options: argparse.Namespace) -> Any:
    rows: list[scheduler_latency.Timed] = []
    for nodes in map(int, options.nodes.split(",")):
        rows.append(scheduler_latency.measure(nodes, options.decisions))
        _say(f"{nodes} nodes: filled in {rows[-1].fill_s:.0f} s")
    print(scheduler_latency.table(rows))
    return [asdict(row) for row in rows]


def _domains(options: argparse.Namespace) -> Any:
    del options
    rows = scheduler_domains.measure()
    print(scheduler_domains.table(rows))
    return [asdict(row) for row in rows]


def _rails(options: argparse.Namespace) -> Any:
    del options
    rows = scheduler_rails.measure()
    print(scheduler_rails.table(rows))
    return [asdict(row) for row in rows]


def _is_missing(file: str) -> bool:
    missing = not (TRACES / file).is_file()
    if missing:
        print(f"left out: {TRACES / file} is not there")
    return missing


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


_RUNS = {"packing": _packing, "philly": _philly, "latency": _latency, "domains": _domains, "rails": _rails}

if __name__ == "__main__":
    main()
