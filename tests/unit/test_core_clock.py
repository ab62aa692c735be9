"""Clocks: the system's own never runs backwards, the manual one moves only when told."""

from __future__ import annotations

from phalanx.core.clock import Clock, ManualClock, SystemClock


def test_system_time_does_not_run_backwards() -> None:
    clock: Clock = SystemClock()
    times = [clock.monotonic_ms() for _ in range(1000)]
    assert times == sorted(times)
    assert clock.wall_ms() > 1_600_000_000_000


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(monotonic_ms=5, wall_ms=100)
    assert (clock.monotonic_ms(), clock.wall_ms()) == (5, 100)
    clock.advance(7)
    assert (clock.monotonic_ms(), clock.wall_ms()) == (12, 107)


def test_a_jump_of_the_wall_clock_leaves_monotonic_time_alone() -> None:
    clock = ManualClock(monotonic_ms=5, wall_ms=100)
    clock.jump_wall(-3_600_000)
    assert (clock.monotonic_ms(), clock.wall_ms()) == (5, 100 - 3_600_000)
