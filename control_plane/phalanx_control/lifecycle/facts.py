"""What agents report every two seconds and the log does not hold, as plain data for whoever draws a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from phalanx.core.messages import GangFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFacts:
    """Lossy by contract: what is missing is simply not known."""

    last_seen_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    """Node id → wall ms at which its agent last spoke."""
    gangs: Mapping[tuple[str, str], GangFacts] = field(default_factory=dict[tuple[str, str], GangFacts])
    """Keyed (gang id, node id)."""
