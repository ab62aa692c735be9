"""Writes a fabric as JSON and reads it back, and says whether two fabrics are the same one. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from typing import cast

from phalanx.core.errors import InvalidSpecError
from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.fabric import Domain, Fabric, FabricNode, InvalidFabricError
from phalanx.core.topology.json_text import Object, object_in, read_json

FORMAT = "phalanx-fabric-1"
MAX_CHARS = 64 << 20
MOST_STORED_BYTES = 2 << 20
"""What a cell keeps of its fabric at most: it travels in one message, and is one entry of the log."""
_FIGURES = frozenset({"bandwidth_gbyte_s", "oversubscription"})


def fabric_to_json(fabric: Fabric) -> str:
    """Returns one line of JSON, the same for equal fabrics. Facts that are unknown or empty are left out."""
    document: Object = {
        "format": FORMAT,
        "levels": fabric.levels,
        "domains": [_known(asdict(domain)) for domain in fabric.domains],
        "nodes": [_known(asdict(node)) for node in fabric.nodes],
        "notes": fabric.notes,
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def within_limits(text: str) -> str:
    """Returns the text. Raises InvalidSpecError where a cell does not keep as much."""
    size = len(text.encode())
    if size > MOST_STORED_BYTES:
        raise InvalidSpecError(
            f"the fabric takes {size} bytes: a cell keeps {MOST_STORED_BYTES}, which is enough for some 15,000 nodes",
            hint="leave out nodes that are not of this cell",
        )
    return text


def fabric_from_json(text: str) -> Fabric:
    """Returns what `fabric_to_json` wrote. Raises UnreadableTopologyError, naming the fact that is not as expected."""
    document = object_in(read_json(text, "fabric", max_chars=MAX_CHARS))
    if document.get("format") != FORMAT:
        raise UnreadableTopologyError(f'expected an object with "format": "{FORMAT}"')
    _refuse_unknown(document, ("format", "levels", "domains", "nodes", "notes"), "fabric")
    try:
        return Fabric(
            levels=_texts(document, "levels", "fabric"),
            domains=tuple(_domain(item, f"domains[{at}]") for at, item in enumerate(_objects(document, "domains"))),
            nodes=tuple(_node(item, f"nodes[{at}]") for at, item in enumerate(_objects(document, "nodes"))),
            notes=_texts(document, "notes", "fabric"),
        )
    except InvalidFabricError as error:
        raise UnreadableTopologyError(str(error)) from error


def fabric_hash(fabric: Fabric) -> str:
    """Returns 64 hexadecimal digits, the same for fabrics that differ only in notes and in the order of their lists."""
    plain = replace(
        fabric,
        domains=tuple(sorted(fabric.domains, key=lambda domain: domain.id)),
        nodes=tuple(sorted(fabric.nodes, key=lambda node: node.id)),
        notes=(),
    )
    return hashlib.sha256(fabric_to_json(plain).encode()).hexdigest()


def _known(facts: Object) -> Object:
    """Leaves out what is unknown or empty, and writes figures in one way: 100 and 100.0 are the same."""
    known = {key: value for key, value in facts.items() if value is not None and value != ()}
    return {key: float(value) if key in _FIGURES and isinstance(value, int) else value for key, value in known.items()}


def _refuse_unknown(item: Object, names: Iterable[str], where: str) -> None:
    unknown = next((name for name in item if name not in names), None)
    if unknown is not None:
        raise UnreadableTopologyError(f"{where}.{unknown[:40]}: expected no such fact")


def _domain(item: Object, where: str) -> Domain:
    _refuse_unknown(item, [each.name for each in fields(Domain)], where)
    return Domain(
        id=_text(item, "id", where) or "",
        level=_text(item, "level", where) or "",
        parent=_text(item, "parent", where),
        bandwidth_gbyte_s=_figure(item, "bandwidth_gbyte_s", where),
        oversubscription=_figure(item, "oversubscription", where),
        switches=_texts(item, "switches", where),
    )


def _node(item: Object, where: str) -> FabricNode:
    _refuse_unknown(item, [each.name for each in fields(FabricNode)], where)
    return FabricNode(
        id=_text(item, "id", where) or "",
        domain=_text(item, "domain", where),
        nvl_domain=_text(item, "nvl_domain", where),
        rails=_numbers(item, "rails", where),
        degraded_rails=_numbers(item, "degraded_rails", where),
    )


def _objects(document: Object, key: str) -> list[Object]:
    items = _list(document, key, "fabric")
    if not all(isinstance(item, dict) for item in items):
        raise UnreadableTopologyError(f"fabric.{key}: expected a list of objects")
    return cast("list[Object]", items)


def _list(item: Object, key: str, where: str) -> list[object]:
    value = item.get(key, [])
    if not isinstance(value, list):
        raise UnreadableTopologyError(f"{where}.{key}: expected a list")
    return cast("list[object]", value)


def _text(item: Object, key: str, where: str) -> str | None:
    value = item.get(key)
    if value is not None and not isinstance(value, str):
        raise UnreadableTopologyError(f"{where}.{key}: expected text")
    return value


def _texts(item: Object, key: str, where: str) -> tuple[str, ...]:
    values = _list(item, key, where)
    if not all(isinstance(value, str) for value in values):
        raise UnreadableTopologyError(f"{where}.{key}: expected a list of texts")
    return tuple(cast("list[str]", values))


def _numbers(item: Object, key: str, where: str) -> tuple[int, ...]:
    values = _list(item, key, where)
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        raise UnreadableTopologyError(f"{where}.{key}: expected a list of whole numbers")
    return tuple(cast("list[int]", values))


def _figure(item: Object, key: str, where: str) -> float | None:
    value = item.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnreadableTopologyError(f"{where}.{key}: expected a number")
    try:
        return float(value)
    except OverflowError as error:
        raise UnreadableTopologyError(f"{where}.{key}: expected a number that a machine can hold") from error
