"""Decides what the ranks of a gang get on this node, before they are forked: variables, processors, memory, ports.

The deciding is `phalanx.core.topology`'s; here are the facts that only this machine knows, and the files that ranks and
NCCL read. Blocking, but for a millisecond: called in a thread.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from phalanx.core.files import replace_file
from phalanx.core.topology.affinity import Binding, Host, bindings
from phalanx.core.topology.codec import to_json
from phalanx.core.topology.equipment import Equipment, RankEquipment, Variable, to_text, with_own
from phalanx.core.topology.importers.reading import number_list
from phalanx.core.topology.nccl_env import OWN_PREFIXES, GangOnNode, Network, given, network_of
from phalanx.core.topology.nccl_xml_text import nccl_xml_text
from phalanx.core.topology.node import NodeTopology
from phalanx.core.topology.restricted import positions_of
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.interfaces import interface_towards
from phalanx_agent.rendezvous import split
from phalanx_agent.worker.limits import prefer_memory


class Equipper:
    """Equips gang after gang of one node. ``run_dir`` gets a folder ``topology`` that every rank may read."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / "topology"
        self._written: tuple[NodeTopology, Path] | None = None
        self._refusals: dict[int, str] = {}

    def equip(self, config: GangConfig, topology: NodeTopology | None) -> GangConfig:
        """Returns ``config`` with what its ranks get. Raises OSError where the topology cannot be written."""
        ranks = _gpus_by_rank(config, topology)
        path = self._file(topology) if topology is not None else None
        network = network_of(
            GangOnNode(
                node=topology,
                gpus=ranks,
                ranks=config.world_size,
                nodes=len(config.members),
                interface=_interface(config),
                address=config.rendezvous,
                differs=config.networks_differ,
                nccl_file=_nccl_file(config, topology, path),
            )
        )
        bound = bindings(
            topology,
            ranks,
            Host(allowed=frozenset(os.sched_getaffinity(0)), simulated=config.simulated),
            cpus=config.function.resources.cpus,
            share=config.member.share,
            gang_id=config.gang_id,
        )
        ranks_got = [self._rank(topology, ranks[at], each, network, at) for at, each in enumerate(bound)]
        made = Equipment(
            ranks=tuple(map(_named, ranks_got, _uuids_by_rank(config))),
            variables=_with_own(network, config),
            topology=str(path or ""),
        )
        return replace(config, equipment=to_text(made))

    def _rank(
        self, topology: NodeTopology | None, gpus: Sequence[int], bound: Binding, network: Network, at: int
    ) -> RankEquipment:
        numa, numa_why = self._memory(bound)
        near = network.near[at] if at < len(network.near) else None
        node = topology or NodeTopology()
        return RankEquipment(
            gpus=tuple(str(node.gpus[each].index) for each in gpus),
            numa=tuple(sorted({place for each in gpus for place in node.gpus[each].numa or ()})),
            cpus=number_list(list(bound.cpus)),
            cpus_why=bound.why,
            sharers=bound.sharers,
            memory_numa=numa,
            memory_why=numa_why,
            ports=tuple(node.nics[each].name for each in near.ports) if near is not None else (),
            ports_why=near.why if near is not None else "",
        )

    def _memory(self, bound: Binding) -> tuple[int | None, str]:
        """Prefers no memory that the kernel does not let one prefer: this thread tries, since ranks are told to."""
        if bound.numa is None:
            return None, bound.numa_why
        if bound.numa not in self._refusals:
            self._refusals[bound.numa] = _try_memory(bound.numa)
        refusal = self._refusals[bound.numa]
        return (
            (None, f"NUMA node {bound.numa} is not preferred: {refusal}") if refusal else (bound.numa, bound.numa_why)
        )

    def _file(self, topology: NodeTopology) -> Path:
        """Writes a topology once, under the digest of what it says; a gang keeps its file when another one comes."""
        if self._written is not None and self._written[0] is topology:
            return self._written[1]
        text = to_json(topology)
        path = self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        if not path.exists():
            self._folder.mkdir(exist_ok=True)
            self._folder.chmod(0o755)
            replace_file(path, text, mode=0o644)
        self._written = topology, path
        return path


def _named(rank: RankEquipment, uuids: tuple[str, ...]) -> RankEquipment:
    """Names GPUs of which no index is known."""
    return rank if rank.gpus else replace(rank, gpus=uuids)


def _uuids_by_rank(config: GangConfig) -> list[tuple[str, ...]]:
    member = config.member
    alone = len(member.gpus) == member.ranks
    return [(uuid,) for uuid in member.gpus] if alone else [member.gpus] * member.ranks


def _gpus_by_rank(config: GangConfig, topology: NodeTopology | None) -> tuple[tuple[int, ...], ...]:
    held = _uuids_by_rank(config)
    return tuple(positions_of(topology, uuids) if topology is not None else () for uuids in held)


def _interface(config: GangConfig) -> str:
    return interface_towards(*split(config.rendezvous)) if config.world_size > 1 else ""


def _nccl_file(config: GangConfig, topology: NodeTopology | None, path: Path | None) -> str:
    """Writes the topology as NCCL reads it, where NCCL cannot see it: on simulated nodes, and where it was given."""
    if topology is None or path is None or config.world_size < 2 or not (config.simulated or given(topology)):
        return ""
    if not config.simulated and not all(part.pci for part in (*topology.gpus, *topology.nics)):
        return ""
    file = path.with_suffix(".xml")
    if not file.exists():
        replace_file(file, nccl_xml_text(topology), mode=0o644)
    return str(file)


def _with_own(network: Network, config: GangConfig) -> tuple[Variable, ...]:
    """What an operator gives the agent wins over the node's choice, and what the function sets wins over both."""
    operators = with_own(network.variables, _own(os.environ), "the agent's environment")
    return with_own(operators, _own(dict(config.function.env.variables)), "the function's env(vars=)")


def _own(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(OWN_PREFIXES)}


def _try_memory(numa: int) -> str:
    """Returns why this machine does not prefer the memory of a NUMA node; "" where it does."""
    try:
        prefer_memory(numa)
        prefer_memory(None)
    except OSError as e:
        return e.strerror or str(e)
    return ""
