"""Fast facts: silence, idleness and meters that are due."""

from __future__ import annotations

from phalanx.core.clock import ManualClock
from phalanx.core.messages import Counter, GangFacts, GpuInfo, Member, NodeInfo, Report
from phalanx.core.states import GpuState, Phase
from phalanx_control.controller_facts import METER_EVERY_MS, Facts
from phalanx_control.state.model import Gang, MemberState, Node, Owner, State


def state() -> State:
    """Returns a state with node n1 and one gang on it."""
    gang = Gang(id="g1", fence=1, function_id="f", owner=Owner(), members=(MemberState(member=Member(node_id="n1")),))
    empty = State()
    nodes = empty.nodes.set("n1", Node(info=NodeInfo(node_id="n1")))
    return State(nodes=nodes, gangs=empty.gangs.set("g1", gang))


def gang_facts(busy_ms: int = 0, **changes: int | str) -> GangFacts:
    counters = (Counter(gpu="u", phase=Phase.BUSY, ms=busy_ms),)
    return GangFacts(gang_id="g1", fence=1, counters=counters, **changes)  # pyright: ignore[reportArgumentType]


def advance(clock: ManualClock, facts: Facts, ms: int) -> None:
    """Lets time pass with a tick each half second."""
    for _ in range(ms // 500):
        clock.advance(500)
        facts.tick()


def test_silence_is_counted_from_the_last_word_or_the_start_of_the_term() -> None:
    clock = ManualClock()
    facts = Facts(clock)
    facts.begin_term()
    advance(clock, facts, 3000)
    assert facts.silent_ms("n1") == 3000
    facts.heard("n1")
    advance(clock, facts, 1000)
    assert [s.silent_ms for s in facts.silent(state())] == [1000]


def test_a_new_term_forgives_old_silence() -> None:
    clock = ManualClock()
    facts = Facts(clock)
    facts.heard("n1")
    advance(clock, facts, 60_000)
    facts.begin_term()
    assert facts.silent_ms("n1") == 0


def test_time_in_which_this_process_did_not_run_is_nobodys_silence() -> None:
    clock = ManualClock()
    facts = Facts(clock)
    facts.begin_term()
    clock.advance(60_000)
    facts.tick()
    assert facts.silent_ms("n1") <= 2000


def test_idle_is_what_the_lead_reports_with_nothing_in_flight() -> None:
    facts = Facts(ManualClock())
    facts.note_report("n1", Report(gangs=(gang_facts(idle_ms=700),)))
    assert facts.idle_ms(state()) == {"g1": 700}
    facts.note_report("n1", Report(gangs=(gang_facts(idle_ms=700, in_flight=1),)))
    assert facts.idle_ms(state()) == {}
    facts.note_report("n1", Report())
    assert facts.gang("g1", "n1") is None


def test_meters_are_due_at_once_then_every_ten_seconds_and_at_a_change_of_phase() -> None:
    clock = ManualClock()
    facts = Facts(clock)
    facts.note_report("n1", Report(gangs=(gang_facts(100),)))
    assert len(facts.due_meters(state())) == 1
    facts.note_report("n1", Report(gangs=(gang_facts(2100),)))
    assert facts.due_meters(state()) == ()
    clock.advance(METER_EVERY_MS)
    due = facts.due_meters(state())
    assert [c.ms for seen in due for c in seen.counters] == [2100]
    facts.note_report("n1", Report(gangs=(gang_facts(2200, state="draining"),)))
    assert len(facts.due_meters(state())) == 1


def test_counters_that_did_not_move_are_never_due() -> None:
    clock = ManualClock()
    facts = Facts(clock)
    facts.note_report("n1", Report(gangs=(gang_facts(100),)))
    facts.due_meters(state())
    clock.advance(10 * METER_EVERY_MS)
    assert facts.due_meters(state()) == ()


def test_a_report_says_whether_the_gpus_changed() -> None:
    facts = Facts(ManualClock())
    free = (GpuInfo(uuid="u"),)
    assert facts.note_report("n1", Report(gpus=free))
    assert not facts.note_report("n1", Report(gpus=free))
    assert facts.note_report("n1", Report(gpus=(GpuInfo(uuid="u", state=GpuState.EXTERNAL),)))
