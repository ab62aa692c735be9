"""Gangs that are played: what a node says, without ranks, and that it plays nothing that did not ask for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from phalanx.core import messages as m
from phalanx.core.spec import FunctionSpec, Resources
from phalanx.core.states import Outcome
from phalanx.outcomes import value_of_body
from phalanx_agent.fleet.player import REFUSAL, Player, Words

CALL_MS = 5_000


def function(**options: Any) -> FunctionSpec:
    return FunctionSpec(name="f", resources=Resources(gpus=4, gpu="played"), **options)


def prepare(spec: FunctionSpec | None = None, *, rank: int = 0, fence: int = 7) -> m.Prepare:
    return m.Prepare(gang_id="g-1", fence=fence, function=spec or function(), node_rank=rank)


def offer(number: int = 1, **fields: Any) -> m.Offer:
    return m.Offer(call_id=f"c-{number}", attempt=1, fence=3, gang_id="g-1", **fields)


def ready(spec: FunctionSpec | None = None, *, rank: int = 0) -> Player:
    player = Player(call_ms=CALL_MS)
    player.handle(prepare(spec, rank=rank), 0)
    player.handle(m.Start(gang_id="g-1", fence=7), 0)
    return player


def only(words: Words) -> Any:
    (said,) = words
    return said


def kinds(words: Words) -> list[str]:
    return [type(word).__name__ for word in words]


def test_a_gang_is_prepared_and_ready_at_once_and_says_so_again_when_asked_again() -> None:
    player = Player(call_ms=CALL_MS)
    for _ in range(2):
        assert only(player.handle(prepare(), 0)) == m.MemberPrepared(gang_id="g-1", fence=7, rendezvous="played")
    for _ in range(2):
        said = only(player.handle(m.Start(gang_id="g-1", fence=7), 0))
        assert said == m.MemberReady(gang_id="g-1", fence=7, backend="played")


@pytest.mark.parametrize("gpu", ["", "H100", "H100|played"])
def test_a_function_that_did_not_ask_to_be_played_is_refused_whoever_placed_it_here(gpu: str) -> None:
    player = Player(call_ms=CALL_MS)
    spec = replace(function(), resources=Resources(gpus=4, gpu=gpu))
    assert only(player.handle(prepare(spec), 0)).error == REFUSAL
    assert kinds(player.handle(m.Start(gang_id="g-1", fence=7), 0)) == ["MemberEnded"]
    assert kinds(player.handle(offer(), 0)) == ["CallRefused"]
    assert player.facts(0) == ()


def test_a_call_takes_its_time_and_returns_none() -> None:
    player = ready()
    assert only(player.handle(offer(), 100)) == m.CallStarted(call_id="c-1", attempt=1, fence=3, gang_id="g-1")
    assert player.due_ms() == 100 + CALL_MS
    assert player.tick(99 + CALL_MS) == ()
    finished = only(player.tick(100 + CALL_MS))
    assert (finished.outcome, finished.busy_ms) == (Outcome.SUCCEEDED, CALL_MS)
    assert value_of_body(finished.result.data, "rank0") is None
    assert player.due_ms() is None


def test_a_function_that_returns_all_gets_a_none_for_each_rank() -> None:
    player = ready(function(returns="all"))
    player.handle(offer(), 0)
    assert value_of_body(only(player.tick(CALL_MS)).result.data, "all") == [None] * 4


def test_calls_run_one_after_the_other_in_their_order() -> None:
    player = ready()
    player.handle(offer(1), 0)
    assert player.handle(offer(2), 1) == ()
    assert player.handle(offer(2), 2) == (), "an offer may come twice"
    assert [word.call_id for word in player.tick(CALL_MS) if isinstance(word, m.CallStarted)] == ["c-2"]
    assert player.due_ms() == 2 * CALL_MS


def test_a_call_with_a_shorter_limit_runs_into_it() -> None:
    player = ready()
    player.handle(offer(timeout_ms=800), 0)
    finished = only(player.tick(800))
    assert (finished.outcome, finished.result.data) == (Outcome.TIMED_OUT, b"")


def test_a_call_can_be_cancelled_while_it_waits_and_while_it_runs() -> None:
    player = ready()
    player.handle(offer(1), 0)
    player.handle(offer(2), 0)
    player.handle(offer(3), 0)
    waiting = only(player.handle(m.CancelCall(call_id="c-3", gang_id="g-1", attempt=1, fence=3), 10))
    assert (waiting.call_id, waiting.outcome, waiting.busy_ms) == ("c-3", Outcome.CANCELLED, 0)
    running, following = player.handle(m.CancelCall(call_id="c-1", gang_id="g-1", attempt=1, fence=3), 20)
    assert isinstance(running, m.CallFinished)
    assert isinstance(following, m.CallStarted)
    assert (running.outcome, running.busy_ms, following.call_id) == (Outcome.CANCELLED, 20, "c-2")
    assert kinds(player.handle(m.CancelCall(call_id="c-9", gang_id="g-1"), 20)) == ["CallRefused"]


def test_facts_hold_what_is_queued_and_what_is_not_stored_yet() -> None:
    player = ready()
    player.handle(offer(1), 0)
    player.handle(offer(2), 0)
    (facts,) = player.facts(10)
    assert (facts.depth, facts.in_flight, facts.idle_ms, facts.call_ids) == (1, 1, 0, ("c-1", "c-2"))
    first = player.tick(CALL_MS)[0]
    last = player.tick(2 * CALL_MS)[0]
    assert player.handle(offer(1), 2 * CALL_MS) == (), "it ran already, though its end is not stored"
    (facts,) = player.facts(2 * CALL_MS + 30)
    assert (facts.in_flight, facts.idle_ms, facts.call_ids) == (0, 30, ("c-1", "c-2"))
    player.stored(first)
    player.stored(last)
    assert player.facts(3 * CALL_MS)[0].call_ids == ()


def test_a_stop_that_drains_lets_the_call_end_first() -> None:
    player = ready()
    player.handle(offer(), 0)
    stop = m.Stop(gang_id="g-1", fence=7, drain=True)
    assert player.handle(stop, 10) == ()
    assert kinds(player.handle(offer(2), 10)) == ["CallRefused"]
    assert kinds(player.tick(CALL_MS)) == ["CallFinished", "MemberEnded"]
    assert player.handle(stop, CALL_MS) == (), "it has been said, and is said until it is stored"


def test_a_stop_ends_a_gang_at_once_and_it_is_forgotten_when_that_is_stored() -> None:
    player = ready()
    player.handle(offer(), 0)
    ended = only(player.handle(m.Stop(gang_id="g-1", fence=7), 10))
    assert (ended.clean, ended.counters, ended.error.message) == (True, (), "")
    assert player.due_ms() is None
    assert [facts.state for facts in player.facts(10)] == ["ended"]
    player.stored(ended)
    assert player.facts(10) == ()
    assert kinds(player.handle(m.Stop(gang_id="g-1", fence=7), 20)) == ["MemberEnded"]


def test_words_under_another_fence_change_nothing() -> None:
    player = ready()
    assert player.handle(prepare(fence=6), 0) == ()
    assert player.handle(m.Start(gang_id="g-1", fence=6), 0) == ()
    assert player.handle(m.Stop(gang_id="g-1", fence=6), 0) == ()
    assert [facts.state for facts in player.facts(0)] == ["ready"]


def test_only_the_lead_takes_calls() -> None:
    assert kinds(ready(rank=1).handle(offer(), 0)) == ["CallRefused"]


def test_the_end_of_the_fleet_ends_every_gang_with_the_reason() -> None:
    player = ready()
    player.handle(offer(), 0)
    assert only(player.end_all("over")).error.message == "over"
    assert player.end_all("over") == ()
