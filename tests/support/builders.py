"""Small builders of states, specs and agent messages, and a player that runs the pure core as a controller would."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core import messages as m
from phalanx.core.ids import id_text
from phalanx.core.spec import FunctionSpec, Limits, Resources
from phalanx.core.states import Outcome
from phalanx_control.lifecycle.decide import decide
from phalanx_control.lifecycle.outbox import Addressed, messages_for
from phalanx_control.state import commands as c
from phalanx_control.state.apply import apply_batch
from phalanx_control.state.events import AnyEvent, Events
from phalanx_control.state.model import BodyRef, Call, Gang, Owner, State

WALL_MS = 1_700_000_000_000
ANA = Owner(workspace="default", user="ana")
BOB = Owner(workspace="default", user="bob")
EVE = Owner(workspace="other", user="eve")


def call_id(n: int) -> str:
    """Returns the n-th call id."""
    return id_text("c", n.to_bytes(16, "big"))


def spec(
    name: str = "train", *, gpus: float = 1, limits: Limits | None = None, launch: str = "per_gpu", **resources: object
) -> FunctionSpec:
    """Returns a function spec; further keywords are resources."""
    asked = replace(Resources(gpus=gpus), **resources)  # pyright: ignore[reportArgumentType]
    return FunctionSpec(name=name, module="m", resources=asked, limits=limits or Limits(), launch=launch)


def node_info(
    node_id: str = "n1", *, gpus: int = 8, model: str = "NVIDIA H100", cpus: int = 64, boot_id: str = "boot-1"
) -> m.NodeInfo:
    """Returns a node with GPUs named ``<node>-gpu<i>``."""
    return m.NodeInfo(
        node_id=node_id,
        hostname=node_id,
        boot_id=boot_id,
        data_address=f"{node_id}:7000",
        fingerprint=f"fp-{node_id}",
        cpus=cpus,
        memory_bytes=512 * 10**9,
        gpus=tuple(m.GpuInfo(uuid=f"{node_id}-gpu{i}", index=i, model=model) for i in range(gpus)),
    )


class World:
    """The pure core with a clock: commands in, durable batches folded at once, messages to agents kept."""

    def __init__(self, *nodes: m.NodeInfo) -> None:
        self.state = State()
        self.log_ms = 1_000
        self.wall_ms = WALL_MS
        self.history: list[tuple[int, int, Events]] = []
        self.told: list[Addressed] = []
        self.idle_ms: dict[str, int] = {}
        self._raw = 0
        self.do(c.TakeOver(epoch=1, leader_id="a"))
        for info in nodes:
            self.hello(info)

    @property
    def now(self) -> c.Now:
        return c.Now(log_ms=self.log_ms, wall_ms=self.wall_ms)

    def do(self, command: c.Command) -> Events:
        """Decides, folds the events as one batch, and keeps what agents are told."""
        events = decide(self.state, command, self.now)
        if events:
            before = self.state
            seq = before.seq + 1
            self.state = apply_batch(before, seq=seq, log_ms=self.log_ms, events=events)
            self.history.append((seq, self.log_ms, events))
            self.told.extend(messages_for(before, events, self.state))
        return events

    def wait(self, ms: int) -> None:
        self.log_ms += ms
        self.wall_ms += ms

    def raw_ids(self, count: int = 64) -> tuple[bytes, ...]:
        self._raw += count
        return tuple((self._raw - i).to_bytes(16, "big") for i in range(count))

    # ---- clients ----

    def register(self, function: FunctionSpec, owner: Owner = ANA) -> str:
        self.do(c.RegisterFunction(owner=owner, spec=function))
        return function.function_id

    def submit(
        self,
        n: int,
        function_id: str,
        owner: Owner = ANA,
        *,
        timeout_ms: int = 0,
        terms: m.CallTerms | None = None,
        args_sha256: str = "",
        parent: str = "",
    ) -> str:
        self.do(
            c.Submit(
                call_id=call_id(n),
                function_id=function_id,
                owner=owner,
                args=BodyRef(key="k", size=3),
                timeout_ms=timeout_ms,
                terms=terms or m.CallTerms(),
                args_sha256=args_sha256,
                parent=parent,
            )
        )
        return call_id(n)

    def cancel(self, call: str, owner: Owner = ANA) -> Events:
        return self.do(c.Cancel(call_id=call, owner=owner))

    def schedule(self) -> Events:
        return self.do(c.Schedule(raw_ids=self.raw_ids(), gang_idle_ms=self.idle_ms))

    def tick(self, *silent: c.NodeSilent) -> Events:
        return self.do(c.Tick(silent=silent, gang_idle_ms=self.idle_ms))

    # ---- agents ----

    def say(
        self, node_id: str, message: m.FromAgent, *, result: BodyRef | None = None, error_body: BodyRef | None = None
    ) -> Events:
        said = c.AgentSaid(
            node_id=node_id, message=message, result=result or BodyRef(), error_body=error_body or BodyRef()
        )
        return self.do(said)

    def hello(self, info: m.NodeInfo, *held: Gang) -> Events:
        facts = tuple(m.GangFacts(gang_id=g.id, fence=g.fence) for g in held)
        return self.say(info.node_id, m.Hello(node=info, gangs=facts))

    def prepare(self, gang: Gang) -> None:
        """Lets every member say that it is prepared, the lead first."""
        for member in gang.members:
            address = "lead:1" if member.member.node_id == gang.lead else ""
            self.say(member.member.node_id, m.MemberPrepared(gang_id=gang.id, fence=gang.fence, rendezvous=address))

    def bring_up(self, gang: Gang) -> Gang:
        """Takes a reserved gang to READY."""
        self.prepare(gang)
        for member in gang.members:
            pids = tuple(100 + member.member.first_rank + i for i in range(member.member.ranks))
            self.say(
                member.member.node_id,
                m.MemberReady(gang_id=gang.id, fence=gang.fence, pids=pids, backend="gloo"),
            )
        return self.state.gangs[gang.id]

    def end(self, gang: Gang, *, error: m.ErrorInfo | None = None, nodes: tuple[str, ...] = ()) -> None:
        """Lets every member, or those on ``nodes``, say that its ranks are gone."""
        for member in gang.members:
            if not nodes or member.member.node_id in nodes:
                self.say(
                    member.member.node_id,
                    m.MemberEnded(gang_id=gang.id, fence=gang.fence, clean=error is None, error=error or m.ErrorInfo()),
                )

    def start(self, call: str) -> Events:
        """The lead reports that an assigned call runs."""
        known = self.call(call)
        return self.say(
            self.state.gangs[known.gang_id].lead,
            m.CallStarted(call_id=call, attempt=known.attempt, fence=known.fence, gang_id=known.gang_id),
        )

    def start_direct(self, n: int, gang: Gang, *, timeout_ms: int = 0) -> str:
        self.say(
            gang.lead,
            m.CallStarted(
                call_id=call_id(n), gang_id=gang.id, direct=True, user="ana", args_bytes=9, timeout_ms=timeout_ms
            ),
        )
        return call_id(n)

    def finish(
        self,
        call: str,
        outcome: Outcome = Outcome.SUCCEEDED,
        *,
        error: m.ErrorInfo | None = None,
        busy_ms: int = 50,
        debug_ms: int = 0,
    ) -> Events:
        known = self.call(call)
        gang = self.state.gangs[known.gang_id]
        message = m.CallFinished(
            call_id=call,
            attempt=known.attempt,
            fence=known.fence,
            gang_id=known.gang_id,
            outcome=outcome,
            error=error or m.ErrorInfo(),
            busy_ms=busy_ms,
            debug_ms=debug_ms,
        )
        ok = outcome is Outcome.SUCCEEDED
        return self.say(gang.lead, message, result=BodyRef(key="result", size=5) if ok else None)

    # ---- looking ----

    def call(self, call: str) -> Call:
        return self.state.calls[call]

    def only_gang(self) -> Gang:
        (gang,) = self.state.gangs.values()
        return gang

    def ready_gang(self, function_id: str, n: int = 1) -> Gang:
        """Submits a call, starts its gang and lets it be assigned."""
        before = set(self.state.gangs)
        self.submit(n, function_id)
        self.schedule()
        (new,) = set(self.state.gangs) - before
        return self.bring_up(self.state.gangs[new])

    def kinds(self, events: Events) -> list[str]:
        return [type(e).__name__ for e in events]

    def messages_to(self, node_id: str) -> list[m.ToAgent]:
        return [message for node, message in self.told if node == node_id]


def events_of(events: Events, kind: type[AnyEvent]) -> list[AnyEvent]:
    """Returns the events of one kind."""
    return [e for e in events if isinstance(e, kind)]
