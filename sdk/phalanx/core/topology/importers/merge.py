"""Adds facts of single GPUs, from a second text, to a node. What is unknown there leaves what is known here alone."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.topology.importers.mig_list import GpuMig, MigFacts
from phalanx.core.topology.importers.nvlink_status import GpuNvlinks, NvlinkFacts
from phalanx.core.topology.node import Gpu, Link, NodeTopology

Facts = NvlinkFacts | MigFacts
_STAND_INS = ("index-", "pci-")


def with_facts(topology: NodeTopology, facts: Facts) -> NodeTopology:
    """Returns the node with the facts of those GPUs that it has, found by UUID, else by index; a note names the others.

    UUIDs replace the stand-ins of texts that have none (``index-0``, ``pci-0000:3b:00.0``).
    """
    notes = [*topology.notes, *facts.notes]
    found: dict[int, GpuNvlinks | GpuMig] = {}
    for fact in facts.gpus:
        at = _position(topology, fact)
        if at is None:
            notes.append(f"{_kind(facts)} has GPU {fact.index} {fact.uuid}, which this node has not: left out")
        else:
            found.setdefault(at, fact)
    gpus = tuple(_with_fact(gpu, found.get(at)) for at, gpu in enumerate(topology.gpus))
    renamed = {old.uuid: new.uuid for old, new in zip(topology.gpus, gpus, strict=True)}
    return replace(
        topology,
        gpus=gpus,
        links=_without_nvlinks(topology.links, {at for at, gpu in enumerate(gpus) if gpu.nvlinks_active == 0}),
        partitions=tuple(tuple(renamed.get(uuid, uuid) for uuid in each) for each in topology.partitions),
        sources=_sources(topology.sources, facts) if found else topology.sources,
        notes=tuple(notes),
    )


def _position(topology: NodeTopology, fact: GpuNvlinks | GpuMig) -> int | None:
    if fact.uuid:
        for at, gpu in enumerate(topology.gpus):
            if gpu.uuid == fact.uuid:
                return at
    for at, gpu in enumerate(topology.gpus):
        if gpu.index == fact.index and (not fact.uuid or not gpu.uuid or gpu.uuid.startswith(_STAND_INS)):
            return at
    return None


def _with_fact(gpu: Gpu, fact: GpuNvlinks | GpuMig | None) -> Gpu:
    if fact is None:
        return gpu
    gpu = replace(gpu, uuid=fact.uuid or gpu.uuid, model=gpu.model or fact.model)
    if isinstance(fact, GpuMig):
        return replace(gpu, mig_enabled=True, mig=fact.mig) if fact.mig else gpu
    return replace(
        gpu,
        nvlinks_active=gpu.nvlinks_active if fact.active is None else fact.active,
        nvlinks_total=gpu.nvlinks_total if fact.total is None else fact.total,
        nvlink_gbyte_s=fact.gbyte_s_per_link or gpu.nvlink_gbyte_s,
    )


def _without_nvlinks(links: tuple[tuple[Link, ...], ...], without: set[int]) -> tuple[tuple[Link, ...], ...]:
    """A GPU that has no working NVLink has none to any other."""
    return tuple(
        tuple(
            replace(link, nvlinks=0) if i != j and link.nvlinks is None and (i in without or j in without) else link
            for j, link in enumerate(row)
        )
        for i, row in enumerate(links)
    )


def _sources(sources: tuple[tuple[str, str], ...], facts: Facts) -> tuple[tuple[str, str], ...]:
    fact = "nvlinks" if isinstance(facts, NvlinkFacts) else "mig"
    return (*(known for known in sources if known[0] != fact), (fact, _kind(facts)))


def _kind(facts: Facts) -> str:
    return "nvlink_status" if isinstance(facts, NvlinkFacts) else "mig_list"
