def sub(p,*pairs):
    s=open(p).read()
    for a,b in pairs:
        assert a in s,(p,a)
        s=s.replace(a,b)
    open(p,'w').write(s)
sub('gpu_agent/phalanx_agent/keeper/gang.py',('''            case Kind.LOOK:
                self.hang.asked(frame)
''','''            case Kind.LOOK:
                (self.steps if frame.meta.get("steps") else self.hang).asked(frame)
            case Kind.RANK:
                self.steps.marked(int(frame.meta["rank"]), frame.meta)
'''),('''            self.hang.marked()
        elif event == "context"''','''            self.hang.marked()
            self.steps.marked(rank.rank, frame.meta)
        elif event == "context"'''),('''        self.hang.begin()
''','''        self.hang.begin()
        self.steps.begin()
'''),('''        self.hang.end()
''','''        self.hang.end()
        self.steps.end()
'''),('''    hang: HangWatch = field(init=False)
''','''    hang: HangWatch = field(init=False)
    steps: StepWatch = field(init=False)
'''),('''        self.hang = watching.hang_watch_of(self, looker)
''','''        self.hang = watching.hang_watch_of(self, looker)
        self.steps = watching.step_watch_of(self)
'''),('''from phalanx_agent.keeper.straight import StraightCalls
''','''from phalanx_agent.keeper.steps import StepWatch
from phalanx_agent.keeper.straight import StraightCalls
'''))
sub('gpu_agent/phalanx_agent/keeper/watching.py',('''from phalanx_agent.keeper.looking import Looker
''','''from phalanx_agent.keeper.looking import Looker
from phalanx_agent.keeper.steps import StepWatch
'''),('''def write_report(''','''def step_watch_of(gang: Gang) -> StepWatch:
    return StepWatch(
        config=gang.config,
        loop=gang.loop,
        clock=gang.clock,
        tell=gang.tell,
        running=lambda: gang.book.running.id.hex() if gang.book.running else "",
    )


def write_report('''),('''        spool=gang.spool,
        wall_ms=gang.clock.wall_ms(),
''','''        spool=gang.spool,
        steps=gang.steps.rows(),
        wall_ms=gang.clock.wall_ms(),
'''))
sub('gpu_agent/phalanx_agent/keeper/failure_report.py',('''    spool: Spool,
    wall_ms: int,
''','''    spool: Spool,
    steps: tuple[RankSteps, ...],
    wall_ms: int,
'''),('''        "ranks": [_rank(''','''        "steps": rows_to_json(steps),
        "ranks": [_rank('''),('''from phalanx.core.states import Outcome
''','''from phalanx.core.states import Outcome
from phalanx.core.steps import RankSteps, rows_to_json
'''))
sub('gpu_agent/phalanx_agent/dataplane/links.py',('''        self._welcomed = False
        self._connect()
''','''        self._welcomed = False
        self._clock = PeerClock()
        self._connect()
'''),('''            connection.close(str(frame.meta.get("error", "refused")))
            return
        if frame.kind in''','''            connection.close(str(frame.meta.get("error", "refused")))
            return
        if frame.kind is Kind.PONG:
            self._clock.answered(frame)
            return
        if frame.meta.get("entered"):
            connection.send(self._clock.question())
        if frame.meta.get("marks"):
            frame.meta["ahead_us"] = self._clock.ahead_us
        if frame.kind in'''),('''            for waiting in self._waiting.values():
                connection.send(waiting)
            return
''','''            connection.send(self._clock.question())
            for waiting in self._waiting.values():
                connection.send(waiting)
            return
'''),('''from phalanx_agent.dataplane.loop import WRITE, Loop, now_ns
''','''from phalanx_agent.dataplane.loop import WRITE, Loop, now_ns
from phalanx_agent.dataplane.peer_clock import PeerClock
'''))
sub('gpu_agent/phalanx_agent/dataplane/clients.py',('''            self.send(Frame(Kind.PONG, frame.id))''','''            self.send(Frame(Kind.PONG, frame.id, {"wall_ns": time.time_ns()}))'''),('''from __future__ import annotations

from collections.abc''','''from __future__ import annotations

import time
from collections.abc'''))
sub('gpu_agent/phalanx_agent/dataplane/lead.py',('''            elif frame.kind is Kind.SEEN:
                self.keeper.send(frame)
''','''            elif frame.kind is Kind.SEEN or (frame.kind is Kind.RANK and "marks" in frame.meta):
                self.keeper.send(frame)
'''))
sub('gpu_agent/phalanx_agent/dataplane/gang.py',('''            self.stall = str(meta.get("reason", ""))
''','''            self.stall = str(meta.get("reason", ""))
        elif meta.get("event") == "slow":
            self.slow = str(meta.get("reason", ""))
'''),('''        self.stall = ""
''','''        self.stall = ""
        self.slow = ""
'''))
sub('gpu_agent/phalanx_agent/dataplane/telling.py',("stall=gang.stall,","stall=gang.stall or gang.slow,"))
sub('gpu_agent/phalanx_agent/dataplane/facts.py',('''    """Why nothing of its call goes on, while nothing does."""''','''    """Why nothing of its call goes on, while nothing does; else which rank is slow, while one is."""'''))
sub('gpu_agent/phalanx_agent/dataplane/looks.py',('''    def ask(self, request: bytes, asker: Callable[[Frame], None]) -> None:
        """Asks the local keeper for the stacks and records of its ranks; ``asker`` gets its SEEN."""
''','''    def ask(self, request: bytes, asker: Callable[[Frame], None], *, steps: bool = False) -> None:
        """Asks the local keeper for the stacks and records of its ranks, or how long their ``steps`` take; ``asker``
        gets its SEEN."""
'''),('''{"full": True}))''','''{"steps": True} if steps else {"full": True}))'''))
sub('gpu_agent/phalanx_agent/dataplane/server.py',('''gang.looks.ask(frame.id, client.send)''','''gang.looks.ask(frame.id, client.send, steps=bool(frame.meta.get("steps")))'''))
sub('gpu_agent/phalanx_agent/worker/main.py',('''from phalanx_agent.worker.signals import Stop, StopIdleError
''','''from phalanx_agent.worker.signals import Stop, StopIdleError
from phalanx_agent.worker.steps import Marks, collectives_of
'''),('''        server = self._server(callee, device, verified)
''','''        marks = Marks(self._event, collectives_of(joined.backend, config.world_size))
        server = self._server(callee, device, verified, marks)
'''),('''    def _server(self, callee: Callee, device: str, verified: Verified | None) -> Server:
''','''    def _server(self, callee: Callee, device: str, verified: Verified | None, marks: Marks) -> Server:
'''),('''            report_progress=self._progress,
''','''            report_progress=marks.mark,
'''),('''            markers=markers,
''','''            markers=markers,
            marks=marks,
'''),('''    def _progress(self, step: int, total: int) -> None:
        self._event("progress", step=int(step), total=int(total))

''',''))
sub('gpu_agent/phalanx_agent/worker/calls.py',('''    markers: Markers
''','''    markers: Markers
    marks: Marks
'''),('''        self.markers.write("stop", call''','''        self.marks.flush()
        self.markers.write("stop", call'''),('''

@dataclass(frozen=True, slots=True)
class Callee:''','''from phalanx_agent.worker.steps import Marks


@dataclass(frozen=True, slots=True)
class Callee:'''))
sub('gpu_agent/phalanx_agent/worker/recorder.py',('''KEPT = 16
"""Collectives that torch remembers for us, in memory of its own."""
''','''REMEMBERED = 64
"""Collectives that torch keeps for us, in memory of its own: enough to see several steps at once (`steps`)."""
KEPT = 16
"""So many of them are told."""
'''),("os.environ[_VARIABLE] = str(KEPT)","os.environ[_VARIABLE] = str(REMEMBERED)"))
sub('sdk/phalanx/core/frames.py',('''    LOOK      keeper, client → agent → keeper   full, ticket, call     where ranks stand: of other nodes, or of a call
    SEEN      keeper → agent → keeper, client   ranks, signs           answers the LOOK of the same id
''','''    LOOK      keeper, client → agent → keeper   full, ticket, call     where ranks stand: of other nodes, or of a call;
                                                                       with ``steps``, how long their steps take
    SEEN      keeper → agent → keeper, client   ranks, signs, steps    answers the LOOK of the same id
'''),('''    RANK      rank → keeper → agent   rank, event (started | context | ready | dead | progress), …
''','''    RANK      rank → keeper → agent   rank, event (started | context | ready | dead | progress | slow | stalled), …
              peer agent → lead → keeper   rank, marks, entered, ahead_us     progress of another node's rank
'''))
sub('sdk/phalanx/core/messages.py',('''    """Why nothing of the running call goes on, while nothing does."""''','''    """Why nothing of the running call goes on, while nothing does; else which rank is slow, while one is."""'''))
