"""Fleets on paper, from words, from openb's list of nodes, or from JSON. No I/O: texts come in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from phalanx.core.errors import InvalidSpecError
from phalanx.core.messages import GpuInfo, NodeInfo
from phalanx.core.topology.codec import to_json
from phalanx.core.topology.node import NodeTopology
from phalanx.core.topology.presets import PRESETS, nearest_preset, preset
from phalanx_control.simulator.tables import Row, rows_of

EXAMPLE = "write it as `64 x aws_p5`, `8x8`, or `16 x 4 gpu=A100`, several of them one after the other"
_GROUP = re.compile(r"\s*(\d+)\s*[x×]\s*([A-Za-z0-9_.-]+)(?:\s+gpu=([^\s,]+))?,?", re.IGNORECASE)
_MOST_NODES = 100_000
_MOST_GPUS = 64
_OPENB = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """``name``: as people said it. ``fabric``: as JSON, or ""."""

    name: str
    nodes: tuple[NodeInfo, ...]
    fabric: str = ""

    @property
    def gpus(self) -> int:
        return sum(len(node.gpus) for node in self.nodes)

    def beside(self, more: Fleet) -> Fleet:
        """Returns both fleets as one. Raises InvalidSpecError where a node of each has the same name."""
        taken = {node.node_id for node in self.nodes} & {node.node_id for node in more.nodes}
        if taken:
            raise InvalidSpecError(
                f"two nodes are called {min(taken)!r}", hint="give the nodes of one file other names"
            )
        return Fleet(name=f"{self.name} + {more.name}", nodes=(*self.nodes, *more.nodes), fabric=self.fabric)


def from_words(text: str, *, prefix: str = "") -> Fleet:
    """Reads ``64 x aws_p5 8 x 4 gpu=A100``. Raises InvalidSpecError naming what cannot be read."""
    nodes: list[NodeInfo] = []
    at = 0
    while text[at:].strip():
        match = _GROUP.match(text, at)
        if match is None:
            raise InvalidSpecError(f"{text[at:].strip()[:60]!r} is no number of machines", hint=EXAMPLE)
        count, machine, model = int(match[1]), match[2], match[3] or ""
        if not count or len(nodes) + count > _MOST_NODES:
            raise InvalidSpecError(f"{match[0].strip()!r}: give 1 to {_MOST_NODES:,} nodes", hint=EXAMPLE)
        stem = f"{prefix}{machine if not machine.isdecimal() else 'node'}"
        look = _plain(int(machine), model) if machine.isdecimal() else _like_preset(machine)
        nodes += [_named(look, f"{stem}-{len(nodes) + number}") for number in range(1, count + 1)]
        at = match.end()
    if not nodes:
        raise InvalidSpecError("no machines are named", hint=EXAMPLE)
    return Fleet(name=" ".join(text.split()), nodes=tuple(nodes))


def _plain(gpus: int, model: str) -> NodeInfo:
    if gpus > _MOST_GPUS:
        raise InvalidSpecError(f"{gpus} GPUs on a node: give at most {_MOST_GPUS}", hint=EXAMPLE)
    return NodeInfo(gpus=tuple(GpuInfo(index=at, model=model) for at in range(gpus)))


def _like_preset(machine: str) -> NodeInfo:
    if machine not in PRESETS:
        near = nearest_preset(machine)
        raise InvalidSpecError(
            f"no machine {machine[:60]!r}{f': did you mean {near}?' if near else ''}",
            hint=f"one of: {', '.join(PRESETS)}",
        )
    return _like(preset(machine))


def _like(topology: NodeTopology) -> NodeInfo:
    return NodeInfo(
        gpus=tuple(GpuInfo(index=gpu.index, model=gpu.model) for gpu in topology.gpus), topology=to_json(topology)
    )


def _named(look: NodeInfo, name: str) -> NodeInfo:
    """Returns a node that looks like ``look``, with a name and GPUs of its own."""
    gpus = tuple(replace(gpu, uuid=f"{name}/{gpu.index}") for gpu in look.gpus)
    text = look.topology
    for was, gpu in zip(look.gpus, gpus, strict=True):
        old = was.uuid or f"index-{gpu.index}"
        text = text.replace(json.dumps(old), json.dumps(gpu.uuid))
    return replace(look, node_id=name, hostname=name, gpus=gpus, topology=text)


# ---- files ----


def from_file(text: str, *, name: str) -> Fleet:
    """Reads openb's list of nodes or our JSON. Raises InvalidSpecError naming line and column of what is wrong."""
    fleet = _from_json(text, name) if text.lstrip().startswith(("{", "[")) else _from_openb(text, name)
    if not fleet.nodes:
        raise InvalidSpecError(f"{name} names no nodes")
    return fleet


def _from_openb(text: str, name: str) -> Fleet:
    rows = rows_of(text, name, _OPENB, what="a list of nodes")
    return Fleet(name=name, nodes=tuple(_openb_node(row) for row in rows))


def _openb_node(row: Row) -> NodeInfo:
    gpus, model = row.whole("gpu"), row.text("model")
    look = NodeInfo(
        cpus=row.whole("cpu_milli") // 1000,
        memory_bytes=row.whole("memory_mib") * _MIB,
        gpus=tuple(GpuInfo(index=at, model=model) for at in range(gpus)),
    )
    return _named(look, row.text("sn"))


def _from_json(text: str, name: str) -> Fleet:
    """``{"nodes": [{"name", "gpus", "gpu", "cpus", "memory_gb", "count", "preset"}], "fabric": {…}}``."""
    try:
        said = json.loads(text)
    except json.JSONDecodeError as e:
        raise InvalidSpecError(f"{name}, line {e.lineno}, column {e.colno}: {e.msg}", hint="mend the JSON") from e
    if not isinstance(said, dict) or not isinstance(said.get("nodes"), list):
        raise InvalidSpecError(f'{name} has no list "nodes"', hint='{"nodes": [{"name": "n", "gpus": 8, "count": 4}]}')
    nodes: list[NodeInfo] = []
    for at, each in enumerate(said["nodes"]):
        nodes += _nodes_of(each, f"{name}, node {at + 1}")
    fabric = json.dumps(said["fabric"]) if said.get("fabric") else ""
    return Fleet(name=name, nodes=tuple(nodes), fabric=fabric)


def _nodes_of(said: Any, where: str) -> Iterable[NodeInfo]:
    if not isinstance(said, Mapping) or not isinstance(said.get("name"), str) or not said["name"]:
        raise InvalidSpecError(f'{where} has no "name"', hint='{"name": "n", "gpus": 8}')
    numbers = {
        key: said.get(key, default) for key, default in (("gpus", 0), ("cpus", 0), ("memory_gb", 0), ("count", 1))
    }
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise InvalidSpecError(f"{where}: {key} is {value!r}: give a number", hint='{"name": "n", "gpus": 8}')
    look = (
        _like_preset(str(said["preset"]))
        if said.get("preset")
        else _plain(int(numbers["gpus"]), str(said.get("gpu", "")))
    )
    look = replace(look, cpus=int(numbers["cpus"]), memory_bytes=int(numbers["memory_gb"] * 10**9))
    count = int(numbers["count"])
    names = (said["name"],) if count == 1 else (f"{said['name']}-{number}" for number in range(1, count + 1))
    return [_named(look, name) for name in names]
