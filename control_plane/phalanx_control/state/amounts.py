"""What gangs hold of a cell, and how what they held is forgotten. Pure arithmetic on what the log says."""

from __future__ import annotations

import math
from typing import NamedTuple

from phalanx.core.spec import FunctionSpec
from phalanx_control.state.model import Call, Gang, State, Usage

PRIORITY_STEP_MS = 600_000
"""A step of priority is worth so much waiting: whoever waits longer passes it, so that nobody waits for ever."""


class Amount(NamedTuple):
    """GPUs, cores and 10^9 bytes."""

    gpus: float = 0
    cpus: float = 0
    memory_gb: float = 0

    def plus(self, other: Amount, *, times: float = 1) -> Amount:
        return Amount(*(a + times * b for a, b in zip(self, other, strict=True)))


def standing_of(state: State, call: Call) -> int:
    """Returns when a call counts as submitted among those of its user."""
    return call.submitted_ms - state.functions[call.function_id].spec.priority * PRIORITY_STEP_MS


def held_by(gang: Gang, spec: FunctionSpec) -> Amount:
    """Returns what a gang holds while it lives."""
    ranks = sum(m.member.ranks for m in gang.members)
    gpus = sum(len(m.member.gpus) * m.member.share for m in gang.members)
    return Amount(gpus, spec.resources.cpus * ranks, spec.resources.memory_gb * ranks)


def asked_by(spec: FunctionSpec) -> Amount:
    """Returns what a gang of the function will hold."""
    ranks = spec.world_size
    return Amount(spec.resources.gpus, spec.resources.cpus * ranks, spec.resources.memory_gb * ranks)


def with_ended(usage: Usage, amount: Amount, *, began_ms: int, now_ms: int, half_life_ms: float) -> Usage:
    """Returns the usage with that of a gang that ends now."""
    old = remembered(usage, now_ms=now_ms, half_life_ms=half_life_ms)
    total = old.plus(lasting(amount, began_ms=began_ms, now_ms=now_ms, half_life_ms=half_life_ms))
    return Usage(gpus=round(total.gpus), cpus=round(total.cpus), memory_gb=round(total.memory_gb), at_ms=now_ms)


def remembered(usage: Usage, *, now_ms: int, half_life_ms: float) -> Amount:
    """Returns what is left of it by now, in units times milliseconds."""
    left = 0.5 ** (max(0, now_ms - usage.at_ms) / half_life_ms)
    return Amount(usage.gpus * left, usage.cpus * left, usage.memory_gb * left)


def lasting(amount: Amount, *, began_ms: int, now_ms: int, half_life_ms: float) -> Amount:
    """Returns what holding ``amount`` since ``began_ms`` counts for, in units times milliseconds."""
    whole = half_life_ms / math.log(2)
    return Amount().plus(amount, times=whole * (1 - 0.5 ** (max(0, now_ms - began_ms) / half_life_ms)))
