"""A keeper's gang with the rules of the product and no process: a test says what its ranks say, and time is its own."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from phalanx.core.clock import ManualClock
from phalanx.core.frames import NO_ID, Frame, Kind
from phalanx.core.messages import Member
from phalanx.core.spec import FunctionSpec, Limits
from phalanx.core.states import Phase
from phalanx_agent.keeper.absence import Absence
from phalanx_agent.keeper.calls import CallBook
from phalanx_agent.keeper.channel import Channel
from phalanx_agent.keeper.counters import PhaseCounters
from phalanx_agent.keeper.ending import Ending
from phalanx_agent.keeper.gang import Gang
from phalanx_agent.keeper.leftovers import Leftovers
from phalanx_agent.keeper.loop import Loop
from phalanx_agent.keeper.output import Spool
from phalanx_agent.keeper.ranks import RankProcess
from phalanx_agent.keeper.report import Evidence, error_to_dict
from phalanx_agent.keeper.setup import ShellRequest
from phalanx_agent.keeper.shells import Shells
from tests.support.gang_configs import gang_config

NO_PID = 1 << 30
"""No process has this number."""


@dataclass(slots=True)
class FakeEnding:
    """Notes that the gang was to end."""

    begun: bool = False

    def begin(self, grace_ms: int) -> None:
        del grace_ms
        self.begun = True

    def rank_gone(self) -> None:
        """Nothing waits for it."""


@dataclass(slots=True)
class FakeShells:
    """Hands out the test's end of a socket for each shell; pids of no process."""

    requests: list[ShellRequest] = field(default_factory=list[ShellRequest])
    ends: list[socket.socket] = field(default_factory=list[socket.socket])

    def start(self, rank: RankProcess, request: ShellRequest) -> tuple[int, int]:
        del rank
        ours, theirs = socket.socketpair()
        self.requests.append(request)
        self.ends.append(theirs)
        return NO_PID + len(self.ends), ours.detach()


class GangOfFakes:
    """Node ``node_rank`` of a gang with so many ``ranks`` on each node, ready. ``told`` is what the agent heard.

    With ``slow_looks`` ranks do not answer when they are looked at: decisions take as long as they may.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 1,
        node_rank: int = 0,
        ranks: int = 1,
        limits: Limits | None = None,
        slow_looks: bool = False,
    ) -> None:
        members = [Member(node_id=f"n{n}", first_rank=n * ranks, ranks=ranks, gpus=()) for n in range(nodes)]
        config = gang_config(FunctionSpec(name="f", limits=limits or Limits()), *members, node_rank=node_rank)
        self.clock = ManualClock()
        self.loop = Loop(self.clock)
        self.told: list[Frame] = []
        self.ending = FakeEnding()
        self.shells = FakeShells()
        self._sockets: list[socket.socket] = []
        self._ids = itertools.count(1)
        first = node_rank * ranks
        processes = [self._rank(first + i, folder, slow_looks=slow_looks) for i in range(ranks)]
        self.gang = Gang(
            config=config,
            gang_dir=folder,
            clock=self.clock,
            loop=self.loop,
            spool=Spool(folder / "spool.log", self.clock),
            ranks=processes,
            ending=cast("Ending", self.ending),
            tell=self.told.append,
            tell_soon=lambda frame, _more: self.told.append(frame),
            agent_keeps_up=lambda: True,
            leave=lambda: None,
            shells=cast("Shells", self.shells),
            leftovers=Leftovers(self.clock),
            counters=PhaseCounters(Phase.START, self.clock.monotonic_ms()),
            book=CallBook(ranks),
            evidence=Evidence(config.node_id),
            absence=Absence(self.loop, self.clock, 0, lambda _ms: None, lambda: None),
        )
        for rank in processes:
            self.says(rank.rank, Frame(Kind.RANK, NO_ID, {"event": "ready"}))

    def close(self) -> None:
        for each in (*self._sockets, *self.shells.ends):
            each.close()
        self.gang.spool.close()
        self.loop.close()

    def _rank(self, number: int, folder: Path, *, slow_looks: bool) -> RankProcess:
        ours, theirs = socket.socketpair()
        looks, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sockets += [ours, theirs, looks, reader]
        return RankProcess(
            rank=number,
            pid=NO_PID,
            host_pid=NO_PID,
            channel=Channel(ours),
            pipes=[],
            stack_path=folder / f"rank{number}.stack",
            look_fd=looks.fileno() if slow_looks else -1,
        )

    # ---- what is said ----

    def rank(self, number: int) -> RankProcess:
        return next(r for r in self.gang.ranks if r.rank == number)

    def says(self, rank: int, frame: Frame) -> None:
        """A rank's frame reaches the keeper."""
        self.gang.from_rank(self.rank(rank), frame)

    def call(self, *, timeout_ms: int = 0) -> bytes:
        """The agent sends a call; returns its id."""
        call = next(self._ids).to_bytes(16, "big")
        self.gang.from_agent(Frame(Kind.CALL, call, {"timeout_ms": timeout_ms}))
        return call

    def returns(self, rank: int, call: bytes) -> None:
        self.says(rank, Frame(Kind.RESULT, call))

    def raises(self, rank: int, call: bytes, error: Any, *, peer: bool = False) -> None:
        self.says(rank, Frame(Kind.FAILURE, call, {"error": error_to_dict(error), "peer": peer}))

    def stops(self, rank: int, where: str = "train.py:7", *, fds: list[int] | None = None) -> None:
        """A rank comes to a breakpoint."""
        self.says(rank, Frame(Kind.RANK, NO_ID, {"event": "breakpoint", "where": where}, fds=fds or []))

    def goes_on(self, rank: int) -> None:
        self.says(rank, Frame(Kind.RANK, NO_ID, {"event": "goes_on"}))

    def elsewhere(self, call: bytes, **ranks: str) -> None:
        """The lead tells who waits on other nodes: ``r3="train.py:7"``."""
        said = {name.removeprefix("r"): where for name, where in ranks.items()}
        self.gang.from_agent(Frame(Kind.PAUSE, NO_ID, {"ranks": said, "call": call.hex()}))

    # ---- time ----

    def passes(self, ms: int, *, then: Callable[[], None] = lambda: None) -> None:
        """Lets time go by in ten steps, and serves what is due in each."""
        for step in range(10):
            self.clock.advance(ms * (step + 1) // 10 - ms * step // 10)
            then()
            self.turn()

    def turn(self) -> None:
        """Serves what is due, and what came."""
        self.loop.at("test", self.clock.monotonic_ms(), lambda: None)
        self.loop.turn()

    # ---- what the agent heard ----

    def heard(self, kind: Kind) -> list[Frame]:
        return [frame for frame in self.told if frame.kind is kind]

    def outcome(self, call: bytes) -> Frame:
        return next(f for f in self.told if f.id == call and f.kind in (Kind.RESULT, Kind.FAILURE))

    @property
    def paused(self) -> dict[str, Any]:
        """The last that was said of who waits, and for how long already."""
        said = [f.meta for f in self.heard(Kind.RANK) if f.meta.get("event") == "paused" and "debug" in f.meta]
        return said[-1] if said else {}
