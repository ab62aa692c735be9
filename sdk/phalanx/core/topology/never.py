"""What a node can never give, whoever else is there: by the kind of its devices, not by what is free or ill now."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from phalanx.core.topology.node import NodeTopology


@dataclass(frozen=True, slots=True)
class Limits:
    """``split``: GPUs in MIG mode, which are not leased. ``partitions``: the sets of a shared NVSwitch; empty: any."""

    split: frozenset[str] = frozenset()
    partitions: tuple[frozenset[str], ...] = ()

    @classmethod
    def of(cls, node: NodeTopology) -> Limits:
        return cls(
            frozenset(gpu.uuid for gpu in node.gpus if gpu.mig or gpu.mig_enabled),
            tuple(frozenset(each) for each in node.partitions),
        )

    def why_never(self, uuids: Collection[str], size: int) -> str:
        """Returns why no ``size`` of these GPUs can ever be one gang's; "" where they can, if they are enough."""
        whole = {uuid for uuid in uuids if uuid not in self.split}
        if len(whole) < min(size, len(uuids)):
            return (
                f"{len(uuids) - len(whole)} of its {len(uuids)} GPUs are in MIG mode, and parts of GPUs are not leased"
            )
        if self.partitions and not any(len(each) == size and each <= whole for each in self.partitions):
            sizes = sorted({len(each) for each in self.partitions if each <= whole})
            return f"its shared NVSwitch gives sets of {', '.join(map(str, sizes)) or 'other GPUs'} only, never {size}"
        return ""
