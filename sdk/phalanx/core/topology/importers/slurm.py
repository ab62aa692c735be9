"""Reads Slurm's `topology.conf`, of the tree and of the block plugin. Pure.

Tree: switches without switches below are leaves, those above them spines, then cores. Block: `BlockSizes` 18,36 says
that two blocks next to each other are one place again. Of a file that has both, the tree counts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.fabric import Domain, Fabric, FabricNode
from phalanx.core.topology.importers.hostlist import MAX_NAMES, expand
from phalanx.core.topology.importers.reading import bounded_lines
from phalanx.core.topology.importers.tree_draft import TreeDraft

MAX_LEVELS = 8
_LEVELS = ("leaf", "spine", "core", *(f"core-{at}" for at in range(2, MAX_LEVELS - 1)))
_SETTING = re.compile(r"([A-Za-z]\w*)=(\S*)")
_REAL_NAME = re.compile(r"#\s*(\S{1,255})=(\S{1,255})\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A switch or a block."""

    name: str
    line: int
    nodes: tuple[str, ...]
    switches: tuple[str, ...] = ()


@dataclass(slots=True)
class _Config:
    switches: dict[str, _Entry]
    blocks: dict[str, _Entry]
    block_sizes: tuple[int, ...]
    real_names: dict[str, str]
    """From comments such as ``# switch.1.1=leaf-1-1``, which tools write that shorten names."""
    notes: list[str]
    names: int = 0
    """How many have been expanded so far."""


def read_slurm_topology(text: str) -> Fabric:
    """Returns the fabric. Raises UnreadableTopologyError, with the line."""
    config = _Config({}, {}, (), {}, [])
    lines = bounded_lines(text, "topology.conf")
    for number, line in _whole_lines(lines):
        if match := _REAL_NAME.fullmatch(line):
            config.real_names[match[1]] = match[2]
        settings = line.partition("#")[0].strip()
        if settings:
            _read_settings(config, settings, number)
    if config.switches:
        return _tree_fabric(config)
    if config.blocks:
        return _block_fabric(config)
    first = next((at for at, line in enumerate(lines, start=1) if line.strip()), 1)
    raise UnreadableTopologyError("no switch and no block: expected SwitchName=leaf1 Nodes=node[01-32]", line=first)


def _whole_lines(lines: list[str]) -> list[tuple[int, str]]:
    r"""Joins lines that end in "\" with the next; the number is that of the first."""
    found: list[tuple[int, str]] = []
    parts: list[str] = []
    for number, line in enumerate(lines, start=1):
        parts.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            found.append((number - len(parts) + 1, " ".join(parts).strip()))
            parts = []
    return [*found, *([(len(lines) - len(parts) + 1, " ".join(parts).strip())] if parts else [])]


def _read_settings(config: _Config, text: str, line: int) -> None:
    settings = {key.lower(): value for key, value in _SETTING.findall(text)}
    kind = next((key for key in ("switchname", "blockname") if key in settings), "")
    if kind:
        into = config.switches if kind == "switchname" else config.blocks
        _add_entry(config, into, settings, line)
    elif "blocksizes" in settings:
        sizes = settings["blocksizes"].split(",")
        if not all(re.fullmatch(r"[1-9][0-9]{0,6}", size) for size in sizes):
            raise UnreadableTopologyError(
                f"BlockSizes={settings['blocksizes'][:40]}: expected such as 18,36", line=line
            )
        config.block_sizes = tuple(sorted({int(size) for size in sizes}))
    else:
        config.notes.append(f"line {line}: left out: expected SwitchName=, BlockName= or BlockSizes=")


def _add_entry(config: _Config, into: dict[str, _Entry], settings: dict[str, str], line: int) -> None:
    name = settings.get("switchname") or settings.get("blockname") or ""
    if not name:
        raise UnreadableTopologyError("a switch or block without a name", line=line)
    if name in into:
        raise UnreadableTopologyError(f"{name[:80]} is there twice: line {into[name].line} has it too", line=line)
    nodes = tuple(expand(settings.get("nodes", ""), line=line))
    switches = tuple(expand(settings.get("switches", ""), line=line))
    config.names += len(nodes) + len(switches) + 1
    if config.names > 2 * MAX_NAMES:
        raise UnreadableTopologyError(f"more than {2 * MAX_NAMES} names: no cluster has so many", line=line)
    into[name] = _Entry(name=name, line=line, nodes=nodes, switches=switches)


def _tree_fabric(config: _Config) -> Fabric:
    if config.blocks:
        config.notes.append(f"{len(config.blocks)} blocks are left out: the switches say where nodes are")
    parents = _parents(config)
    heights = _heights(config)
    draft = TreeDraft(_LEVELS, notes=config.notes)
    for switch in config.switches.values():
        real = config.real_names.get(switch.name, switch.name)
        level = _LEVELS[heights[switch.name]]
        draft.add_domain(Domain(id=switch.name, level=level, parent=parents.get(switch.name), switches=(real,)))
        for node in switch.nodes:
            draft.add_node(FabricNode(id=node, domain=switch.name))
    return draft.fabric()


def _parents(config: _Config) -> dict[str, str]:
    parents: dict[str, str] = {}
    for switch in config.switches.values():
        for child in switch.switches:
            if child not in config.switches:
                config.notes.append(f"line {switch.line}: {child} has no line of its own: left out")
            elif parents.setdefault(child, switch.name) != switch.name:
                config.notes.append(f"line {switch.line}: {child} lies in {parents[child]} already: that counts")
    return parents


def _heights(config: _Config) -> dict[str, int]:
    """Returns how far each switch is above the lowest below it. Raises UnreadableTopologyError for a circle."""
    above: dict[str, list[str]] = defaultdict(list)
    waiting_for: dict[str, int] = {}
    for switch in config.switches.values():
        below = {child for child in switch.switches if child in config.switches}
        waiting_for[switch.name] = len(below)
        for child in below:
            above[child].append(switch.name)
    heights = dict.fromkeys((name for name, count in waiting_for.items() if count == 0), 0)
    ready = list(heights)
    for name in ready:
        for parent in above[name]:
            waiting_for[parent] -= 1
            heights[parent] = max(heights.get(parent, 0), heights[name] + 1)
            if waiting_for[parent] == 0:
                ready.append(parent)
    circle = [name for name, count in waiting_for.items() if count > 0]
    if circle:
        line = config.switches[circle[0]].line
        raise UnreadableTopologyError(f"{circle[0][:80]} lies in itself, through the switches below it", line=line)
    tall = max(ready, key=lambda name: heights[name])
    if heights[tall] >= MAX_LEVELS:
        line = config.switches[tall].line
        raise UnreadableTopologyError(
            f"{heights[tall] + 1} levels of switches: expected {MAX_LEVELS} at most", line=line
        )
    return heights


def _block_fabric(config: _Config) -> Fabric:
    base = config.block_sizes[0] if config.block_sizes else 1
    spans = [size // base for size in config.block_sizes if size > base and size % base == 0][: MAX_LEVELS - 1]
    draft = TreeDraft(("block", *(f"{span}-blocks" for span in spans)), notes=config.notes)
    for at, block in enumerate(config.blocks.values()):
        path = [(f"{span}-blocks", f"{span}-blocks:{at // span}") for span in reversed(spans)]
        domain = draft.add_path([*path, ("block", block.name)])
        for node in block.nodes:
            draft.add_node(FabricNode(id=node, domain=domain))
    return draft.fabric()
