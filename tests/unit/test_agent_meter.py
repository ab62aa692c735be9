"""The meter: monotonic, cumulative, and none the worse for restarts, torn lines and wall-clock jumps."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.clock import ManualClock
from phalanx.core.states import Phase
from phalanx_agent.meter import Meter


def counted(meter: Meter, gang: str = "g") -> dict[str, int]:
    return {c.phase.value: c.ms for c in meter.counters(gang) if c.gpu == "a"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(monotonic_ms=1000)


def make(tmp_path: Path, clock: ManualClock, boot: str = "b1") -> Meter:
    return Meter(tmp_path / "journal.jsonl", clock=clock, boot_id=boot)


def through_the_start(meter: Meter, clock: ManualClock) -> None:
    meter.open("g", ("a", "b"))
    clock.advance(100)
    meter.enter("g", Phase.START)
    clock.advance(50)
    meter.enter("g", Phase.CONTEXT)
    clock.advance(25)
    meter.enter("g", Phase.IDLE_WARM)


def test_each_phase_counts_for_each_gpu(tmp_path: Path, clock: ManualClock) -> None:
    meter = make(tmp_path, clock)
    through_the_start(meter, clock)
    assert counted(meter) == {"prepare": 100, "start": 50, "context": 25}
    assert {c.gpu for c in meter.counters("g")} == {"a", "b"}
    meter.stop()


def test_busy_time_is_taken_from_the_warm_time_and_never_exceeds_it(tmp_path: Path, clock: ManualClock) -> None:
    meter = make(tmp_path, clock)
    through_the_start(meter, clock)
    clock.advance(1000)
    meter.note_busy("g", 300)
    clock.advance(1000)
    meter.note_busy("g", 5000)
    counters = counted(meter)
    assert (counters["busy"], counters["idle_warm"]) == (1300, 700)
    meter.stop()


def test_the_sum_of_phases_is_the_length_of_the_lease(tmp_path: Path, clock: ManualClock) -> None:
    meter = make(tmp_path, clock)
    through_the_start(meter, clock)
    clock.advance(777)
    meter.note_busy("g", 200)
    meter.enter("g", Phase.TEARDOWN)
    clock.advance(33)
    assert sum(counted(meter).values()) == clock.monotonic_ms() - 1000
    meter.stop()


def test_jumps_of_the_wall_clock_change_nothing(tmp_path: Path, clock: ManualClock) -> None:
    meter = make(tmp_path, clock)
    meter.open("g", ("a",))
    clock.jump_wall(-3_600_000)
    clock.advance(10)
    assert counted(meter) == {"prepare": 10}
    meter.stop()


def test_a_restarted_agent_goes_on_in_the_phase_that_was_open(tmp_path: Path, clock: ManualClock) -> None:
    meter = make(tmp_path, clock)
    through_the_start(meter, clock)
    meter.enter("g", Phase.TEARDOWN)
    meter.stop()
    clock.advance(500)
    again = make(tmp_path, clock)
    assert counted(again) == {"prepare": 100, "start": 50, "context": 25, "teardown": 500}
    again.stop()


def test_time_without_an_agent_is_split_by_the_keepers_own_count(tmp_path: Path, clock: ManualClock) -> None:
    meter = make(tmp_path, clock)
    through_the_start(meter, clock)
    clock.advance(2000)
    meter.note_busy("g", 100)
    meter.stop()
    clock.advance(1000)
    again = make(tmp_path, clock)
    again.catch_up("g", 700)
    counters = counted(again)
    assert (counters["busy"], counters["idle_warm"]) == (700, 2300)
    clock.advance(100)
    again.note_busy("g", 40)
    assert counted(again)["busy"] == 740
    again.stop()


def test_after_a_reboot_the_lease_stays_at_what_was_written(tmp_path: Path, clock: ManualClock) -> None:
    meter = make(tmp_path, clock)
    through_the_start(meter, clock)
    meter.stop()
    again = make(tmp_path, ManualClock(monotonic_ms=5), boot="b2")
    assert counted(again) == {"prepare": 100, "start": 50, "context": 25}
    again.stop()


def test_a_torn_last_line_is_ignored_and_does_not_spoil_the_next(tmp_path: Path, clock: ManualClock) -> None:
    meter = make(tmp_path, clock)
    through_the_start(meter, clock)
    meter.stop()
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"gang": "g", "bo')
    again = make(tmp_path, clock)
    again.open("h", ("a",))
    again.stop()
    third = make(tmp_path, clock)
    assert counted(third)["prepare"] == 100
    assert third.counters("h") == ()
    clock.advance(3)
    assert counted(third, "h") == {"prepare": 3}
    third.stop()


def test_a_closed_lease_is_gone_for_good(tmp_path: Path, clock: ManualClock) -> None:
    meter = make(tmp_path, clock)
    through_the_start(meter, clock)
    meter.close("g")
    meter.stop()
    again = make(tmp_path, clock)
    assert again.counters("g") == ()
    again.stop()


def test_leases_of_gangs_that_are_nowhere_are_dropped(tmp_path: Path, clock: ManualClock) -> None:
    meter = make(tmp_path, clock)
    meter.open("g", ("a",))
    meter.open("h", ("b",))
    meter.retain(["h"])
    clock.advance(1)
    assert meter.counters("g") == ()
    assert meter.counters("h")
    meter.stop()


def test_a_grown_journal_is_rewritten(tmp_path: Path, clock: ManualClock) -> None:
    meter = make(tmp_path, clock)
    through_the_start(meter, clock)
    meter.stop()
    path = tmp_path / "journal.jsonl"
    line = path.read_text().splitlines()[-1]
    path.write_text((line + "\n") * 20_000)
    again = make(tmp_path, clock)
    again.stop()
    assert len(path.read_text().splitlines()) < 10
    third = make(tmp_path, clock)
    assert counted(third)["start"] == 50
    third.stop()


def test_a_cpu_function_has_no_counters(tmp_path: Path, clock: ManualClock) -> None:
    meter = make(tmp_path, clock)
    meter.open("g", ())
    clock.advance(10)
    assert meter.counters("g") == ()
    meter.stop()
