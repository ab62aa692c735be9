"""When gangs verify the links between their GPUs: what a node is set to, and what a function asks for."""

from __future__ import annotations

from enum import StrEnum

VARIABLE = "PHALANX_PREFLIGHT"
"""Of a function: its gangs verify in this manner, whatever the node is set to."""


class Mode(StrEnum):
    OFF = "off"
    BOOT = "boot"
    """The first gang on a pair in this boot tries it."""
    LEASE = "lease"
    """Every gang tries all of its pairs."""
    VERIFY = "verify"
    """As LEASE, and what is found ends nothing: for gangs that are there to find it."""


NODE_MODES = (Mode.OFF, Mode.BOOT, Mode.LEASE)
