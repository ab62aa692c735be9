"""Why no set of GPUs can be given: each reason as a sentence with the numbers at hand."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from phalanx.core.topology.bitsets import positions
from phalanx.core.topology.devices import Device
from phalanx.core.topology.rules import Rules, names

_MOST_SETS = 8
"""Named in one sentence."""


class Cause(StrEnum):
    """Why no set is given."""

    SIZE = "size"
    REQUIRED = "required"
    NOT_ENOUGH = "not_enough"
    MIG = "mig"
    PARTITION = "partition"
    WRONG_COPIES = "wrong_copies"


@dataclass(frozen=True, slots=True)
class Refusal:
    """No set, and the reason as a sentence."""

    cause: Cause
    reason: str


def impossible(
    devices: tuple[Device, ...], rules: Rules, asked: int, size: int, required: int, *, mig_gangs: bool
) -> Refusal | None:
    """Returns why no set of this size can exist among the free devices ``asked``, whatever their links; else None."""
    if size < 1:
        return Refusal(Cause.SIZE, f"a gang needs at least one GPU, not {size}")
    if required & ~asked:
        return Refusal(Cause.REQUIRED, f"GPU {names(devices, required & ~asked)} is required and not free")
    if required & ~rules.usable:
        return Refusal(Cause.REQUIRED, f"{_unusable(devices, rules, required)}; it is required")
    if required.bit_count() > size:
        return Refusal(Cause.REQUIRED, f"{required.bit_count()} GPUs are required and {size} asked for")
    free = rules.takeable(asked, size, mig_gangs=mig_gangs)
    if required & ~free or free.bit_count() < size <= (asked & rules.usable).bit_count():
        return Refusal(Cause.MIG, _no_mig_gang(size, free))
    if free.bit_count() < size:
        return Refusal(Cause.NOT_ENOUGH, _too_few(devices, rules, asked, size))
    return None


def _no_mig_gang(size: int, free: int) -> str:
    return (
        f"a gang of {size} would hold MIG devices ({free.bit_count()} whole GPUs are free): they have no NVLink or "
        "peer access to each other; allow gangs on MIG to run it all the same"
    )


def _too_few(devices: tuple[Device, ...], rules: Rules, asked: int, size: int) -> str:
    aside = f"; {_unusable(devices, rules, asked)}" if asked & ~rules.usable else ""
    return f"{size} GPUs are asked for and {(asked & rules.usable).bit_count()} free{aside}"


def _unusable(devices: tuple[Device, ...], rules: Rules, mask: int) -> str:
    lost = [devices[at].unusable for at in positions(mask & rules.everything & ~rules.usable)]
    beyond = mask & ~rules.everything
    return ", ".join([*lost, *([f"there is no GPU {names(devices, beyond)} here"] if beyond else [])])


def nothing_allowed(
    devices: tuple[Device, ...],
    rules: Rules,
    free: int,
    size: int,
    required: int,
    *,
    legal: Collection[int] | None = None,
) -> Refusal:
    """Returns why none of the sets that would fit is allowed: NVSwitch partitions, or pairs that copy wrongly."""
    given = rules.legal if legal is None else legal
    if given is None:
        return _wrong_copies(size)
    of_size = sorted(mask for mask in given if mask.bit_count() == size and mask & required == required)
    if any(not mask & ~free for mask in of_size):
        return _wrong_copies(size)
    if not of_size:
        return Refusal(Cause.PARTITION, f"no set of {size} may be given: the partitions of this node do not offer it")
    held = ", ".join(names(devices, mask) for mask in of_size[:_MOST_SETS])
    return Refusal(Cause.PARTITION, f"none of the sets of {size} that may be given is free as a whole: {held}")


def _wrong_copies(size: int) -> Refusal:
    return Refusal(Cause.WRONG_COPIES, f"every set of {size} free GPUs holds a pair whose copies came out wrong")
