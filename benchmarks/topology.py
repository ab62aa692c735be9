"""Choice of GPUs inside one node: how good, against simpler policies in one run with the same seeds, and how fast.

    python -m benchmarks.topology [--sequences 1000] [--seed 1] [--out benchmarks/topology.json]

On every sample node with 2 to 8 GPUs: for every set of free GPUs and every size, the share of choices whose best ring
is as fast as any that the free GPUs hold (by trying everything); and over random arrivals and departures, the mean over
all gangs of two or more of (best ring through the gang's GPUs) / (best ring of that size on the empty node). Whether a
gang fits depends on the number of free GPUs only, so all policies serve the same gangs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import combinations, permutations
from pathlib import Path
from time import perf_counter, process_time

from tests.support import choice_answers
from tests.support.topologies import PRINTED

from benchmarks.report import machine, p99
from benchmarks.topology_policies import BestEffort, Policy, at_random, first_index, ours
from phalanx.core.topology.bitsets import mask_of, positions
from phalanx.core.topology.choice import choose
from phalanx.core.topology.importers.nccl_xml import read_nccl_xml
from phalanx.core.topology.importers.topo_text import read_topo_text
from phalanx.core.topology.node import NodeTopology
from phalanx.core.topology.rings import Weights, slowest
from phalanx.core.topology.tables import build_tables

SAMPLES = Path(__file__).parents[2] / "shared" / "topologies"
EVENTS = 60
"""Arrivals and departures of one sequence."""
SIZES = {1: 30, 2: 30, 3: 5, 4: 25, 8: 10}
"""Sizes asked for, by weight; those above the node's count are left out."""
ARRIVALS = 0.6
"""Of events; the rest are departures, where anything runs."""
BUILDS = 20
AIM_BUILD_MS = {8: 5.0, 16: 300.0}
AIM_CHOICE_US = 50.0
TIE = 1e-9


@dataclass(slots=True)
class Result:
    """One node: by policy, share of choices with the best ring, and mean quality over sequences; times of ours."""

    node: str
    gpus: int
    choices: int = 0
    gangs: int = 0
    best_share: dict[str, float] = field(default_factory=dict[str, float])
    quality: dict[str, float] = field(default_factory=dict[str, float])
    build_ms: tuple[float, float] = (0.0, 0.0)
    """Median and 99th percentile, by the clock on the wall, as everywhere here."""
    build_cpu_ms: float = 0.0
    """Median of the processor's time: what is left when other programs do not take turns."""
    choice_us: tuple[float, float] = (0.0, 0.0)


def sample_nodes() -> tuple[str, dict[str, NodeTopology]]:
    """Returns where the nodes come from, and all that have 2 to 8 GPUs."""
    read: Mapping[str, Callable[[str], NodeTopology]] = {"*.topo-m.txt": read_topo_text, "*.nccl.xml": read_nccl_xml}
    paths = [(path, reader) for pattern, reader in read.items() for path in sorted(SAMPLES.glob(pattern))]
    nodes = {path.name.split(".")[0]: reader(path.read_text()) for path, reader in paths}
    source = "the sample topologies"
    if not nodes:
        source = "our own fixtures: the sample topologies are not beside this checkout"
        nodes = own_nodes()
    return source, {name: node for name, node in nodes.items() if 2 <= len(node.gpus) <= 8}


def own_nodes() -> dict[str, NodeTopology]:
    """Returns nodes written from facts: printed tables, and those of the allocation reference."""
    printed = {name: read_topo_text(make().text()) for name, make in PRINTED.items()}
    built = {name: choice_answers.reference_node(name) for name in ("dgx1_v100", "dgx1_p100", "rtx8000_x4")}
    return printed | built


def large_nodes() -> dict[str, NodeTopology]:
    """Returns nodes of 16: all equal behind a switch, and a tree of PCIe switches with a few NVLinks."""
    odd = {(j, i): (i + j) % 3 for i, j in combinations(range(16), 2) if (i * j) % 5 == 1}
    tree = choice_answers.linked(16, odd, sockets=(8, 8), switches=("01", "23", "45", "67"), compute=80)
    return {"dgx2": choice_answers.dgx2(), "pcie_x16": tree}


def measure(name: str, node: NodeTopology, sequences: int, seed: int) -> Result:
    """Returns all figures of one node."""
    tables = build_tables(node)
    best = best_rings(tables.weights)
    result = Result(name, len(node.gpus))
    dice = random.Random(f"{seed} {name} random")
    policies: dict[str, Policy] = {
        "ours": ours(tables),
        "best_effort": BestEffort(node).pick,
        "first_index": first_index,
        "random": at_random(dice),
    }
    result.choices, reached = singles(best, policies)
    result.best_share = {policy: hits / result.choices for policy, hits in reached.items()}
    result.gangs, result.quality = over_time(best, policies, sequences, f"{seed} {name}")
    return with_times(result, node)


def best_rings(weights: Weights) -> list[int]:
    """Returns, for every subset, the slowest link of its best ring, by trying all orders."""
    found = [0] * (1 << len(weights))
    for mask in range(1, len(found)):
        first, *rest = positions(mask)
        found[mask] = max(slowest(weights, (first, *order)) for order in permutations(rest))
    return found


def singles(best: list[int], policies: Mapping[str, Policy]) -> tuple[int, dict[str, int]]:
    """Returns how many choices of two or more there are, and by policy how many have the best ring that exists."""
    number, reached = 0, dict.fromkeys(policies, 0)
    for free in range(1, len(best)):
        for size in range(2, free.bit_count() + 1):
            number += 1
            optimum = max(best[mask_of(each)] for each in combinations(positions(free), size))
            for name, pick in policies.items():
                reached[name] += best[pick(free, size)] == optimum
    return number, reached


def over_time(
    best: list[int], policies: Mapping[str, Policy], sequences: int, seed: str
) -> tuple[int, dict[str, float]]:
    """Returns how many gangs of two or more were placed, and by policy their mean quality."""
    everything = len(best) - 1
    sizes = {size: weight for size, weight in SIZES.items() if size <= everything.bit_count()}
    alone = {size: max(best[mask_of(each)] for each in combinations(positions(everything), size)) for size in sizes}
    found: dict[str, list[float]] = {name: [] for name in policies}
    for nth in range(sequences):
        for name, pick in policies.items():
            found[name] += qualities(best, alone, pick, random.Random(f"{seed} {nth}"), sizes)
    return len(found["ours"]), {name: statistics.fmean(values) for name, values in found.items()}


def qualities(
    best: list[int], alone: Mapping[int, int], pick: Policy, dice: random.Random, sizes: Mapping[int, int]
) -> list[float]:
    """Returns the quality of every gang of two or more of one sequence."""
    free, running, found = len(best) - 1, list[int](), list[float]()
    for _ in range(EVENTS):
        size = dice.choices(list(sizes), list(sizes.values()))[0]
        arrives, leaver = dice.random() < ARRIVALS, dice.random()
        if not arrives and running:
            free |= running.pop(int(leaver * len(running)))
        elif arrives and free.bit_count() >= size:
            mask = pick(free, size)
            free ^= mask
            running.append(mask)
            if size > 1:
                found.append(best[mask] / alone[size])
    return found


def with_times(result: Result, node: NodeTopology) -> Result:
    """Adds the times of building the tables and of one choice."""
    builds, processor, choices = list[float](), list[float](), list[float]()
    tables = build_tables(node)
    for _ in range(BUILDS):
        start, start_cpu = perf_counter(), process_time()
        tables = build_tables(node)
        builds.append((perf_counter() - start) * 1e3)
        processor.append((process_time() - start_cpu) * 1e3)
    everything = (1 << len(node.gpus)) - 1
    for free in range(1, everything + 1, 1 if everything < 256 else 331):
        for size in range(1, free.bit_count() + 1):
            start = perf_counter()
            choose(tables, free, size)
            choices.append((perf_counter() - start) * 1e6)
    result.build_ms, result.build_cpu_ms = (statistics.median(builds), p99(builds)), statistics.median(processor)
    result.choice_us = statistics.median(choices), p99(choices)
    return result


def table(results: list[Result]) -> str:
    """Returns all figures as a Markdown table."""
    policies = ["ours", "best_effort", "first_index", "random"]
    lines = [
        "| node | GPUs | best ring reached: " + " | ".join(policies) + " | gangs | quality: " + " | ".join(policies)
        + " | build ms p50 | p99 | CPU p50 | choice µs p50 | p99 |",
        "|" + "---|" * 16,
    ]  # fmt: skip
    for row in results:
        shares = [f"{row.best_share[policy]:.1%}" if row.best_share else "" for policy in policies]
        quality = [f"{row.quality[policy]:.4f}" if row.quality else "" for policy in policies]
        figures = [f"{value:.2f}" for value in (*row.build_ms, row.build_cpu_ms, *row.choice_us)]
        lines.append(f"| {' | '.join([row.node, str(row.gpus), *shares, str(row.gangs), *quality, *figures])} |")
    return "\n".join(lines)


def misses(results: list[Result]) -> list[str]:
    """Returns every aim that was missed, in words."""
    found: list[str] = []
    for row in results:
        if row.best_share and row.best_share["ours"] < 1:
            found.append(f"{row.node}: the best ring was missed in {1 - row.best_share['ours']:.2%} of choices")
        if row.quality and row.quality["ours"] < row.quality["best_effort"] - TIE:
            found.append(f"{row.node}: quality {row.quality['ours']:.4f}, best-effort {row.quality['best_effort']:.4f}")
        aim = AIM_BUILD_MS[8 if row.gpus <= 8 else 16]
        if row.build_ms[0] > aim:
            found.append(f"{row.node}: tables took {row.build_ms[0]:.1f} ms, aim {aim:g}")
        if row.gpus <= 8 and row.choice_us[0] > AIM_CHOICE_US:
            found.append(f"{row.node}: a choice took {row.choice_us[0]:.0f} us, aim {AIM_CHOICE_US:g}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("topology.json"))
    options = parser.parse_args()
    source, nodes = sample_nodes()
    print(f"{machine()}; nodes: {source}; {options.sequences} sequences of {EVENTS} events, seed {options.seed}\n")
    results = [measure(name, node, options.sequences, options.seed) for name, node in nodes.items()]
    for name, node in large_nodes().items():
        results.append(with_times(Result(name, len(node.gpus)), node))
    print(table(results))
    missed = misses(results)
    print(f"\nload average at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print("\n" + ("\n".join(f"missed: {line}" for line in missed) or "every aim was reached"))
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "load": os.getloadavg(),
        "nodes": source,
        "sequences": options.sequences,
        "seed": options.seed,
        "missed": missed,
        "results": [asdict(result) for result in results],
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
