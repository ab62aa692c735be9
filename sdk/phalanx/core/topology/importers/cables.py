"""The cables of a network, as its readers hand them on: from adapters to switches, and between switches. Data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Adapter:
    """``mlx5_4`` of a host is of family "mlx5_", number 4. No host where its name was never set."""

    host: str = ""
    family: str = ""
    number: int = -1


@dataclass(frozen=True, slots=True)
class Attachment:
    """A cable from an adapter to a switch; ``gbit_s`` one way, None where it is unknown."""

    adapter: Adapter
    switch: str
    gbit_s: float | None


@dataclass(frozen=True, slots=True)
class Cable:
    """Between two switches."""

    one: str
    other: str
    gbit_s: float | None


def sum_gbit_s(rates: list[float | None]) -> float | None:
    """Returns what cables carry together, in Gb/s one way; None where there is none, or where a rate is unknown."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known and len(known) == len(rates) else None
