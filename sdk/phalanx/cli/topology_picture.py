"""A node's topology as an SVG picture: GPUs by NUMA node, NVLinks as lines of their width, ports under their GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from phalanx.cli.topology_text import headline, nearest_ports
from phalanx.core.topology.node import Gpu, Health, Link, NodeTopology

_BOX, _GAP, _TOP, _MARGIN = 132, 30, 96, 30
_ROW = 170
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1b2430}.t{font-size:16px;font-weight:600}.s{font-size:11px;fill:#5b6675}"
    ".g{fill:#e8f1fb;stroke:#2f6db5}.lost{fill:#fbe6e6;stroke:#b53a2f}.deg{fill:#fff3d6;stroke:#b5852f}"
    ".n{fill:none;stroke:#c3cbd6;stroke-dasharray:5 4}.l{stroke:#2f6db5;stroke-opacity:.55;fill:none}"
    ".w{stroke:#b53a2f;stroke-dasharray:4 3;fill:none}.x{fill:#dfe7f1;stroke:#5b6675}"
)


def picture(name: str, topology: NodeTopology) -> str:
    """Returns one SVG document."""
    places = _places(topology)
    rows = max((row for row, _ in places), default=0) + 1
    columns = max((column for _, column in places), default=0) + 1
    width = max(420, 2 * _MARGIN + columns * (_BOX + _GAP))
    height = _TOP + rows * _ROW + _MARGIN + (60 if _switched(topology) else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<style>{_STYLE}</style>",
        f'<text class="t" x="{_MARGIN}" y="34">{escape(headline(name, topology))}</text>',
        *_lines(topology, places, width, rows),
        *_boxes(topology, places),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _places(topology: NodeTopology) -> list[tuple[int, int]]:
    """Row and column of each GPU: a row for each NUMA node."""
    rows: dict[tuple[int, ...] | None, int] = {}
    taken: dict[int, int] = {}
    places: list[tuple[int, int]] = []
    for gpu in topology.gpus:
        row = rows.setdefault(gpu.numa, len(rows))
        places.append((row, taken.get(row, 0)))
        taken[row] = taken.get(row, 0) + 1
    return places


def _corner(place: tuple[int, int]) -> tuple[int, int]:
    row, column = place
    return _MARGIN + column * (_BOX + _GAP), _TOP + row * _ROW


def _boxes(topology: NodeTopology, places: list[tuple[int, int]]) -> Iterator[str]:
    seen: set[int] = set()
    for at, (gpu, place) in enumerate(zip(topology.gpus, places, strict=True)):
        x, y = _corner(place)
        if place[0] not in seen:
            seen.add(place[0])
            numa = ",".join(map(str, gpu.numa)) if gpu.numa else "unknown"
            yield f'<text class="s" x="{x}" y="{y - 8}">NUMA {escape(numa)}</text>'
        yield f'<rect class="{_class(gpu)}" x="{x}" y="{y}" width="{_BOX}" height="54" rx="7"/>'
        yield f'<text x="{x + 10}" y="{y + 22}">GPU {gpu.index}</text>'
        about = gpu.reason or gpu.model or gpu.uuid
        yield f'<text class="s" x="{x + 10}" y="{y + 40}">{escape(about[:18])}</text>'
        for nth, (nic, link) in enumerate(nearest_ports(topology, at)[:2]):
            port = escape(f"{nic.name} {link.path}"[:20])
            yield f'<text class="s" x="{x + 10}" y="{y + 70 + 14 * nth}">{port}</text>'


def _class(gpu: Gpu) -> str:
    return {Health.OK: "g", Health.DEGRADED: "deg", Health.LOST: "lost"}[gpu.health]


def _lines(topology: NodeTopology, places: list[tuple[int, int]], width: int, rows: int) -> Iterator[str]:
    if _switched(topology):
        y = _TOP + rows * _ROW
        yield f'<rect class="x" x="{_MARGIN}" y="{y}" width="{width - 2 * _MARGIN}" height="34" rx="7"/>'
        yield f'<text x="{_MARGIN + 12}" y="{y + 22}">NVSwitch</text>'
        for row, column in places:
            x, top = _corner((row, column))
            yield f'<path class="l" stroke-width="3" d="M{x + _BOX} {top + 27} h{6 + 8 * (row % 3)} V{y}"/>'
        return
    for i, row in enumerate(topology.links):
        for j in range(i):
            yield from _line(row[j], _corner(places[i]), _corner(places[j]))


def _line(link: Link, a: tuple[int, int], b: tuple[int, int]) -> Iterator[str]:
    if not link.nvlinks and link.copies is not False:
        return
    (ax, ay), (bx, by) = (a, b) if a <= b else (b, a)
    half = _BOX // 2
    kind = "w" if link.copies is False else "l"
    wide = 1.6 * (link.nvlinks or 1)
    if ay == by:
        lift = 16 + abs(bx - ax) // 9
        path = f"M{ax + half} {ay} Q{(ax + bx) // 2 + half} {ay - lift} {bx + half} {by}"
    else:
        upper, lower = ((ax, ay), (bx, by)) if ay < by else ((bx, by), (ax, ay))
        path = f"M{upper[0] + half} {upper[1] + 54} L{lower[0] + half} {lower[1]}"
    yield f'<path class="{kind}" stroke-width="{wide:g}" d="{path}"/>'


def _switched(topology: NodeTopology) -> bool:
    return any(link.switched and link.nvlinks for row in topology.links for link in row)
