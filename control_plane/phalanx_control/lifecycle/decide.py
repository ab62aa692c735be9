"""The one door into the rules: a state, a command and the time in, events out; a PhalanxError where it is refused.

Pure: no I/O, no clock, no randomness. Each subject has its own file; this one only says which rule answers what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.core import messages
from phalanx.core.errors import VersionError
from phalanx_control.lifecycle import (
    calls,
    clients,
    cordons,
    fabric,
    filing,
    functions,
    gangs,
    nodes,
    policies,
    tick,
    tokens,
    webhooks,
)
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.scheduler import cycle
from phalanx_control.state import commands
from phalanx_control.state.events import Events, LeaderTookOver
from phalanx_control.state.model import State


def decide(state: State, command: commands.Command, now: commands.Now) -> Events:
    """Returns what happens because of ``command``, perhaps nothing. Raises the PhalanxError that the asker is told."""
    draft = Draft(state, now)
    _RULES[type(command)](draft, command)
    return draft.done()


def _take_over(draft: Draft, command: commands.TakeOver) -> None:
    if command.epoch < draft.state.epoch:
        raise VersionError(f"epoch {command.epoch} is over: the log is at {draft.state.epoch}")
    draft.add(LeaderTookOver(epoch=command.epoch, leader_id=command.leader_id))


def _agent_said(draft: Draft, command: commands.AgentSaid) -> None:
    nodes.heard(draft, command.node_id)
    if isinstance(command.message, messages.CallFinished):
        calls.finished(draft, command, command.message)
    elif isinstance(command.message, messages.DirectReport):
        calls.direct_report(draft, command, command.message)
    else:
        _WORDS[type(command.message)](draft, command.node_id, command.message)


_RULES: dict[type, Callable[[Draft, Any], None]] = {
    commands.TakeOver: _take_over,
    commands.RegisterFunction: functions.register,
    commands.DeployApp: functions.deploy,
    commands.CreateToken: tokens.create,
    commands.RevokeToken: tokens.revoke,
    commands.CreateJoinToken: tokens.create_join,
    commands.UseJoinToken: tokens.use_join,
    commands.SetFabric: fabric.set_fabric,
    commands.SetNodeState: cordons.set_state,
    commands.SetPolicy: policies.set_policy,
    commands.Submit: clients.submit,
    commands.Cancel: clients.cancel,
    commands.AgentSaid: _agent_said,
    commands.Tick: tick.tick,
    commands.Schedule: cycle.schedule,
    commands.NoteWebhooks: webhooks.note,
    commands.RotateWebhookSecret: webhooks.rotate,
    commands.ArchiveCalls: filing.archive_calls,
    commands.FileLines: filing.file_lines,
    commands.DropLedgerMonth: filing.drop_month,
}

_WORDS: dict[type, Callable[[Draft, str, Any], None]] = {
    messages.Hello: nodes.hello,
    messages.Report: nodes.report,
    messages.Leave: nodes.leave,
    messages.MemberPrepared: gangs.member_prepared,
    messages.MemberReady: gangs.member_ready,
    messages.MemberEnded: gangs.member_ended,
    messages.CallStarted: calls.started,
    messages.CallRefused: calls.refused,
}
