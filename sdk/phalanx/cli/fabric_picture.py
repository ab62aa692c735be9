"""A cell's fabric as an SVG picture: domains as boxes in each other, and the nodes in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from html import escape

from phalanx.cli.fabric_text import headline
from phalanx.core.topology.fabric import Domain, Fabric, FabricNode
from phalanx.core.topology.names import natural_key

_NODE_WIDTH, _NODE_HEIGHT, _GAP, _PAD, _TITLE, _MARGIN = 96, 30, 8, 12, 22, 24
_NODES_IN_A_ROW = 4
_ROW_WIDTH = 1400
_SHOWN = 32
"""Of a domain's nodes; the others are counted."""
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1b2430}.t{font-size:16px;font-weight:600}.s{font-size:11px;fill:#5b6675}"
    ".d{fill:#2f6db5;fill-opacity:.06;stroke:#2f6db5}.n{fill:#e8f1fb;stroke:#2f6db5}.gone{fill:#fff;stroke:#c3cbd6;"
    "stroke-dasharray:5 4}.deg{fill:#fff3d6;stroke:#b5852f}"
)


@dataclass(slots=True)
class _Box:
    """What is drawn, and where in its parent. ``title``: empty for the whole."""

    title: str
    css: str
    width: int = _NODE_WIDTH
    height: int = _NODE_HEIGHT
    x: int = 0
    y: int = 0
    about: str = ""
    inside: list[_Box] = field(default_factory=list["_Box"])


def fabric_picture(fabric: Fabric, *, absent: Collection[str] = ()) -> str:
    """Returns one SVG document. ``absent``: nodes that have not joined the cell."""
    whole = _Box("", "")
    whole.inside = _parts(fabric, absent)
    _lay_out(whole, _ROW_WIDTH)
    width, height = max(whole.width, 480) + 2 * _MARGIN, whole.height + 56 + _MARGIN
    notes = escape("; ".join(fabric.notes)[:160])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<style>{_STYLE}</style>",
        f'<text class="t" x="{_MARGIN}" y="32">{escape(headline(fabric, absent or None))}</text>',
        *(line for box in whole.inside for line in _drawn(box, _MARGIN, 48)),
        f'<text class="s" x="{_MARGIN}" y="{height - 8}">{notes}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _parts(fabric: Fabric, absent: Collection[str]) -> list[_Box]:
    """Returns the outermost domains, with everything in them, and the nodes of which no domain is known."""
    nodes: defaultdict[str | None, list[FabricNode]] = defaultdict(list)
    for node in sorted(fabric.nodes, key=lambda node: natural_key(node.id)):
        nodes[node.domain].append(node)
    below: defaultdict[str | None, list[_Box]] = defaultdict(list)
    for domain in _innermost_first(fabric):
        box = _Box(_title(domain), "d")
        box.inside = [*below[domain.id], *_nodes(nodes[domain.id], absent)]
        below[domain.parent].append(box)
    found = sorted(below[None], key=lambda box: natural_key(box.title))
    if nodes[None]:
        found.append(_Box("no domain known", "gone", inside=_nodes(nodes[None], absent)))
    return found


def _innermost_first(fabric: Fabric) -> list[Domain]:
    parents = {domain.id: domain.parent for domain in fabric.domains}

    def depth(name: str | None) -> int:
        steps = 0
        while name is not None and steps <= len(parents):
            name, steps = parents.get(name), steps + 1
        return steps

    return sorted(fabric.domains, key=lambda domain: (-depth(domain.id), natural_key(domain.id)))


def _title(domain: Domain) -> str:
    name = domain.id.removeprefix(f"{domain.level}:")
    rate = f", {domain.bandwidth_gbyte_s:.4g} GB/s a node" if domain.bandwidth_gbyte_s is not None else ""
    over = f", {domain.oversubscription:.3g}:1" if domain.oversubscription is not None else ""
    return f"{domain.level.replace('-', ' ')} {name}{rate}{over}"


def _nodes(nodes: list[FabricNode], absent: Collection[str]) -> list[_Box]:
    shown = [_Box(node.id, _css(node, absent), about=_about(node, absent)) for node in nodes[:_SHOWN]]
    if len(nodes) > _SHOWN:
        shown.append(_Box(f"and {len(nodes) - _SHOWN} more", "gone"))
    return shown


def _css(node: FabricNode, absent: Collection[str]) -> str:
    return "gone" if node.id in absent else "deg" if node.degraded_rails else "n"


def _about(node: FabricNode, absent: Collection[str]) -> str:
    facts = ["has not joined"] if node.id in absent else []
    facts += [f"NVLink domain {node.nvl_domain}"] if node.nvl_domain else []
    facts += [f"no working port on rail {', '.join(map(str, node.degraded_rails))}"] if node.degraded_rails else []
    return "; ".join((node.id, *facts))


def _lay_out(box: _Box, limit: int) -> None:
    """Puts what is inside side by side, into as many rows as it takes; leaves first."""
    leaves = all(not each.inside and each.css != "d" for each in box.inside)
    limit = _NODES_IN_A_ROW * (_NODE_WIDTH + _GAP) if leaves else limit
    x = y = tallest = widest = 0
    for each in box.inside:
        if each.inside or each.css == "d":
            _lay_out(each, limit - 2 * _PAD)
        if x and x + each.width > limit:
            x, y, tallest = 0, y + tallest + _GAP, 0
        each.x, each.y = x, y
        x, tallest, widest = x + each.width + _GAP, max(tallest, each.height), max(widest, x + each.width)
    if box.title:
        for each in box.inside:
            each.x, each.y = each.x + _PAD, each.y + _TITLE + _GAP
        widest = max(widest, 7 * len(box.title)) + 2 * _PAD
        tallest += _TITLE + _GAP + _PAD
    box.width, box.height = widest, y + tallest


def _drawn(box: _Box, x: int, y: int) -> Iterator[str]:
    x, y = x + box.x, y + box.y
    yield f'<rect class="{box.css}" x="{x}" y="{y}" width="{box.width}" height="{box.height}" rx="7">'
    yield f"<title>{escape(box.about or box.title)}</title></rect>"
    short = box.title if box.inside or len(box.title) <= 12 else f"{box.title[:11]}…"
    yield f'<text x="{x + 10}" y="{y + 19}">{escape(short)}</text>'
    for each in box.inside:
        yield from _drawn(each, x, y)
