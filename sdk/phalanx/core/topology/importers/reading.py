"""What importers share: bounds on their input, and the addresses and numbers that tools write in many ways. Pure."""

from __future__ import annotations

import re

from phalanx.core.topology.errors import UnreadableTopologyError

MAX_CHARS = 4 * 1024 * 1024
"""More than any tool prints for one node."""
MAX_FABRIC_CHARS = 64 * 1024 * 1024
"""More than any prints for the network of ten thousand: `ibnetdiscover` takes 20 MB for their adapters."""
MAX_LINE = 65_536

_PCI = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.([0-7]))?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")
_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?")
_HEX = re.compile(r"(?:0x)?([0-9a-fA-F]{1,16})")


def bounded(text: str, what: str, *, max_chars: int = MAX_CHARS) -> str:
    """Returns the text. Raises UnreadableTopologyError for one too large to be what it is said to be."""
    if len(text) > max_chars:
        raise UnreadableTopologyError(f"{what} of {len(text)} characters: at most {max_chars} are read")
    return text


def bounded_lines(text: str, what: str, *, max_chars: int = MAX_CHARS) -> list[str]:
    """Returns the lines, without their ends. Raises UnreadableTopologyError where the text or a line is too large."""
    lines = bounded(text, what, max_chars=max_chars).split("\n")
    for number, line in enumerate(lines, start=1):
        if len(line) > MAX_LINE:
            raise UnreadableTopologyError(
                f"{len(line)} characters: a line of {what} has at most {MAX_LINE}", line=number
            )
    return [line.rstrip("\r") for line in lines]


def pci_address(text: str) -> str:
    """Returns an address as `Gpu.pci` writes it: ``00000000:3B:00.0`` is ``0000:3b:00.0``; "" where it is none."""
    match = _PCI.fullmatch(text.strip())
    if not match:
        return ""
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def whole(text: str | None) -> int | None:
    """Returns a whole number, or None where the text is not one."""
    return int(text) if text is not None and _WHOLE.fullmatch(text.strip()) else None


def number(text: str | None) -> float | None:
    """Returns a number that is not negative, or None where the text is not one."""
    return float(text) if text is not None and _NUMBER.fullmatch(text.strip()) else None


def guid(text: str) -> str:
    """Returns 16 hexadecimal digits, from ``0x…``, ``0000:0000:0000:0001`` or bare ones; "" for none and for zero."""
    match = _HEX.fullmatch(text.strip().replace(":", ""))
    value = int(match[1], 16) if match else 0
    return f"{value:016x}" if value else ""


def cpu_list(mask: str) -> str | None:
    """Returns the kernel's list for its mask: ``000000ff,ffff0000`` is "16-39". None for an empty or a bad mask."""
    words = mask.strip().split(",")
    if len(words) > 512 or not all(re.fullmatch(r"[0-9a-fA-F]{1,8}", word) for word in words):
        return None
    bits = int("".join(word.zfill(8) for word in words), 16)
    cpus = [at for at in range(32 * len(words)) if bits >> at & 1]
    return number_list(cpus) or None


def number_list(numbers: list[int]) -> str:
    """Writes sorted numbers as the kernel does: ``0-3,8``."""
    runs: list[list[int]] = []
    for value in numbers:
        if runs and runs[-1][1] == value - 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
