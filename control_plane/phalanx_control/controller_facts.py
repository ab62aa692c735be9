"""Fast facts: what agents report every two seconds and the log does not hold. Lost with the process, by contract.

Silence is measured in *attentive* time: while this process itself did not run (stopped, swapped out), reports lay
unread in its sockets, so that time is nobody's silence.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.clock import Clock
from phalanx.core.messages import GangFacts, GpuInfo, Report
from phalanx_control.state.commands import CountersSeen, NodeSilent
from phalanx_control.state.model import State

METER_EVERY_MS = 10_000
INATTENTIVE_MS = 2000
"""A longer pause between two ticks is a pause of this process."""
UNHEARD_PAUSE_MS = 30_000
"""How long a lead that has not spoken to this leader yet may keep its call's end to itself."""


@dataclass(slots=True)
class _NodeFacts:
    heard_ms: int
    heard_wall_ms: int
    gangs: dict[str, GangFacts]
    gpus: tuple[GpuInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class _Metered:
    """What was last made durable of one lease on one node."""

    at_ms: int
    counters: dict[tuple[str, str], int]
    agent_state: str


class Facts:
    """Of the nodes that this replica hears."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._nodes: dict[str, _NodeFacts] = {}
        self._metered: dict[tuple[str, str], _Metered] = {}
        self._inattentive_ms = 0
        self._tick_ms = clock.monotonic_ms()
        self._term_ms = self._tick_ms

    def begin_term(self) -> None:
        """A new leader has heard nobody yet: silence counts from here."""
        self._tick_ms = self._clock.monotonic_ms()
        self._term_ms = self._attentive_ms()
        self._metered.clear()

    def tick(self) -> None:
        """Called every half second while leading; a long gap since the last time is not counted as silence."""
        now = self._clock.monotonic_ms()
        self._inattentive_ms += max(0, now - self._tick_ms - INATTENTIVE_MS)
        self._tick_ms = now

    def heard(self, node_id: str) -> None:
        """The node's agent said something."""
        node = self._node(node_id)
        node.heard_ms, node.heard_wall_ms = self._attentive_ms(), self._clock.wall_ms()

    def note_report(self, node_id: str, report: Report) -> bool:
        """Keeps the report; True when what it says of the GPUs differs from the last one or depends on others."""
        self.heard(node_id)
        node = self._nodes[node_id]
        node.gangs = {g.gang_id: g for g in report.gangs}
        changed = report.gpus != node.gpus or bool(report.topology) or any(gpu.cordon for gpu in report.gpus)
        node.gpus = report.gpus
        return changed

    def note_gangs(self, node_id: str, gangs: tuple[GangFacts, ...]) -> None:
        """Keeps what a Hello says of the gangs that the agent holds."""
        self._node(node_id).gangs = {g.gang_id: g for g in gangs}

    def last_heard_wall_ms(self, node_id: str) -> int:
        """Returns 0 for a node that this replica has not heard."""
        return self._nodes[node_id].heard_wall_ms if node_id in self._nodes else 0

    def silent_ms(self, node_id: str) -> int:
        """Returns attentive milliseconds since the node was heard, or since this leader began."""
        heard = self._nodes[node_id].heard_ms if node_id in self._nodes else self._term_ms
        return max(0, self._attentive_ms() - max(heard, self._term_ms))

    def gang(self, gang_id: str, node_id: str) -> GangFacts | None:
        node = self._nodes.get(node_id)
        return node.gangs.get(gang_id) if node else None

    def gangs_on(self, node_id: str) -> tuple[GangFacts, ...]:
        node = self._nodes.get(node_id)
        return tuple(node.gangs.values()) if node else ()

    def silent(self, state: State) -> tuple[NodeSilent, ...]:
        """Returns every node of ``state`` with its silence, 0 included, so that decisions see who is back."""
        return tuple(NodeSilent(node_id=n, silent_ms=self.silent_ms(n)) for n in state.nodes)

    def idle_ms(self, state: State) -> dict[str, int]:
        """Returns the gangs with nothing in flight, by their lead's word."""
        idle: dict[str, int] = {}
        for gang_id, gang in state.gangs.items():
            facts = self.gang(gang_id, gang.lead)
            if facts is not None and not facts.depth and not facts.in_flight:
                idle[gang_id] = facts.idle_ms
        return idle

    def paused_ms(self, state: State) -> dict[str, int]:
        """Returns for how long the calls of gangs have waited for people; UNHEARD_PAUSE_MS of a lead that has not
        spoken yet."""
        heard = {gang_id: self.gang(gang_id, gang.lead) for gang_id, gang in state.gangs.items()}
        return {g: UNHEARD_PAUSE_MS if facts is None else facts.paused_ms for g, facts in heard.items()}

    def due_meters(self, state: State) -> tuple[CountersSeen, ...]:
        """Returns the counters to make durable now: 10 s old, or of a lease whose phase has changed."""
        due: list[CountersSeen] = []
        for node_id, node in self._nodes.items():
            for gang_id, facts in node.gangs.items():
                if gang_id in state.gangs and self._is_due(node_id, facts):
                    due.append(CountersSeen(gang_id=gang_id, node_id=node_id, counters=facts.counters))
        self._metered = {key: m for key, m in self._metered.items() if key[0] in state.gangs}
        return tuple(due)

    def _is_due(self, node_id: str, facts: GangFacts) -> bool:
        """Says so once: what is due is taken as written."""
        key = (facts.gang_id, node_id)
        counters = {(c.gpu, str(c.phase)): c.ms for c in facts.counters}
        last = self._metered.get(key, _Metered(0, {}, ""))
        if counters == last.counters:
            return False
        now = self._clock.monotonic_ms()
        phase_changed = counters.keys() != last.counters.keys() or facts.state != last.agent_state
        if not phase_changed and now - last.at_ms < METER_EVERY_MS:
            return False
        self._metered[key] = _Metered(now, counters, facts.state)
        return True

    def _node(self, node_id: str) -> _NodeFacts:
        if node_id not in self._nodes:
            self._nodes[node_id] = _NodeFacts(self._attentive_ms(), self._clock.wall_ms(), {})
        return self._nodes[node_id]

    def _attentive_ms(self) -> int:
        return self._clock.monotonic_ms() - self._inattentive_ms
