"""A simulation as an SVG picture: waits by size as bars, and how much of the fleet was used over time as a line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from phalanx.cli.simulation_text import headlines
from phalanx.cli.text import duration

_WIDTH, _MARGIN, _LEFT = 860, 30, 90
_BAR, _TOP = 24, 110
_CHART = 150
_LEGEND = "used (blue), free but of no use to the mix (red), GPUs waited for (amber, of the most)"
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1b2430}.t{font-size:16px;font-weight:600}.s{font-size:11px;fill:#5b6675}"
    ".m{fill:#2f6db5}.p{fill:#2f6db5;fill-opacity:.25}.u{fill:none;stroke:#2f6db5;stroke-width:1.5}"
    ".f{fill:none;stroke:#b53a2f;stroke-width:1.2}.w{fill:none;stroke:#b5852f;stroke-width:1.2}.a{stroke:#c3cbd6}"
)


def picture(found: dict[str, Any]) -> str:
    """Returns one SVG document. Bars are on a logarithmic scale from one second."""
    rows = found["waits"]
    chart_top = _TOP + _BAR * len(rows) + 50
    height = chart_top + _CHART + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">',
        f"<style>{_STYLE}</style>",
        *_titles(found),
        f'<text class="s" x="{_MARGIN}" y="{_TOP - 8}">GPUs of a job: mean wait (dark) and 95th percentile</text>',
        *_bars(rows),
        *_chart(found["series"], chart_top),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _titles(found: dict[str, Any]) -> Iterator[str]:
    for at, line in enumerate(headlines(found)[:3]):
        css = "t" if not at else "s"
        yield f'<text class="{css}" x="{_MARGIN}" y="{32 + 20 * at}">{escape(line)}</text>'


def _bars(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    longest = max((row["p95_s"] for row in rows), default=0)
    longest = max(longest, max((row["mean_s"] for row in rows), default=0))
    for at, row in enumerate(rows):
        y = _TOP + _BAR * at
        yield f'<text x="{_MARGIN}" y="{y + 15}">{escape(row["size"])}</text>'
        for css, name, inset in (("p", "p95_s", 3), ("m", "mean_s", 8)):
            width = _scaled(row[name], longest)
            yield (
                f'<rect class="{css}" x="{_LEFT}" y="{y + inset}" width="{width}" height="{_BAR - 2 * inset}">'
                f"<title>{duration(round(row[name] * 1000))}</title></rect>"
            )
        words = f"{duration(round(row['mean_s'] * 1000))} / {duration(round(row['p95_s'] * 1000))}"
        x = _LEFT + max(_scaled(row["p95_s"], longest), _scaled(row["mean_s"], longest)) + 6
        yield f'<text class="s" x="{x}" y="{y + 15}">{words}</text>'


def _scaled(seconds: float, longest: float) -> int:
    """Returns the length of a bar."""
    room = _WIDTH - _LEFT - _MARGIN - 130
    return round(room * math.log10(1 + seconds) / math.log10(1 + longest)) if longest else 0


def _chart(series: Sequence[dict[str, Any]], top: int) -> Iterator[str]:
    bottom, right = top + _CHART, _WIDTH - _MARGIN
    yield f'<text class="s" x="{_MARGIN}" y="{top - 10}">{_LEGEND}</text>'
    for part in (0, 0.5, 1):
        y = bottom - round(_CHART * part)
        yield f'<line class="a" x1="{_LEFT}" x2="{right}" y1="{y}" y2="{y}"/>'
        yield f'<text class="s" x="{_MARGIN}" y="{y + 4}">{part:.0%}</text>'
    if not series:
        return
    last_s = series[-1]["at_s"] or 1
    most = max(point["waiting_gpus"] for point in series) or 1
    for css, values in (
        ("w", [point["waiting_gpus"] / most for point in series]),
        ("u", [point["used"] for point in series]),
        ("f", [point["fragmented"] for point in series]),
    ):
        xs = (_LEFT + (right - _LEFT) * point["at_s"] / last_s for point in series)
        points = " ".join(f"{x:.1f},{bottom - _CHART * value:.1f}" for x, value in zip(xs, values, strict=True))
        yield f'<polyline class="{css}" points="{points}"/>'
    yield f'<text class="s" x="{_LEFT}" y="{bottom + 18}">0</text>'
    yield f'<text class="s" x="{right - 60}" y="{bottom + 18}">{duration(round(last_s * 1000))}</text>'
