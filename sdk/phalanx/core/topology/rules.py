"""Which sets of a node's devices may be given at all, whatever their links are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.core.topology import bitsets, devices
from phalanx.core.topology.devices import Device
from phalanx.core.topology.node import NodeTopology


def names(members: Sequence[Device], mask: int) -> str:
    """Returns what people call the devices of a set; positions beyond the node's as numbers."""
    known = len(members)
    return " ".join(members[at].name if at < known else str(at) for at in bitsets.positions(mask))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Which sets a gang may have at all."""

    everything: int
    usable: int
    mig: int
    """Parts of split GPUs."""
    wrong: tuple[int, ...]
    """Pairs whose copies were seen to come out wrong: no set may hold one."""
    legal: frozenset[int] | None
    """The sets that a shared NVSwitch allows."""

    @classmethod
    def of(cls, node: NodeTopology, members: tuple[Device, ...]) -> Rules:
        return cls(
            everything=(1 << len(members)) - 1,
            usable=bitsets.mask_of(at for at, device in enumerate(members) if not device.unusable),
            mig=bitsets.mask_of(at for at, device in enumerate(members) if device.mig),
            wrong=devices.wrong_pairs(node, members),
            legal=devices.partition_masks(node, members),
        )

    def takeable(self, free: int, size: int, *, mig_gangs: bool = False) -> int:
        """Returns those of the free devices that a set of this size may have."""
        return free & self.usable & (self.everything if size == 1 or mig_gangs else ~self.mig)

    def allowed(self, masks: Sequence[int]) -> Sequence[int]:
        """Returns those of the sets that are allowed, in the same order."""
        if self.usable != self.everything:
            masks = [mask for mask in masks if not mask & ~self.usable]
        if self.legal is not None:
            masks = [mask for mask in masks if mask in self.legal]
        for pair in self.wrong:
            masks = [mask for mask in masks if mask & pair != pair]
        return masks
