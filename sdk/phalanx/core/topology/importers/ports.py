"""Network ports as the readers of `ibstat` and of sysfs find them, before they become `Nic`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from phalanx.core.topology.importers.reading import guid, number
from phalanx.core.topology.node import LinkLayer, Nic

MAX_PORTS = 1024
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\b.*")
_STATE = re.compile(r"(?:[0-9]+\s*:\s*)?(\w+)")
_LAYERS = {"infiniband": LinkLayer.INFINIBAND, "ethernet": LinkLayer.ETHERNET}


@dataclass(frozen=True, slots=True)
class Ports:
    """``notes``: what could not be read, for people."""

    nics: tuple[Nic, ...]
    notes: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class PortDraft:
    """What was read of one port so far: field (as "rate") and the text that the tool shows."""

    device: str
    port: int
    line: int
    facts: dict[str, str] = field(default_factory=dict[str, str])
    numa: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """``mlx5_0``, and ``mlx5_0:2`` for a second port."""
        return self.device if self.port == 1 else f"{self.device}:{self.port}"

    def nic(self, notes: list[str]) -> Nic:
        up = self._up()
        if up is None:
            notes.append(f"line {self.line}: {self.name} has no state: whether it is up is unknown")
        rate = self._rate(notes)
        return Nic(
            name=self.name,
            numa=self.numa,
            layer=self._layer(),
            # A port that is down shows a rate that it does not run at.
            rate_gbit_s=rate if up else None,
            up=up,
            virtual=False,
            guid=guid(self.facts.get("guid", "")),
        )

    def _up(self) -> bool | None:
        states = [_word(self.facts.get(key, "")) for key in ("state", "phys_state")]
        wanted = [word == good for word, good in zip(states, ("active", "linkup"), strict=True) if word]
        return all(wanted) if wanted else None

    def _rate(self, notes: list[str]) -> float | None:
        text = self.facts.get("rate", "")
        match = _RATE.fullmatch(text)
        if text and not match:
            notes.append(f"line {self.line}: {self.name}: rate {text[:40]!r}: expected one such as 400 (Gb/s)")
        return number(match[1]) if match else None

    def _layer(self) -> LinkLayer | None:
        text = self.facts.get("link_layer", "").lower()
        if text == "unspecified" and self.device.startswith(("rdmap", "efa")):
            return LinkLayer.EFA
        return _LAYERS.get(text, LinkLayer.OTHER) if text else None


def _word(state: str) -> str:
    match = _STATE.match(state)
    return match[1].lower() if match else ""
