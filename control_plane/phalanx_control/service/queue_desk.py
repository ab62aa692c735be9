"""Who waits, in which order and for what, and who gets how much: told by operators, shown to everybody of their own."""

from __future__ import annotations

from phalanx.core.clock import Clock
from phalanx.core.spec import FunctionSpec
from phalanx.core.views import QueueView, StartView
from phalanx.policy import only_of
from phalanx.wire_errors import NotAllowedError
from phalanx_control.scheduler import outlook
from phalanx_control.scheduler.accounts import ensure_allowed
from phalanx_control.scheduler.capacity import ensure_possible
from phalanx_control.scheduler.need import Need
from phalanx_control.service.caller import caller
from phalanx_control.service.ports import ControllerPort
from phalanx_control.service.tokens import OPERATORS, is_operator
from phalanx_control.state.commands import Now, SetPolicy
from phalanx_control.state.model import State
from phalanx_proto.v1 import control_pb2


class QueueDesk:
    """Serves the RPCs of the queue for the present caller."""

    def __init__(self, controller: ControllerPort, clock: Clock) -> None:
        self._controller = controller
        self._clock = clock

    async def set_policy(self, policy: str) -> control_pb2.PolicyText:
        """Keeps the policy, or forgets it where ``policy`` is empty."""
        if not is_operator():
            raise NotAllowedError(f"only admins of {OPERATORS!r} say who gets how much")
        await self._controller.execute(SetPolicy(policy=policy))
        return self.policy()

    def policy(self) -> control_pb2.PolicyText:
        """Of other workspaces only operators see what they may have."""
        state = self._state
        if is_operator() or not state.policy:
            return control_pb2.PolicyText(policy=state.policy, warning=outlook.policy_words(state))
        return control_pb2.PolicyText(policy=only_of(state.policy, caller().owner.workspace))

    def queue(self, limit: int) -> QueueView:
        """Returns what waits in the caller's workspace, or in all for an operator."""
        return queue_at(self._state, self._now, limit=limit)

    def start(self, spec: FunctionSpec) -> StartView:
        """Raises UnschedulableError where it could never start."""
        state, owner = self._state, caller().owner
        ensure_possible(state, spec)
        ensure_allowed(state, spec, owner)
        return outlook.start_of(state, Need(spec=spec, workspace=owner.workspace), owner, self._now)

    @property
    def _state(self) -> State:
        return self._controller.state

    @property
    def _now(self) -> Now:
        """Of a standby the log's clock stands at the last entry: times that it tells may be a moment late."""
        return Now(log_ms=self._state.log_ms, wall_ms=self._clock.wall_ms())


def queue_at(state: State, now: Now, *, limit: int = 0) -> QueueView:
    """Returns what waits then in the caller's workspace, or in all for an operator."""
    workspace = "" if is_operator() else caller().owner.workspace
    found = tuple(outlook.waiting(state, now, limit=outlook.MOST_SHOWN))
    mine = [each for each in found if workspace in ("", each.workspace)][: limit or outlook.MOST_SHOWN]
    accounts = outlook.accounts_of(state, now, workspace=workspace)
    return QueueView(waiting=tuple(mine), accounts=accounts, others=len(state.queue) - len(mine))
