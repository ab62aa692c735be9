"""What counters and XIDs say of a GPU's health. Pure: facts in, a judgement out; it asks nobody and marks nothing.

    works, but not as it should     DEGRADED: stays in use, and says so
    must not be given to anybody    QUARANTINED, with what a person does about it

Sentences hold no figures that move: the same ailment is the same sentence at every look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from phalanx.core.topology.node import Gpu
from phalanx_agent.discovery.xid_table import APPLICATION, MEMORY, Action, meaning_of

DAY_MS = 86_400_000
BESIDE_MS = 60_000
"""Within so long a clean-up belongs to the memory error before it."""
TENANTS_OF_A_FAULT = 3
"""So many workspaces with errors of their own on one GPU within a day: it is not their programs."""
CRC_ERRORS_PER_S = 100
"""NVLinks repeat what arrives wrong: now and then is normal. The limit is that of NVIDIA's own health checks."""
_OF_MEMORY = ("uncorrectable", "corrected", "remap_pending", "remap_failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """One GPU's counters; None: the driver does not tell. ECC errors are those since the driver or the GPU started."""

    uncorrectable: int | None = None
    corrected: int | None = None
    remap_pending: bool | None = None
    """None also for GPUs that cannot replace memory rows."""
    remap_failed: bool | None = None
    slowdowns: tuple[str, ...] = ()
    crc_errors: int | None = None
    """Of all NVLinks so far."""
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    at_full_clock: bool | None = None
    """Only then do links run at their own speed: idle GPUs save power."""

    @property
    def ecc_errors(self) -> int:
        return (self.uncorrectable or 0) + (self.corrected or 0)

    def after(self, before: Vitals) -> Vitals:
        """Returns these with what is told of the memory as it was before, where the driver did not tell this time."""
        silent = {name: getattr(before, name) for name in _OF_MEMORY if getattr(self, name) is None}
        return replace(self, **silent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """``quarantine``: why nobody may have the GPU; ``degraded``: what is not as it should be. Empty: nothing."""

    quarantine: str = ""
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at a GPU's counters. ``most_nvlinks``: that ever worked, or that work on its siblings."""

    vitals: Vitals
    at_ms: int
    most_nvlinks: int = 0


def judge(gpu: Gpu, look: Look, before: Look | None = None) -> Judgement:
    """Returns what one look at a GPU says, with the look before it for what grows."""
    vitals = look.vitals
    reset = f"nvidia-smi --gpu-reset -i {gpu.index}"
    if vitals.remap_failed:
        return Judgement(quarantine="a faulty memory row could not be replaced: have the GPU exchanged")
    if vitals.uncorrectable and vitals.remap_pending is None:
        return Judgement(quarantine=f"uncorrectable ECC errors in its memory: reset the GPU: {reset}")
    found: list[str] = []
    if vitals.remap_pending:
        found.append(f"a memory row waits to be replaced: reset the GPU when it is idle: {reset}")
    elif vitals.uncorrectable:
        found.append(f"had uncorrectable ECC errors: reset the GPU when it is idle: {reset}")
    found += [f"slowed down: {reason}" for reason in vitals.slowdowns]
    found += _links(gpu, look, before)
    found += _pcie(vitals)
    return Judgement(degraded=tuple(found))


def _links(gpu: Gpu, look: Look, before: Look | None) -> list[str]:
    found: list[str] = []
    active = gpu.nvlinks_active
    if active is not None and active < look.most_nvlinks:
        found.append(f"{active} of {look.most_nvlinks} NVLinks work")
    if before is not None and look.vitals.crc_errors is not None and before.vitals.crc_errors is not None:
        grown = look.vitals.crc_errors - before.vitals.crc_errors
        elapsed_ms = look.at_ms - before.at_ms
        if elapsed_ms > 0 and grown * 1000 > CRC_ERRORS_PER_S * elapsed_ms:
            found.append(f"its NVLinks have over {CRC_ERRORS_PER_S} CRC errors a second")
    return found


def _pcie(vitals: Vitals) -> list[str]:
    found: list[str] = []
    if vitals.pcie_width and vitals.pcie_width_max and vitals.pcie_width < vitals.pcie_width_max:
        found.append(f"PCIe x{vitals.pcie_width} instead of x{vitals.pcie_width_max}")
    slow = vitals.pcie_gen and vitals.pcie_gen_max and vitals.pcie_gen < vitals.pcie_gen_max
    if slow and vitals.at_full_clock:
        found.append(f"PCIe gen {vitals.pcie_gen} instead of gen {vitals.pcie_gen_max}")
    return found


# ---- XIDs ----


@dataclass(frozen=True, slots=True, kw_only=True)
class PastXid:
    """An XID of one GPU. ``workspaces``: whose gangs held it then."""

    xid: int
    at_ms: int
    workspaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """What an XID leads to: NOTE, IGNORE, QUARANTINE or LOST, and the sentence for people."""

    action: Action
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """``our_kill``: a gang on the GPU is being ended, or was just now. ``past``: what the GPU reported before."""

    index: int
    now_ms: int
    workspaces: tuple[str, ...] = ()
    our_kill: bool = False
    past: Sequence[PastXid] = field(default=())


def react(xid: int, around: Circumstances) -> Reaction:
    """Returns what an XID leads to, there and then."""
    meaning = meaning_of(xid)
    advice = f"; {meaning.advice.format(index=around.index)}" if meaning.advice else ""
    reason = f"XID {xid}: {meaning.what}{advice}"
    if meaning.action is Action.FOLLOW:
        return Reaction(action=_follow(around), reason=reason)
    if meaning.action is Action.NOTE and _tenants(around) >= TENANTS_OF_A_FAULT:
        reset = f"reset the GPU: nvidia-smi --gpu-reset -i {around.index}"
        why = f"the {TENANTS_OF_A_FAULT}rd workspace within a day with an error on this GPU"
        return Reaction(action=Action.QUARANTINE, reason=f"XID {xid}: {meaning.what}, {why}; {reset}")
    return Reaction(action=meaning.action, reason=reason)


def _follow(around: Circumstances) -> Action:
    """A clean-up is routine near our own kill and after a memory error, whose action was taken; else it is told."""
    near = any(past.xid in MEMORY and around.now_ms - past.at_ms <= BESIDE_MS for past in around.past)
    return Action.IGNORE if around.our_kill or near else Action.NOTE


def _tenants(around: Circumstances) -> int:
    """Returns how many workspaces had errors of their own on the GPU within a day, those of now included."""
    recent = [p for p in around.past if p.xid in APPLICATION and around.now_ms - p.at_ms <= DAY_MS]
    return len({name for past in recent for name in past.workspaces} | set(around.workspaces))
