"""I1, I2, I3, I5 and I13: what may happen to one call, by its id."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.history_checker.records import Batch, Event, Findings

TERMINAL = {"CallSucceeded": "succeeded", "CallFailed": "failed", "CallCancelled": "cancelled"}
_ON_CALLS = frozenset(
    {*TERMINAL, "CallWaits", "CallAssigned", "CallRan", "CallRequeued", "CallCancelling", "CallOverdue"}
)
_GOES_ON = frozenset({"CallAssigned", "CallRan", "CallRequeued"})


@dataclass(slots=True)
class Attempt:
    """One execution as the log knows it. ``ended_wall_ms`` 0: still live."""

    number: int
    fence: int
    gang: str
    wall_ms: int
    ended_wall_ms: int = 0


@dataclass(slots=True)
class CallFacts:
    id: str
    state: str = "queued"
    direct: bool = False
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    fence: int = 0
    """The last one given, also to an attempt that was given back."""
    cancelling_wall_ms: int = 0
    terminal_wall_ms: int = 0
    archived: bool = False

    @property
    def live(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts and not self.attempts[-1].ended_wall_ms else None


class Calls:
    """Follows every call; ``facts`` are for the markers' part."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.facts: dict[str, CallFacts] = {}
        self._keys: dict[str, Event] = {}

    def see(self, batch: Batch, event: Event) -> None:
        kind = event["kind"]
        if kind == "CallAccepted":
            self._accepted(batch, event["call"])
        elif kind == "KeyTaken":
            self._key_taken(batch, event)
        elif kind == "CallsArchived":
            for call_id in event.get("call_ids", ()):
                self._archived(batch, call_id)
        elif kind in _ON_CALLS:
            self._on_call(batch, event, kind)

    def end(self, *, still_open: bool) -> None:
        """The history is over: what is still live was lost, unless the run goes on."""
        for call in self.facts.values():
            if not call.terminal_wall_ms and not still_open:
                self._findings.add("I1", None, f"{call.id} was accepted and never ended: it is {call.state}")

    def _accepted(self, batch: Batch, call: Event) -> None:
        if call["id"] in self.facts:
            self._findings.add("I1", batch, f"{call['id']} accepted twice")
            return
        self.facts[call["id"]] = CallFacts(call["id"])

    def _key_taken(self, batch: Batch, event: Event) -> None:
        """A key stands for one call, until its time is over."""
        name, use = event["name"], event["use"]
        known = self._keys.get(name)
        if known is not None and batch.log_ms < known["until_ms"]:
            self._findings.add(
                "I1", batch, f"a key of {known['call_id']} was taken by {use['call_id']} before its time"
            )
        self._keys[name] = use

    def _archived(self, batch: Batch, call_id: str) -> None:
        call = self.facts.get(call_id)
        if call is None or not call.terminal_wall_ms:
            self._findings.add("I1", batch, f"{call_id} archived before it ended")
        else:
            call.archived = True

    def _on_call(self, batch: Batch, event: Event, kind: str) -> None:
        call = self.facts.get(event["call_id"])
        if kind == "CallRan" and event.get("call"):
            call = self._direct(batch, event, call)
        if call is None:
            self._findings.add("I1", batch, f"{kind} of {event['call_id']}, which was never accepted")
        elif call.terminal_wall_ms:
            self._findings.add("I2", batch, f"{kind} of {call.id} after it had {call.state}")
        elif call.cancelling_wall_ms and kind in _GOES_ON:
            self._findings.add("I13", batch, f"{kind} of {call.id} after its cancel")
        else:
            self._step(batch, event, kind, call)

    def _direct(self, batch: Batch, event: Event, known: CallFacts | None) -> CallFacts:
        """A direct call is first heard of when it runs; one queued meanwhile under the same id becomes direct."""
        call = known or self.facts.setdefault(event["call_id"], CallFacts(event["call_id"]))
        call.direct = True
        if not call.terminal_wall_ms:
            self._begin(batch, call, event, event["call"].get("gang_id", ""))
        return call

    def _step(self, batch: Batch, event: Event, kind: str, call: CallFacts) -> None:
        if kind == "CallAssigned":
            self._begin(batch, call, event, event["gang_id"])
            call.state = "assigned"
        elif kind == "CallRan":
            self._ran(batch, call, event)
        elif kind == "CallRequeued":
            call.state = "queued"
            self._requeued(batch, call, began=bool(event.get("cause")))
        elif kind in ("CallCancelling", "CallOverdue"):
            call.state, call.cancelling_wall_ms = "cancelling", batch.wall_ms
        elif kind in TERMINAL:
            self._terminal(batch, call, event, kind)

    def _begin(self, batch: Batch, call: CallFacts, event: Event, gang: str) -> None:
        if call.live is not None:
            self._findings.add(
                "I3", batch, f"{call.id} gets attempt {event['attempt']} while {call.live.number} is live"
            )
        last = call.attempts[-1] if call.attempts else None
        if call.fence and event["fence"] <= call.fence:
            self._findings.add("I3", batch, f"{call.id}: fence {event['fence']} after fence {call.fence}")
        if last is not None and event["attempt"] <= last.number:
            self._findings.add("I3", batch, f"{call.id}: attempt {event['attempt']} after attempt {last.number}")
        call.fence = event["fence"]
        call.attempts.append(Attempt(event["attempt"], event["fence"], gang, batch.wall_ms))

    def _requeued(self, batch: Batch, call: CallFacts, *, began: bool) -> None:
        """Without a cause nothing had begun: the number is given to the next attempt. Marks of ranks would belie it."""
        if not began and call.live is not None:
            call.attempts.pop()
        else:
            self._close(call, batch)

    def _ran(self, batch: Batch, call: CallFacts, event: Event) -> None:
        live = call.live
        if live is None or (live.number, live.fence) != (event["attempt"], event["fence"]):
            what = f"attempt {event['attempt']}, fence {event['fence']}"
            self._findings.add("I5", batch, f"{call.id} ran as {what}, which is not its live attempt")
        call.state = "running"

    def _terminal(self, batch: Batch, call: CallFacts, event: Event, kind: str) -> None:
        if kind != "CallCancelled" and event["fence"] != call.fence:
            self._findings.add("I5", batch, f"{kind} of {call.id} under fence {event['fence']}, not {call.fence}")
        if kind == "CallSucceeded" and call.live is None:
            self._findings.add("I2", batch, f"{call.id} has a result and no live attempt")
        call.state = "timed_out" if event.get("timed_out") else TERMINAL[kind]
        call.terminal_wall_ms = batch.wall_ms
        self._close(call, batch)

    def _close(self, call: CallFacts, batch: Batch) -> None:
        if call.live is not None:
            call.live.ended_wall_ms = batch.wall_ms
