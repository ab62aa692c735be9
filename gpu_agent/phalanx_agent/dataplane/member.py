"""A gang's part on a node that does not lead it: relays between the lead's agent and the local keeper.

Outcomes are kept until the lead acknowledges them, so that a lead which lost its connection, or was restarted, hears
all of them again. The end of the lead's connection changes nothing for the ranks.
"""

from __future__ import annotations

from phalanx.core.frames import Frame, Kind
from phalanx.core.messages import ErrorInfo
from phalanx.core.sockets import close_fds
from phalanx_agent.dataplane import debugging
from phalanx_agent.dataplane.bodies import inline, slots_of
from phalanx_agent.dataplane.connection import Connection
from phalanx_agent.dataplane.facts import GangSpec
from phalanx_agent.dataplane.gang import Emit, Gang
from phalanx_agent.dataplane.loop import Loop

_RELAYED_DOWN = (Kind.CALL, Kind.CANCEL, Kind.ACK, Kind.STOP, Kind.LOOK, Kind.CREDIT, Kind.PAUSE)


class MemberGang(Gang):
    """Relays; decides nothing about calls."""

    def __init__(self, loop: Loop, spec: GangSpec, *, node_id: str, epoch: int, emit: Emit) -> None:
        super().__init__(loop, spec, node_id=node_id, epoch=epoch, emit=emit)
        self.lead: Connection | None = None
        self._end: Frame | None = None
        self._unacknowledged: dict[bytes, Frame] = {}
        self._at_keeper: set[bytes] = set()

    def lead_connected(self, connection: Connection) -> None:
        """The lead's agent is there (again): it is told the state, and every outcome that it has not acknowledged."""
        if self.lead is not None and self.lead is not connection:
            self.lead.close("the lead connected anew")
        self.lead = connection
        if self.state is not None:
            connection.send(self.state)
        for frame in self._unacknowledged.values():
            connection.send(frame)
        if self._end is not None:
            connection.send(self._end)

    def lead_said(self, frame: Frame) -> None:
        """Passes a frame of the lead on to the keeper."""
        if frame.kind is Kind.STOP and frame.meta.get("hold"):
            self.keeper.send(frame)
        elif frame.kind is Kind.STOP:
            self.stop_local(str(frame.meta.get("reason", "")), int(frame.meta.get("grace_ms", 0)))
        elif frame.kind is Kind.CALL and frame.id in self._unacknowledged:
            self._to_lead(self._unacknowledged[frame.id])
        elif frame.kind is Kind.CALL and frame.id in self._at_keeper:
            return
        elif frame.kind in _RELAYED_DOWN:
            if frame.kind is Kind.CALL:
                self._at_keeper.add(frame.id)
            elif frame.kind is Kind.ACK:
                self._unacknowledged.pop(frame.id, None)
            self.keeper.send(frame)

    def lead_gone(self, connection: Connection) -> None:
        if self.lead is connection:
            self.lead = None

    def on_frame(self, frame: Frame) -> None:
        if frame.kind in (Kind.RESULT, Kind.FAILURE):
            plain = inline(frame)
            if frame.fds:
                close_fds(frame.fds)
                self.keeper.send(Frame(Kind.RELEASE, frame.id, {"slots": slots_of(frame)}))
            self._at_keeper.discard(frame.id)
            self._unacknowledged[frame.id] = plain
            self._to_lead(plain)
        elif frame.kind is Kind.ITEM:
            self._to_lead(inline(frame))
            close_fds(frame.fds)
        else:
            self._to_lead(frame)

    def on_state(self, frame: Frame) -> None:
        for call in [frame.meta.get("running") or "", *(frame.meta.get("queued") or [])]:
            if call:
                self._at_keeper.add(bytes.fromhex(str(call)))
                self.keeper.note_running(bytes.fromhex(str(call)))
        self._to_lead(frame)

    def on_rank(self, frame: Frame) -> None:
        if self.state is not None and frame.meta.get("event") in debugging.EVENTS:
            self._note_who_waits(self.state, frame)
        self._to_lead(frame)

    def _note_who_waits(self, state: Frame, frame: Frame) -> None:
        """A lead that was away is told by the state."""
        waiting = debugging.stopped_of(state.meta)
        debugging.note(waiting, frame)
        state.meta["stopped"] = {str(rank): where for rank, where in waiting.items()}
        state.meta["running"] = frame.meta.get("call") or state.meta.get("running")

    def on_ended(self, frame: Frame, error: ErrorInfo) -> None:
        del error
        self._end = frame
        self._to_lead(frame)

    def blame(self, reason: str) -> None:
        self._to_lead(Frame(Kind.BLAME, meta={"reason": reason}))

    def close(self) -> None:
        super().close()
        if self.lead is not None:
            self.lead.close("the gang is gone")

    def _to_lead(self, frame: Frame) -> None:
        if self.lead is not None:
            self.lead.send(frame)
