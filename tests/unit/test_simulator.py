"""The simulator on traces small enough to be worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phalanx.core.errors import InvalidSpecError
from phalanx_control import controller_draft
from phalanx_control.simulator import live
from phalanx_control.simulator.fragments import fragmented, mix_of
from phalanx_control.simulator.jobs import Job, offered_load, size_class
from phalanx_control.simulator.live import LiveScheduler, Options
from phalanx_control.simulator.machines import from_words
from phalanx_control.simulator.play import POLICIES, Asked, play
from phalanx_control.simulator.shares import entitled


def job(at_s: float, lasts_s: float | None, gpus: float, workspace: str = "default", **more: Any) -> Job:
    lasts_ms = None if lasts_s is None else round(lasts_s * 1000)
    return Job(number=0, at_ms=round(at_s * 1000), duration_ms=lasts_ms, gpus=gpus, workspace=workspace, **more)


def waits(found: dict[str, Any]) -> dict[str, float]:
    return {row["size"]: row["mean_s"] for row in found["waits"]}


@pytest.mark.parametrize("policy", POLICIES)
def test_first_in_is_first_out_where_all_ask_for_the_same(policy: str) -> None:
    jobs = [job(at, 100, 8) for at in (0, 10, 20)]
    found = play(jobs, from_words("1x8"), Asked(policy=policy))
    assert found["waits"][-1] == {
        "size": "all",
        "started": 3,
        "never": 0,
        "mean_s": (0 + 90 + 180) / 3,
        "p50_s": 90.0,
        "p95_s": 180.0,
        "max_s": 180.0,
    }
    assert found["makespan_s"] == 300
    assert found["utilisation"] == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_a_gang_waits_until_the_two_that_hold_its_gpus_have_ended(policy: str) -> None:
    jobs = [job(0, 50, 4), job(0, 80, 4), job(1, 10, 8)]
    found = play(jobs, from_words("1x8"), Asked(policy=policy))
    assert waits(found)["5-8"] == 79
    assert found["idle_gpu_hours_while_waiting"] == pytest.approx(4 * 30 / 3600, abs=1e-6)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_gang_is_spread_over_nodes_only_where_it_may_be(policy: str) -> None:
    jobs = [job(0, 10, 8), job(0, 10, 8, one_node=True)]
    found = play(jobs, from_words("2x4"), Asked(policy=policy))
    assert found["jobs"] == {"submitted": 1, "started": 1, "ended": 1, "refused": 1, "stopped": 0}


@pytest.mark.parametrize("policy", POLICIES)
def test_fractions_share_a_gpu_and_the_third_waits(policy: str) -> None:
    jobs = [job(0, 100, 0.5), job(1, 100, 0.5), job(2, 100, 0.5)]
    found = play(jobs, from_words("1x1"), Asked(policy=policy))
    assert waits(found)["<1"] == pytest.approx(98 / 3)
    assert found["makespan_s"] == 200


def test_live_tenants_never_share_a_gpu() -> None:
    jobs = [job(0, 100, 0.5, "a"), job(1, 100, 0.5, "b")]
    found = play(jobs, from_words("1x1"), Asked())
    assert waits(found)["all"] == pytest.approx(99 / 2)


def test_who_comes_later_passes_with_easy_where_it_ends_in_time_and_with_fifo_never() -> None:
    jobs = [job(0, 100, 6), job(1, 100, 8), job(2, 90, 2), job(3, 200, 2)]
    fifo = play(jobs, from_words("1x8"), Asked(policy="fifo"))
    easy = play(jobs, from_words("1x8"), Asked(policy="easy"))
    assert waits(fifo)["2"] == pytest.approx((198 + 197) / 2)
    assert waits(easy)["2"] == pytest.approx((0 + 197) / 2)
    assert waits(easy)["5-8"] == waits(fifo)["5-8"] == 99 / 2


def test_live_backfills_before_a_promise_whoever_says_when_it_ends_in_time() -> None:
    jobs = [job(0, 1000, 6), job(1, 100, 8), job(100, 300, 2), job(101, 2000, 2)]
    silent = play(jobs, from_words("1x8"), Asked())
    said = play(jobs, from_words("1x8"), Asked(options=Options(timeouts=1)))
    assert waits(silent)["2"] > 500
    assert waits(said)["2"] == pytest.approx((0 + 999) / 2)


def test_a_gang_takes_its_time_to_start_and_stays_warm_for_the_next_call() -> None:
    jobs = [job(0, 10, 1), job(20, 10, 1), job(200, 10, 1)]
    found = play(jobs, from_words("1x1"), Asked(options=Options(start_ms=5_000, warm_ms=60_000)))
    assert waits(found)["all"] == pytest.approx((5 + 0 + 5) / 3)


def test_an_idle_gang_makes_room_for_another_function() -> None:
    jobs = [job(0, 10, 8), job(20, 10, 4)]
    found = play(jobs, from_words("1x8"), Asked(options=Options(warm_ms=600_000)))
    assert waits(found)["all"] == 0


def test_a_job_that_gives_way_begins_anew_and_what_it_had_done_is_lost() -> None:
    jobs = [job(0, 1000, 8, user="spot", preemptible=True), job(100, 50, 8, user="ana")]
    found = play(jobs, from_words("1x8"), Asked())
    assert found["jobs"] == {"submitted": 2, "started": 2, "ended": 2, "refused": 0, "stopped": 1}
    assert found["lost_gpu_hours"] == pytest.approx(8 * 100 / 3600, abs=1e-5)
    assert found["makespan_s"] == pytest.approx(1150, abs=2)
    assert waits(found)["all"] == 0


def test_a_fleet_of_more_nodes_shortens_the_waits() -> None:
    jobs = [job(at, 100, 8) for at in range(4)]
    small, large = from_words("1x8"), from_words("1x8").beside(from_words("3x8", prefix="more-"))
    assert waits(play(jobs, small, Asked()))["all"] > 100
    assert waits(play(jobs, large, Asked()))["all"] == 0


def test_the_load_that_is_asked_for_is_offered() -> None:
    jobs = [job(10 * at, 100, 1) for at in range(11)]
    assert offered_load(jobs, 8) == pytest.approx(1.375)
    assert play(jobs, from_words("1x8"), Asked(load=0.5))["offered_load"] == pytest.approx(0.5, rel=0.01)


def test_jobs_that_never_end_stay_and_the_others_are_told_as_never_started() -> None:
    found = play([job(0, None, 8), job(1, 10, 8)], from_words("1x8"), Asked())
    assert found["jobs"]["started"] == 1
    assert found["waits"][-1]["never"] == 1


def test_the_same_inputs_give_the_same_bytes() -> None:
    jobs = [job(at * 7 % 50, 1 + at * 13 % 40, (1, 2, 4, 8, 0.3)[at % 5], f"w{at % 3}") for at in range(200)]
    texts = {json.dumps(play(jobs, from_words("3x8"), Asked(load=0.9))) for _ in range(2)}
    assert len(texts) == 1


def test_reasons_make_no_difference_to_who_gets_what() -> None:
    jobs = [job(at * 7 % 50, 1 + at * 13 % 40, (1, 2, 4, 8, 16)[at % 5], f"w{at % 3}") for at in range(200)]
    found = [play(jobs, from_words("3x8"), Asked(load=0.9, options=Options(explains=each))) for each in (True, False)]
    assert found[0] == found[1]


def test_who_holds_less_than_its_share_is_counted_as_misallotted() -> None:
    jobs = [job(0, 100, 8, "a"), job(0.001, 100, 8, "b")]
    found = play(jobs, from_words("1x8"), Asked(policy="fifo"))
    assert found["share_error"] == pytest.approx(0.5)
    assert [w["gpu_hours"] for w in found["workspaces"]] == pytest.approx([800 / 3600] * 2, abs=1e-5)


def test_shares_go_by_weight_and_what_one_does_not_want_goes_to_the_others() -> None:
    assert entitled({"a": 9, "b": 9}, {"a": 2}, 9) == {"a": 6, "b": 3}
    assert entitled({"a": 1, "b": 9, "c": 9}, {}, 9) == {"a": 1, "b": 4, "c": 4}
    assert entitled({"a": 1, "b": 2}, {}, 9) == {"a": 1, "b": 2}


def test_fragmentation_is_free_gpu_that_a_mix_could_not_use() -> None:
    halves = mix_of({500: 1}, 8)
    assert fragmented([[400, 0], [600, 400]], halves) == 800
    pairs = mix_of({2000: 0.5, 1000: 0.5}, 8)
    assert fragmented([[1000, 500]], pairs) == 0.5 * 1500 + 0.5 * 500
    assert mix_of({16_000: 1, 0: 5}, 8) == ((8000, 1.0),)


def test_sizes_are_told_in_classes() -> None:
    assert [size_class(gpus) for gpus in (0, 0.5, 1, 3, 8, 12, 128)] == ["cpu", "<1", "1", "3-4", "5-8", "9-16", "65+"]


def test_a_fleet_that_holds_nothing_is_refused() -> None:
    with pytest.raises(InvalidSpecError, match="could run none of 1 jobs"):
        play([job(0, 1, 16)], from_words("1x8"), Asked())


def test_a_pass_starts_as_many_gangs_as_one_of_the_controller() -> None:
    assert live.MAX_NEW_GANGS == controller_draft.MAX_NEW_GANGS


def test_the_live_scheduler_is_driven_by_the_events_of_the_log() -> None:
    fleet = from_words("1x8")
    scheduler = LiveScheduler(fleet, Options())
    scheduler.submit(job(0, 10, 8), 0)
    list(scheduler.decide(0))
    (gang,) = scheduler.state.gangs.values()
    assert gang.state.value == "busy"
    scheduler.end(job(0, 10, 8), 10_000)
    list(scheduler.decide(10_000))
    assert (len(scheduler.state.gangs), len(scheduler.state.calls), len(scheduler.state.ledger)) == (0, 0, 0)
