"""Names of keys, and the judgement when a leader is gone."""

from __future__ import annotations

import pytest

from phalanx.core.clock import ManualClock
from phalanx.core.errors import InvalidSpecError
from phalanx_control.log.keys import Keys
from phalanx_control.log.leadership import STALE_AFTER_MS, LeaderRecord, LeaderWatch


def record(beat: int = 0, leader_id: str = "a") -> LeaderRecord:
    return LeaderRecord(epoch=1, leader_id=leader_id, beat=beat)


def test_all_keys_of_a_cell_share_one_hash_tag() -> None:
    keys = Keys("main")
    names = [*keys.permanent, keys.body("c/args"), keys.usage("w")]
    assert all(name.startswith("{px:main}:") for name in names)
    assert len(set(names)) == 6


@pytest.mark.parametrize("cell", ["", "a}b", "a{b", "a:b", "a/b"])
def test_a_cell_name_that_would_break_the_tag_is_refused(cell: str) -> None:
    with pytest.raises(InvalidSpecError, match="cell name"):
        Keys(cell)


def test_nobody_leading_is_gone_at_once() -> None:
    assert LeaderWatch(ManualClock()).is_gone(LeaderRecord())


def test_a_leader_is_gone_after_two_seconds_without_a_beat_on_the_watchers_own_clock() -> None:
    clock = ManualClock()
    watch = LeaderWatch(clock)
    assert not watch.is_gone(record())
    clock.advance(STALE_AFTER_MS - 1)
    assert not watch.is_gone(record())
    clock.advance(1)
    assert watch.is_gone(record())


def test_each_beat_starts_the_wait_anew() -> None:
    clock = ManualClock()
    watch = LeaderWatch(clock)
    for beat in range(10):
        assert not watch.is_gone(record(beat))
        clock.advance(STALE_AFTER_MS - 1)


def test_wall_clock_jumps_judge_nobody() -> None:
    clock = ManualClock()
    watch = LeaderWatch(clock)
    assert not watch.is_gone(record())
    clock.jump_wall(3_600_000)
    assert not watch.is_gone(record())


def test_a_watcher_that_lost_sight_of_the_store_begins_to_count_again() -> None:
    clock = ManualClock()
    watch = LeaderWatch(clock)
    assert not watch.is_gone(record())
    clock.advance(60_000)
    watch.forget()
    assert not watch.is_gone(record())
