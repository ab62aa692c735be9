"""A node's topology as JSON text and back, and a hash that nodes which look alike share."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, cast

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.node import Gpu, Health, Link, LinkLayer, MigDevice, Nic, NicLink, NodeTopology, Path

FORMAT = "phalanx-topology-1"
_MAX_CHARS = 16 << 20
_NVL_DOMAIN = re.compile(r'"nvl_domain": ?("(?:[^"\\]|\\.)*")')
_ANSWER = re.compile(r'\s*\{"node": ?"[^"\\]*", ?"topology": ?(\{.*\})\}\s*', re.DOTALL)
_MAX_WHOLE = 1 << 63
_LINKS_KEPT = 4096
_Reader = Callable[[object, str], Any]
"""Takes a JSON value and its path, as ``gpus[2].numa``."""


def to_json(topology: NodeTopology) -> str:
    """Returns one object; unknown facts are left out."""
    return json.dumps({"format": FORMAT, **_plain(topology)}, allow_nan=False)


def from_answer(text: str) -> NodeTopology:
    """Reads what `to_json` wrote, or one line of `gpuctl topo --json`, which says the node's name beside it."""
    match = _ANSWER.fullmatch(text)
    return from_json(match[1] if match else text)


def from_json(text: str) -> NodeTopology:
    """Raises UnreadableTopologyError, naming the field, for anything that `to_json` would not have written."""
    if len(text) > _MAX_CHARS:
        raise UnreadableTopologyError(f"{len(text)} characters: expected {_MAX_CHARS} at most")
    try:
        data: object = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except UnreadableTopologyError:
        raise
    except json.JSONDecodeError as error:
        raise UnreadableTopologyError(f"expected JSON: {error.msg}", line=error.lineno) from None
    except (ValueError, RecursionError) as error:
        raise UnreadableTopologyError(f"expected JSON: {str(error)[:100]}") from None
    if not isinstance(data, dict) or cast("dict[str, object]", data).get("format") != FORMAT:
        raise UnreadableTopologyError(f'expected an object with "format": "{FORMAT}"')
    facts = {name: value for name, value in cast("dict[str, object]", data).items() if name != "format"}
    topology = cast("NodeTopology", _NODE(facts, ""))
    _refuse_misfits(topology)
    return topology


def nvl_domain_in(text: str) -> str | None:
    """Returns the NVLink domain that a topology as JSON names, without reading the rest; None where it names none.

    Inside a JSON string a quote is escaped, so that no note can look like the fact.
    """
    found = _NVL_DOMAIN.search(text)
    try:
        return str(json.loads(found[1])) or None if found else None
    except ValueError:
        return None


def topology_hash(topology: NodeTopology) -> str:
    """Returns 32 hexadecimal digits over what choices depend on: what the parts are, and how they are connected.

    Names are left out, since they differ between nodes that look alike: UUIDs, PCI addresses, names and GUIDs of
    network cards, the NVLink domain; so are versions, CPU lists, which a cgroup may cut, and where things were read;
    and what was measured, unless it was found to be wrong or slow.
    """
    places = {gpu.uuid: at for at, gpu in enumerate(topology.gpus)}
    seen = {
        "gpus": [_seen(gpu, {"uuid", "pci", "cpus", "reason", "mig"}) for gpu in topology.gpus],
        "mig": [[device.profile for device in gpu.mig] for gpu in topology.gpus],
        "links": [[_as_chosen_by(link) for link in row] for row in topology.links],
        "nics": [_seen(nic, {"name", "interface", "pci", "bond", "guid"}) for nic in topology.nics],
        "bonds": [len(nic.bond) for nic in topology.nics],
        "nic_links": [[_link(link) for link in row] for row in topology.nic_links],
        "partitions": sorted(sorted(places.get(uuid, -1) for uuid in each) for each in topology.partitions),
        "pcie_gen": topology.pcie_gen,
        "socket_gbyte_s": topology.socket_gbyte_s,
    }
    text = json.dumps([FORMAT, seen], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@lru_cache(maxsize=_LINKS_KEPT)
def _as_chosen_by(link: Link) -> dict[str, Any]:
    return _plain(replace(link, measured_gbyte_s=None, copies=None if link.copies else link.copies))


@lru_cache(maxsize=_LINKS_KEPT)
def _link(link: Link | NicLink) -> dict[str, Any]:
    return _plain(link)


def _seen(part: Gpu | Nic, names: set[str]) -> dict[str, object]:
    return {name: value for name, value in _plain(part).items() if name not in names}


def _plain(record: Any) -> dict[str, Any]:
    """Fields that say more than their default, as JSON can hold them."""
    kept = ((each, getattr(record, each.name)) for each in fields(record))
    return {each.name: _value(value) for each, value in kept if each.default is MISSING or value != each.default}


def _value(value: Any) -> object:
    if isinstance(value, tuple):
        return [_value(each) for each in cast("tuple[object, ...]", value)]
    return _plain(value) if is_dataclass(value) else value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise UnreadableTopologyError(
            f"{next(name for name in names if names.count(name) > 1)[:60]!r} stands there twice"
        )
    return made


def _no_constant(word: str) -> object:
    raise UnreadableTopologyError(f"{word} is not a figure: leave out what is unknown")


def _wrong(path: str, expected: str, value: object) -> UnreadableTopologyError:
    shown = repr(value) if isinstance(value, bool | int | float | str) or value is None else type(value).__name__
    return UnreadableTopologyError(f"{path or 'the node'}: expected {expected}, not {shown[:60]}")


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise _wrong(path, "a text", value)
    return value


def _whole(value: object, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MAX_WHOLE:
        raise _wrong(path, "a whole number from 0", value)
    return value


def _figure(value: object, path: str) -> float:
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not 0 <= value < _MAX_WHOLE
        or math.isnan(value)
    ):
        raise _wrong(path, "a number from 0", value)
    return float(value)


def _flag(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(path, "true or false", value)
    return value


def _one_of(kind: type[StrEnum]) -> _Reader:
    def read(value: object, path: str) -> StrEnum:
        if not isinstance(value, str) or value not in {each.value for each in kind}:
            raise _wrong(path, f"one of {', '.join(kind)}", value)
        return kind(value)

    return read


def _many(reader: _Reader) -> _Reader:
    def read(value: object, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _wrong(path, "a list", value)
        return tuple(reader(each, f"{path}[{at}]") for at, each in enumerate(cast("list[object]", value)))

    return read


def _fact_and_source(value: object, path: str) -> tuple[str, str]:
    pair: tuple[str, ...] = _many(_text)(value, path)
    if len(pair) != 2:
        raise _wrong(path, "a fact and where it was read", value)
    return pair[0], pair[1]


def _record(kind: type[Any], readers: Mapping[str, _Reader]) -> _Reader:
    known = {each.name: each for each in fields(kind)}

    def read(value: object, path: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(path, "an object", value)
        values = cast("dict[str, object]", value)
        made: dict[str, Any] = {}
        for name, each in values.items():
            at = f"{path}.{name[:60]}".lstrip(".")
            if name not in known:
                raise UnreadableTopologyError(f"{at}: unknown field: expected one of {', '.join(known)}")
            made[name] = None if each is None and known[name].default is None else readers[name](each, at)
        for name, each in known.items():
            if name not in values and each.default is MISSING and each.default_factory is MISSING:
                raise UnreadableTopologyError(f"{path}.{name}: missing".lstrip("."))
        return kind(**made)

    return read


READERS: dict[type, dict[str, _Reader]] = {
    MigDevice: {"uuid": _text, "profile": _text, "gpu_instance": _whole},
    Link: {
        "nvlinks": _whole,
        "path": _one_of(Path),
        "switched": _flag,
        "copies": _flag,
        "measured_gbyte_s": _figure,
        "slowed": _figure,
    },
    NicLink: {"path": _one_of(Path), "bridges": _whole, "gpudirect": _flag},
}
"""By class and field."""
READERS[Gpu] = {
    **dict.fromkeys(("uuid", "model", "pci", "cpus", "reason"), _text),
    **dict.fromkeys(("index", "memory_bytes", "memory_numa", "compute", "module_id"), _whole),
    **dict.fromkeys(("nvlinks_active", "nvlinks_total"), _whole),
    "nvlink_gbyte_s": _figure,
    "numa": _many(_whole),
    "mig_enabled": _flag,
    "mig": _many(_record(MigDevice, READERS[MigDevice])),
    "health": _one_of(Health),
}
READERS[Nic] = {
    **dict.fromkeys(("name", "interface", "pci", "guid"), _text),
    **dict.fromkeys(("up", "virtual"), _flag),
    "numa": _many(_whole),
    "layer": _one_of(LinkLayer),
    "rate_gbit_s": _figure,
    "bond": _many(_text),
    "rail": _whole,
}
READERS[NodeTopology] = {
    "gpus": _many(_record(Gpu, READERS[Gpu])),
    "links": _many(_many(_record(Link, READERS[Link]))),
    "nics": _many(_record(Nic, READERS[Nic])),
    "nic_links": _many(_many(_record(NicLink, READERS[NicLink]))),
    "partitions": _many(_many(_text)),
    "pcie_gen": _whole,
    "socket_gbyte_s": _figure,
    "all_reduce_gbyte_s": _figure,
    **dict.fromkeys(("nvl_domain", "driver", "cuda"), _text),
    "sources": _many(_fact_and_source),
    "notes": _many(_text),
}
_NODE = _record(NodeTopology, READERS[NodeTopology])


def _refuse_misfits(topology: NodeTopology) -> None:
    gpus, nics = len(topology.gpus), len(topology.nics)
    if len({gpu.uuid for gpu in topology.gpus}) < gpus:
        raise UnreadableTopologyError("gpus: two have the same uuid")
    for name, rows, width in (("links", topology.links, gpus), ("nic_links", topology.nic_links, nics)):
        if rows and len(rows) != gpus:
            raise UnreadableTopologyError(f"{name}: {len(rows)} rows for {gpus} GPUs")
        for at, row in enumerate(rows):
            if len(row) != width:
                raise UnreadableTopologyError(f"{name}[{at}]: {len(row)} columns: expected {width}")
