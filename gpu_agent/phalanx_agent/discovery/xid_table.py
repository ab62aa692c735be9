"""What each XID means for the GPU: the driver's error numbers, and what to do about them. Pure data and one lookup.

    NOTE         the program's own fault: said with its gang, unless tenants take turns to have it
    IGNORE       routine, or told by other facts
    QUARANTINE   the GPU takes no gang until it was reset, or whatever the advice says
    LOST         the GPU is gone until the node is booted again
    FOLLOW       a consequence of something else: of our own kill, or of the error beside it

A number that is not here quarantines: a new kind of fault is not tried out on somebody's work.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Action(StrEnum):
    NOTE = "note"
    IGNORE = "ignore"
    QUARANTINE = "quarantine"
    LOST = "lost"
    FOLLOW = "follow"


@dataclass(frozen=True, slots=True)
class Meaning:
    """``advice``: what a person does; ``{index}`` is the GPU's number on its node."""

    action: Action
    what: str
    advice: str = ""


_RESET = "reset the GPU: nvidia-smi --gpu-reset -i {index}"
_NVLINK = f"look at nvidia-smi nvlink -s -i {{index}} and the switches' log, then {_RESET}"
_EXCHANGE = "if it comes back, have the GPU exchanged"

APPLICATION = frozenset({8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 94})
ROUTINE = frozenset({14, 37, 38, 43, 44, 63, 66, 67})
RESET = frozenset({46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158})
NVLINK = frozenset({74, *range(144, 151)})
MEMORY = frozenset({48, 63, 64, 94, 95})
"""45 beside one of these is part of it."""
CLEANUP = 45

_WHAT = {
    8: "the GPU stopped processing a program",
    11: "a broken stream of commands",
    13: "an exception in a kernel, such as an access out of bounds",
    25: "an illegal stream of commands",
    31: "a kernel touched memory that is not its own",
    32: "a broken stream of commands",
    43: "a program was stopped by an error of its own",
    45: "work was cleaned away after an earlier error",
    46: "the GPU stopped processing",
    48: "double-bit ECC error",
    54: "the board's power cable is not connected",
    60: "an exception of the video engine",
    62: "the GPU's own controller halted",
    63: "a faulty memory row was recorded for replacement",
    64: "a faulty memory row could not be recorded for replacement",
    68: "an exception of the video decoder",
    69: "an exception of the graphics engine's class",
    74: "NVLink error",
    78: "a virtual GPU could not be started",
    79: "the GPU has fallen off the bus",
    94: "an ECC error that was contained to the program",
    95: "an ECC error that was not contained",
    109: "switching between programs timed out",
    110: "a security fault",
    119: "the GPU's system processor does not answer",
    120: "an error of the GPU's system processor",
    136: "a link could not be trained",
    140: "an ECC error that was not recovered",
    143: "the GPU could not be started",
    151: "a key of the confidential machine could not be renewed",
    155: "NVLink error (software)",
    156: "a resource of the GPU was retired",
    158: "a fatal timeout of the GPU",
}
_OWN = {
    48: Meaning(Action.QUARANTINE, _WHAT[48], f"{_RESET}; {_EXCHANGE}"),
    54: Meaning(Action.QUARANTINE, _WHAT[54], "connect the power cable of the board and boot the node"),
    78: Meaning(Action.QUARANTINE, _WHAT[78], "check that the firmware and the driver of host and guest fit"),
    79: Meaning(Action.LOST, _WHAT[79], f"reboot the node; {_EXCHANGE}"),
    151: Meaning(Action.QUARANTINE, _WHAT[151], "start the virtual machine again"),
}


def meaning_of(xid: int) -> Meaning:
    """Returns what an XID means; any number has a meaning."""
    if xid in _OWN:
        return _OWN[xid]
    if xid == CLEANUP:
        return Meaning(Action.FOLLOW, _WHAT[CLEANUP])
    if xid in APPLICATION:
        return Meaning(Action.NOTE, _WHAT.get(xid, "an error of the program"))
    if xid in ROUTINE:
        return Meaning(Action.IGNORE, _WHAT.get(xid, "routine"))
    if xid in NVLINK:
        return Meaning(Action.QUARANTINE, _WHAT.get(xid, "NVLink error"), _NVLINK)
    if xid in RESET:
        return Meaning(Action.QUARANTINE, _WHAT.get(xid, "a fault of the GPU"), _RESET)
    return Meaning(Action.QUARANTINE, "an error that is not in the table", f"look it up, then {_RESET}")
