"""What following and leading share, in one hand. Data only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from phalanx.core.clock import Clock
from phalanx_control.controller_delivery import Delivery
from phalanx_control.controller_facts import Facts
from phalanx_control.controller_feed import Feed
from phalanx_control.controller_peers import Peers
from phalanx_control.controller_rules import Rules, Timing
from phalanx_control.log.log import LogStore, Snapshot

MakeSnapshot = Callable[[], Awaitable[Snapshot]]
"""Folds the log into a snapshot, in a process of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one replica. Without ``make_snapshot`` the log is never trimmed."""

    log: LogStore
    clock: Clock
    rules: Rules
    timing: Timing
    feed: Feed
    facts: Facts
    delivery: Delivery
    peers: Peers
    make_snapshot: MakeSnapshot | None
