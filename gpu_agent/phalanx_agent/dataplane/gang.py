"""What every member node of a gang does on the data plane: hold the keeper, pass on its life signs, stop it in time.

The lead node's part (`lead.py`) and the others' (`member.py`) build on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from phalanx.context import MAX_STEP
from phalanx.core.frames import Frame, Kind
from phalanx.core.messages import ErrorInfo
from phalanx_agent.dataplane.facts import GangSpec, KeeperAttached, KeeperEnded, KeeperStuck, PlaneEvent, RankSaid
from phalanx_agent.dataplane.failures import error_from_meta, infrastructure
from phalanx_agent.dataplane.held import Held
from phalanx_agent.dataplane.links import KeeperLink
from phalanx_agent.dataplane.looks import Looks
from phalanx_agent.dataplane.loop import Loop, now_ns
from phalanx_agent.dataplane.terminals import KINDS as TERMINALS
from phalanx_agent.dataplane.terminals import Terminals

log = logging.getLogger(__name__)

Emit = Callable[[PlaneEvent], None]
STOP_SLACK_MS = 10_000
SETTLE_BOUND_MS = 3_000
"""How long the end of a gang's ranks is kept back until it is known how their call ended."""


class Gang:
    """One gang on this node. Lives from the keeper's first word to the agent's ``close``."""

    def __init__(self, loop: Loop, spec: GangSpec, *, node_id: str, epoch: int, emit: Emit) -> None:
        """Attaches to the keeper. Raises OSError when it is not there."""
        self.spec = spec
        self.node_id = node_id
        self.loop = loop
        self.emit = emit
        self.ended = False
        self.stopping = False
        self.step = 0
        self.stall = ""
        self.slow = ""
        self.debug = ""
        """Which ranks wait at breakpoints, and how to get there; empty: none."""
        self._paused_ms = 0
        self._paused_since_ns = 0
        self.touched_ns = now_ns()
        self.state: Frame | None = None
        self._end_to_tell: KeeperEnded | None = None
        self._tell_end_by_ns = 0
        self.keeper = KeeperLink(
            loop,
            spec.keeper_socket,
            node_id=node_id,
            epoch=epoch,
            on_frame=self._keeper_said,
            on_lost=self._keeper_lost,
        )
        self.held = Held()
        self.looks = Looks(self.keeper)
        self.terminals = Terminals(self.keeper)

    def on_frame(self, frame: Frame) -> None:
        """A frame of the local keeper that is neither STATE, RANK nor ENDED."""
        raise NotImplementedError

    def on_state(self, frame: Frame) -> None:
        """The keeper said what runs and what finished."""
        raise NotImplementedError

    def on_rank(self, frame: Frame) -> None:
        """A life sign of a local rank."""
        raise NotImplementedError

    def on_ended(self, frame: Frame, error: ErrorInfo) -> None:
        """The local ranks are gone; ``error`` says why, unless they ended cleanly."""
        raise NotImplementedError

    @property
    def settled(self) -> bool:
        """Says whether nothing is left to say of the calls that the ranks ran."""
        return True

    def on_look(self, frame: Frame) -> None:
        """The local keeper, on the lead, asks where the ranks of the other nodes stand."""

    def stop_all(self, reason: str, grace_ms: int) -> None:
        """Ends the gang on every node that this one speaks for."""
        self.stop_local(reason, grace_ms)

    def drain(self, reason: str, grace_ms: int) -> None:
        """Lets what runs finish, then stops; a gang that is held goes on being held."""
        if not self.held:
            self.stop_all(reason, grace_ms)

    def blame(self, reason: str) -> None:
        """A local GPU of the gang has failed: that explains failures of its ranks."""
        raise NotImplementedError

    def check(self, now: int) -> None:
        """Called every few milliseconds while calls are at work, and every second otherwise."""
        self.keeper.flush()
        self._tell_end(now)

    def close(self) -> None:
        """Lets go of the keeper without ending it."""
        self.keeper.close()

    def ping(self) -> None:
        """Tells the keeper that this agent is alive: it ends a gang whose agent falls silent."""
        if not self.ended:
            self.keeper.send(Frame(Kind.PING))

    def stop_local(self, reason: str, grace_ms: int) -> None:
        first, self.stopping = not self.stopping, True
        if self.ended:
            return
        self.keeper.send(Frame(Kind.STOP, meta={"reason": reason, "grace_ms": grace_ms}))
        if first:
            self.loop.later(grace_ms + STOP_SLACK_MS, self._still_there)

    def _still_there(self) -> None:
        if not self.ended:
            log.warning("keeper does not stop", extra={"gang": self.spec.gang_id, "pid": self.keeper.pid})
            self.emit(KeeperStuck(gang_id=self.spec.gang_id, keeper_pid=self.keeper.pid))

    def _keeper_said(self, frame: Frame) -> None:
        kind = frame.kind
        if kind is Kind.STATE:
            self._state(frame)
        elif kind is Kind.RANK:
            self._rank(frame)
        elif kind is Kind.ENDED:
            self._ended(frame)
        elif kind is Kind.LOOK:
            self.on_look(frame)
        elif (kind is Kind.SEEN and self.looks.answered(frame)) or (kind in TERMINALS and self.terminals.said(frame)):
            return
        elif kind is not Kind.PONG:
            self.on_frame(frame)

    def _state(self, frame: Frame) -> None:
        self.state = frame
        meta = frame.meta
        self._look_at_pause(meta)
        self.emit(
            KeeperAttached(
                gang_id=self.spec.gang_id,
                phase=str(meta.get("phase", "starting")),
                pids=_ints(meta.get("pids")),
                backend=str(meta.get("backend", "")),
                keeper_pid=self.keeper.pid,
                counters=_counters(meta.get("counters")),
            )
        )
        if self.debug or self.held:
            self.emit(RankSaid(gang_id=self.spec.gang_id, rank=-1, event="debug"))  # a former agent heard of it
        self.on_state(frame)

    def _rank(self, frame: Frame) -> None:
        said = self._read(frame.meta)
        if said is None:
            return
        self.step = max(self.step, said.step)
        self.touched_ns = now_ns()
        if said.event == "paused" and said.rank < 0:
            self._look_at_pause(frame.meta)
            said = replace(said, event="debug" if self.debug or self.held else "resumed")
        if said.event == "stalled":
            self.stall = str(frame.meta.get("reason", ""))
        elif said.event == "slow":
            self.slow = str(frame.meta.get("reason", ""))
        elif said.event != "progress":
            self.emit(said)
        self.on_rank(frame)

    def _read(self, meta: dict[str, Any]) -> RankSaid | None:
        """A rank may be under any code's control: what does not fit says nothing."""
        try:
            return RankSaid(
                gang_id=self.spec.gang_id,
                rank=int(meta.get("rank", -1)),
                event=str(meta.get("event", "")),
                pids=_ints(meta.get("pids")),
                backend=str(meta.get("backend", "")),
                step=min(int(meta.get("step") or 0), MAX_STEP),
                busy_ms=self.keeper.busy_ms,
                pairs=_pairs(meta.get("pairs")),
                all_reduce_gbyte_s=float(meta.get("all_reduce_gbyte_s") or 0),
            )
        except (TypeError, ValueError, OverflowError):
            return None

    def _look_at_pause(self, meta: dict[str, Any]) -> None:
        self.debug, self._paused_ms = str(meta.get("debug", "")), int(meta.get("paused_ms") or 0)
        self._paused_since_ns = now_ns() if self.debug else 0
        if meta.get("held"):
            self.held = Held.of(meta)
            self.on_held()

    @property
    def paused_ms(self) -> int:
        """How long its call's time has stood still so far."""
        since_ns = self._paused_since_ns
        return self._paused_ms + ((now_ns() - since_ns) // 1_000_000 if since_ns else 0)

    def on_held(self) -> None:
        """The gang takes no calls any more, and stays until it is stopped or ends by itself."""

    def _ended(self, frame: Frame) -> None:
        if self.ended:
            return
        self.ended = True
        self.terminals.end()
        meta = frame.meta
        clean = bool(meta.get("clean", False))
        error = ended_error(frame, self.node_id)
        self.on_ended(frame, error)
        self.keeper.send(Frame(Kind.ACK))
        self._say_ended(clean, error, meta)

    def _keeper_lost(self, reason: str) -> None:
        if self.ended:
            return
        self.ended = True
        self.terminals.end()
        error = infrastructure(f"the keeper on node {self.node_id} is gone: {reason}", node_id=self.node_id)
        meta: dict[str, Any] = {"clean": False, "lost": True}
        self.on_ended(Frame(Kind.ENDED, meta=meta), error)
        self._say_ended(False, error, meta, lost=True)

    def _say_ended(self, clean: bool, error: ErrorInfo, meta: dict[str, Any], *, lost: bool = False) -> None:
        self._end_to_tell = KeeperEnded(
            gang_id=self.spec.gang_id,
            clean=clean,
            error=error,
            counters=_counters(meta.get("counters")),
            lost=lost,
        )
        self._tell_end_by_ns = now_ns() + SETTLE_BOUND_MS * 1_000_000
        self._tell_end(now_ns())

    def _tell_end(self, now: int) -> None:
        """A gang's end releases it at the control plane: how its call ended must be said before."""
        if self._end_to_tell is not None and (self.settled or now > self._tell_end_by_ns):
            self.emit(self._end_to_tell)
            self._end_to_tell = None


def ended_error(frame: Frame, node_id: str) -> ErrorInfo:
    """Returns why an ENDED frame's ranks ended; empty where they were told to."""
    error = frame.meta.get("error")
    return error_from_meta(error, pickled=bytes(frame.body), node_id=node_id) if error else ErrorInfo()


def is_error(error: ErrorInfo) -> bool:
    return bool(error.message or error.type_name)


def _ints(value: object) -> tuple[int, ...]:
    if isinstance(value, dict):
        value = list(cast("dict[str, Any]", value).values())
    return tuple(int(v) for v in cast("list[Any]", value)) if isinstance(value, list) else ()


def _pairs(value: object) -> tuple[tuple[int, int, bool, float], ...]:
    rows = cast("list[Any]", value) if isinstance(value, list) else []
    return tuple((int(a), int(b), bool(copies), float(gbyte_s)) for a, b, copies, gbyte_s in rows)


def _counters(value: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, dict):
        return ()
    return tuple((str(k), int(v)) for k, v in cast("dict[str, Any]", value).items())
