"""One row per figure: both sides, the ratio, the aim. Prints a table and writes JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``ours`` and ``peer`` are samples in ``unit``, taken in turns; ``aim`` bounds ``figure``."""

    name: str
    unit: str
    ours: list[float]
    peer_name: str = ""
    peer: list[float]
    aim: float
    kind: str
    """"value": the median of ours; "ratio": ours / peer; "speedup": peer / ours."""

    @property
    def figure(self) -> float:
        ours = statistics.median(self.ours)
        if self.kind == "value":
            return ours
        theirs = statistics.median(self.peer)
        return ours / theirs if self.kind == "ratio" else theirs / ours

    @property
    def reached(self) -> bool:
        return self.figure >= self.aim if self.kind == "speedup" else self.figure <= self.aim


def p99(samples: list[float]) -> float:
    """Returns the 99th percentile, or the largest of few samples."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def machine() -> str:
    """Returns one line on where this ran."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{os.cpu_count()} cores, {model}, Linux {platform.release()}, Python {platform.python_version()}"


def table(rows: list[Row]) -> str:
    """Returns the rows as a Markdown table."""
    lines = [
        "| figure | ours p50 | ours p99 | peer | peer p50 | peer p99 | figure | aim | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        peer50 = f"{statistics.median(row.peer):.4g} {row.unit}" if row.peer else ""
        peer99 = f"{p99(row.peer):.4g}" if row.peer else ""
        sign = "≥" if row.kind == "speedup" else "≤"
        suffix = f" {row.unit}" if row.kind == "value" else " ×"
        lines.append(
            f"| {row.name} | {statistics.median(row.ours):.4g} {row.unit} | {p99(row.ours):.4g} | {row.peer_name} "
            f"| {peer50} | {peer99} | {row.figure:.3g}{suffix} | {sign} {row.aim:g}{suffix} "
            f"| {'reached' if row.reached else 'missed'} |"
        )
    return "\n".join(lines)


def write(rows: list[Row], path: Path) -> None:
    """Writes every sample with the machine and the date."""
    data = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "rows": [asdict(r) | {"figure": r.figure, "reached": r.reached} for r in rows],
    }
    path.write_text(json.dumps(data, indent=1) + "\n")
