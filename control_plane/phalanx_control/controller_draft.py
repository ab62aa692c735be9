"""From waiting commands to one batch: decides each on the state that those before it leave. Pure but for the log line.

Nothing here is durable or told to anybody. Answers are kept until the batch is written: a refusal, too, may rest on
what another command of the same batch has just changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from phalanx.core.errors import PhalanxError
from phalanx_control.controller_rules import Rules
from phalanx_control.log.log import NewBody
from phalanx_control.state import events as ev
from phalanx_control.state.apply import apply
from phalanx_control.state.commands import Command, Now, Schedule, Submit, Tick
from phalanx_control.state.model import BodyRef, State

_logger = logging.getLogger(__name__)

MAX_NEW_GANGS = 64
"""Gangs that one pass of the scheduler may start."""
NO_NEED_TO_SCHEDULE = (
    ev.CallWaits,
    ev.CallAssigned,
    ev.CallRan,
    ev.CallsArchived,
    ev.DirectCallsCounted,
    ev.DirectReportTaken,
    ev.LinesFiled,
    ev.LedgerMonthDropped,
    ev.StaleRefused,
    ev.MeterOpened,
    ev.MeterCounted,
    ev.MeterClosed,
    ev.MemberWasPrepared,
    ev.MemberWasReady,
    ev.RanksEquipped,
    ev.GangStarting,
    ev.TokenCreated,
    ev.TokenRevoked,
    ev.JoinTokenCreated,
    ev.JoinTokenUsed,
    ev.FunctionRegistered,
    ev.AppDeployed,
    ev.WebhooksTried,
    ev.WebhookSecretRotated,
)
"""Events that neither free room nor ask for it."""
CAN_WAIT = (*NO_NEED_TO_SCHEDULE, ev.CallAccepted)
"""Events behind which a pass may come later: they ask for room, and others were there first."""


@dataclass(slots=True, kw_only=True)
class Pending:
    """A command that waits for its batch. ``answer`` is None where nobody asks."""

    command: Command
    bodies: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    answer: asyncio.Future[ev.Events] | None = None

    def resolve(self, outcome: ev.Events | Exception) -> None:
        """Answers, unless the asker has gone."""
        if self.answer is None or self.answer.done():
            return
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


@dataclass(slots=True)
class Draft:
    """A batch in the making. ``state`` is speculative: it holds if the batch is written."""

    state: State
    now: Now
    events: list[ev.AnyEvent] = field(default_factory=list[ev.AnyEvent])
    bodies: list[NewBody] = field(default_factory=list[NewBody])
    answers: list[tuple[Pending, ev.Events | Exception]] = field(
        default_factory=list[tuple[Pending, ev.Events | Exception]]
    )


def draft_batch(rules: Rules, state: State, pendings: Sequence[Pending], *, now: Now) -> Draft:
    """Decides ``pendings`` in order."""
    draft = Draft(state, now)
    for pending in pendings:
        draft.answers.append((pending, _decide(rules, draft, pending)))
    return draft


def wants_pass(draft: Draft, before: State) -> Literal["now", "later", "no"]:
    """Says when to place what waits: with this batch where that may start something at once, or where nothing waited
    before it; later where its calls only join those that wait.
    """
    ticked = any(isinstance(pending.command, Tick) for pending, _ in draft.answers)
    if not draft.state.queue or not (ticked or any(not isinstance(e, NO_NEED_TO_SCHEDULE) for e in draft.events)):
        return "no"
    if ticked or not before.queue or any(not isinstance(e, CAN_WAIT) for e in draft.events):
        return "now"
    return "later"


def place_what_waits(rules: Rules, draft: Draft, gang_idle_ms: dict[str, int]) -> None:
    """Adds one pass of the scheduler."""
    count = min(MAX_NEW_GANGS, len(draft.state.queue))
    raw_ids = tuple(rules.raw_ids(16) for _ in range(count))
    _decide(rules, draft, Pending(command=Schedule(raw_ids=raw_ids, gang_idle_ms=gang_idle_ms)))


def _decide(rules: Rules, draft: Draft, pending: Pending) -> ev.Events | Exception:
    """Adds the command's events to the draft, or nothing at all and returns why."""
    try:
        events = rules.decide(draft.state, pending.command, draft.now)
        state = draft.state
        for event in events:
            state = apply(state, event, draft.now.log_ms)
    except PhalanxError as e:
        return e
    except Exception:
        _logger.exception("command could not be decided", extra={"command": type(pending.command).__name__})
        return PhalanxError("the control plane failed on this request; its log says why", hint="gpuctl doctor")
    draft.bodies += _bodies(pending, events, state)
    draft.events += events
    draft.state = state
    return events


def _bodies(pending: Pending, events: ev.Events, state: State) -> list[NewBody]:
    """Returns the bodies that an event refers to: a repeated or stale command brings some that nothing does."""
    capped = isinstance(pending.command, Submit)
    found: list[NewBody] = []
    for event in events if pending.bodies else ():
        ref, call_id = _ref_of(event)
        if ref.key in pending.bodies:
            workspace = state.calls[call_id].owner.workspace
            found.append(NewBody(name=ref.key, workspace=workspace, data=pending.bodies[ref.key], capped=capped))
    return found


def _ref_of(event: ev.AnyEvent) -> tuple[BodyRef, str]:
    match event:
        case ev.CallAccepted(call=call):
            return call.args, call.id
        case ev.CallSucceeded(call_id=call_id, result=ref) | ev.CallFailed(call_id=call_id, error_body=ref):
            return ref, call_id
        case _:
            return BodyRef(), ""
