"""What the controller is given: the pure rules of the cell, and its timing. No behaviour of its own.

The rules are injected; the fold is one for all, `state.apply`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from phalanx.core.messages import GangFacts, ToAgent
from phalanx_control.lifecycle import outbox
from phalanx_control.lifecycle.decide import decide
from phalanx_control.log.leadership import RENEW_EVERY_S, STALE_AFTER_MS
from phalanx_control.state.commands import Command, Now
from phalanx_control.state.events import Events
from phalanx_control.state.model import Gang, State

Decide = Callable[[State, Command, Now], Events]
"""Returns what happens on a command, or raises a PhalanxError that the asker is told."""
SignPeers = Callable[[Gang], tuple[str, ...]]
"""Returns the tickets that open the other members' data planes to the gang's lead, in their order."""
Addressed = tuple[str, ToAgent]
"""A node id and what to tell its agent."""


class Outbox(Protocol):
    """Says what agents must be told; `lifecycle.outbox` is one."""

    def messages_for(self, before: State, events: Events, after: State, /) -> tuple[Addressed, ...]: ...

    def reconcile(self, state: State, node_id: str, held: tuple[GangFacts, ...], /) -> tuple[ToAgent, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """``raw_ids(n)`` returns n random bytes: pure code is handed its randomness."""

    sign_peers: SignPeers
    decide: Decide = decide
    outbox: Outbox = outbox
    raw_ids: Callable[[int], bytes] = os.urandom


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How often the controller does what it does on its own."""

    renew_s: float = RENEW_EVERY_S
    stale_after_ms: int = STALE_AFTER_MS
    poll_s: float = 0.25
    """How long a standby waits for a batch before it looks at the leader's beat."""
    tick_s: float = 0.5
    repeat_s: float = 5
    """Agents are told again what they have not yet acted on."""
    answer_s: float = 10
    """An asker waits at most so long for its batch to be durable."""
    retry_s: float = 0.05
    """Pause between two attempts to reach a store that does not answer."""
    snapshot_check_s: float = 5
    snapshot_every: int = 10_000
    """Batches after which the log is folded into a snapshot."""
