"""What each workspace is entitled to while they compete: max-min fair by weight, never more than it wants."""

from __future__ import annotations

from collections.abc import Mapping


def entitled(wanted: Mapping[str, int], weights: Mapping[str, float], total: int) -> dict[str, float]:
    """Returns shares that add up to ``total``, or to what is wanted where that is less. Weights are 1 unless said."""
    weight = {name: weights.get(name, 1.0) for name in wanted}
    by_need = sorted(wanted, key=lambda name: (wanted[name] / weight[name], name))
    left, weight_left = float(total), sum(weight.values())
    due: dict[str, float] = {}
    for name in by_need:
        due[name] = min(float(wanted[name]), left * weight[name] / weight_left)
        left -= due[name]
        weight_left -= weight[name]
    return due
