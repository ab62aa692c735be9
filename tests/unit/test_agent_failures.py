"""Telling the guilty rank from its victims, over one node and several."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from phalanx.core.collectives import Collective, RankState, to_dict
from phalanx.core.error_meta import error_to_meta
from phalanx.core.frames import Frame, Kind
from phalanx.core.messages import ErrorInfo, RankFailure
from phalanx.core.stacks import Place
from phalanx.core.states import Cause, Outcome
from phalanx_agent.dataplane.failures import choose_culprit, error_from_meta, is_victim
from phalanx_agent.dataplane.replies import AFTER_FAILURE_MS, Replies

BOOM = ErrorInfo(cause=Cause.USER_EXCEPTION, type_name="ValueError", message="boom", rank=3, node_id="n1")
PEER = ErrorInfo(
    cause=Cause.INFRASTRUCTURE,
    type_name="RuntimeError",
    message="Connection closed by peer [127.0.0.1]:5",
    rank=0,
    node_id="n0",
    ranks=(RankFailure(rank=0, node_id="n0", message="Connection closed by peer [127.0.0.1]:5"),),
)
STOPPED = ErrorInfo(cause=Cause.INFRASTRUCTURE, message="the gang was ended while the call ran", node_id="n1")
CALL = b"c" * 16


def stood(rank: int, *, size: int = 4, **known: Any) -> RankState:
    """A rank that waits in all-reduce number 3 of ``size`` elements."""
    last = (Collective(seq=3, op="all_reduce", sizes=str(size)),)
    waits = RankState(
        rank=rank, node_id=f"n{rank // 2}", answered=True, entered={"0": 3}, completed={"0": 2}, last=last
    )
    return replace(waits, **known)


def failed(
    error: ErrorInfo,
    *states: RankState,
    outcome: Outcome = Outcome.FAILED,
    body: bytes = b"",
    peer: bool = False,
) -> Frame:
    states_meta = [to_dict(s) for s in states]
    meta = {"outcome": outcome.value, "error": error_to_meta(error), "busy_ms": 4, "states": states_meta}
    return Frame(Kind.FAILURE, CALL, {**meta, "peer": True} if peer else meta, body)


def succeeded(body: bytes, **meta: object) -> Frame:
    return Frame(Kind.RESULT, CALL, {"busy_ms": 5, **meta}, body)


@pytest.mark.parametrize(
    "message",
    [
        "Connection closed by peer [127.0.0.1]:41263",
        "[Errno 104] Connection reset by peer",
        "Timed out waiting 8000ms for recv operation to complete",
        "NCCL communicator was aborted on rank 2",
        "Broken pipe",
    ],
)
def test_words_make_no_victim(message: str) -> None:
    assert not is_victim(ErrorInfo(cause=Cause.USER_EXCEPTION, message=message))


def test_a_victim_is_what_its_keeper_found_no_culprit_for() -> None:
    assert is_victim(PEER)
    assert not is_victim(replace(PEER, cause=Cause.USER_EXCEPTION))


def test_of_victims_alone_no_rank_is_named() -> None:
    chosen = choose_culprit([PEER, STOPPED])
    assert chosen.rank == -1
    assert not any(r.culprit for r in chosen.ranks)


@pytest.mark.parametrize(
    "error",
    [
        BOOM,
        ErrorInfo(cause=Cause.INFRASTRUCTURE, message="rank 2 was ended by signal 9", signal=9),
        ErrorInfo(cause=Cause.INFRASTRUCTURE, ranks=(RankFailure(rank=1, culprit=True),)),
        ErrorInfo(cause=Cause.TIMEOUT, message="timed out after 5 s"),
        ErrorInfo(cause=Cause.OUT_OF_MEMORY, message="memory ran out"),
    ],
)
def test_errors_of_their_own_are_not(error: ErrorInfo) -> None:
    assert not is_victim(error)


def test_the_culprit_is_kept_whoever_spoke_first() -> None:
    chosen = choose_culprit([PEER, BOOM])
    assert (chosen.message, chosen.rank, chosen.node_id) == ("boom", 3, "n1")
    assert [(r.rank, r.culprit) for r in chosen.ranks] == [(0, False), (3, True)]


def test_of_two_real_errors_the_first_counts() -> None:
    second = ErrorInfo(cause=Cause.USER_EXCEPTION, message="later", rank=1)
    assert choose_culprit([BOOM, second]).message == "boom"


def test_an_error_survives_its_way_through_a_frame() -> None:
    error = ErrorInfo(cause=Cause.OUT_OF_MEMORY, message="m", rank=1, ranks=(RankFailure(rank=1, signal=9),))
    assert error_from_meta(error_to_meta(error), pickled=b"p") == ErrorInfo(
        cause=Cause.OUT_OF_MEMORY, message="m", rank=1, pickled=b"p", ranks=(RankFailure(rank=1, signal=9),)
    )


@pytest.mark.parametrize("meta", [None, 3, {}, {"cause": "nonsense", "extra": 1, "ranks": [None]}])
def test_an_error_that_makes_no_sense_still_becomes_one(meta: object) -> None:
    assert error_from_meta(meta).cause is Cause.INFRASTRUCTURE


def test_a_result_needs_every_node_and_is_the_first_ones() -> None:
    replies = Replies(2)
    replies.add(1, succeeded(b"other"), 0, "n1")
    assert not replies.complete(0)
    replies.add(0, succeeded(b"mine"), 0, "n0")
    assert replies.complete(0)
    assert replies.combine(CALL, returns_all=False).body == b"mine"


def test_all_values_are_put_together_in_rank_order() -> None:
    replies = Replies(2)
    replies.add(1, succeeded(b"cdd", parts=[1, 2]), 0, "n1")
    replies.add(0, succeeded(b"aab", parts=[2, 1]), 0, "n0")
    whole = replies.combine(CALL, returns_all=True)
    assert (bytes(whole.body), whole.meta["parts"]) == (b"aabcdd", [2, 1, 1, 2])


def test_a_node_whose_own_ranks_ran_different_numbers_of_collectives_is_noticed() -> None:
    replies = Replies(2)
    replies.add(0, succeeded(b"", world_seq=4, uneven=True), 0, "n0")
    replies.add(1, succeeded(b"", world_seq=4), 0, "n1")
    assert replies.uneven


@pytest.mark.parametrize(("of_n0", "of_n1", "uneven"), [(4, 4, False), (4, 5, True), (0, 0, False)])
def test_nodes_whose_ranks_ran_different_numbers_of_collectives_are_noticed(
    of_n0: int, of_n1: int, uneven: bool
) -> None:
    replies = Replies(2)
    replies.add(0, succeeded(b"", world_seq=of_n0), 0, "n0")
    replies.add(1, succeeded(b"", world_seq=of_n1), 0, "n1")
    assert replies.uneven is uneven


def test_after_a_failure_the_others_have_a_bounded_time_to_explain_it() -> None:
    replies = Replies(2)
    replies.add(0, failed(PEER), 1, "n0")
    assert not replies.complete(AFTER_FAILURE_MS * 1_000_000)
    assert replies.complete(AFTER_FAILURE_MS * 1_000_000 + 2)
    replies.add(1, failed(BOOM, body=b"pickled"), 2, "n1")
    outcome = replies.combine(CALL, returns_all=False)
    assert outcome.meta["error"]["message"] == "boom"
    assert outcome.body == b"pickled"


def told(replies: Replies) -> dict[str, Any]:
    return replies.combine(CALL, returns_all=False).meta["error"]


def test_a_peer_error_is_the_users_own_when_no_other_rank_failed() -> None:
    replies = Replies(2)
    replies.add(0, failed(PEER, stood(0, replied=True, failed=True), stood(1), body=b"pickled", peer=True), 1, "n0")
    replies.add(1, failed(STOPPED, stood(2), stood(3)), 2, "n1")
    outcome = replies.combine(CALL, returns_all=False)
    assert outcome.meta["error"]["cause"] == Cause.USER_EXCEPTION
    assert outcome.meta["error"]["message"] == PEER.message
    assert [(r["rank"], r["culprit"]) for r in outcome.meta["error"]["ranks"]] == [(0, True)]
    assert outcome.body == b"pickled"


@pytest.mark.parametrize("other_returned", [False, True])
def test_a_rank_of_another_node_that_never_entered_is_named_and_not_those_that_failed(other_returned: bool) -> None:
    replies = Replies(2)
    failing = replace(PEER, ranks=(*PEER.ranks, replace(PEER.ranks[0], rank=1)))
    there = [stood(rank, replied=True, failed=True) for rank in (0, 1)]
    replies.add(0, failed(failing, *there, peer=True), 1, "n0")
    if other_returned:
        replies.add(1, succeeded(b"", seqs={"2": 3, "3": 2}), 2, "n1")
    else:
        here = stood(3, entered={"0": 2}, last=(), places=(Place("train.py", 8, "step"),))
        replies.add(1, failed(STOPPED, stood(2), here), 2, "n1")
    error = told(replies)
    assert error["rank"] == 3
    assert error["message"].startswith("rank 3 did not enter the collective that other ranks failed in: ")
    assert [(r["rank"], r["culprit"]) for r in error["ranks"]] == [(0, False), (1, False), (3, True)]


def test_a_rank_that_another_ones_collective_aborted_is_a_victim_over_nodes() -> None:
    replies = Replies(2)
    died = RankFailure(rank=0, node_id="n0", signal=6)
    aborted = ErrorInfo(cause=Cause.INFRASTRUCTURE, message="SIGABRT", rank=0, node_id="n0", signal=6, ranks=(died,))
    replies.add(0, failed(aborted, stood(0, alive=False, answered=False, last=()), stood(1), peer=True), 1, "n0")
    replies.add(1, failed(STOPPED, stood(2), stood(3, size=4096)), 2, "n1")
    error = told(replies)
    assert error["rank"] == 3
    assert error["signal"] == 0
    assert "rank 3 waits in all_reduce #3 of 4096" in error["message"]


def test_two_nodes_that_accuse_each_other_are_both_shown_and_nobody_is_named() -> None:
    replies = Replies(2)
    replies.add(0, failed(PEER, stood(0, replied=True, failed=True), stood(1), peer=True), 1, "n0")
    replies.add(1, failed(STOPPED, stood(2, size=9), stood(3, size=9)), 2, "n1")
    error = told(replies)
    assert error["rank"] == -1
    assert not any(r["culprit"] for r in error["ranks"])
    assert "which is at fault cannot be told" in error["message"]
    assert "ranks 2,3 wait in all_reduce #3 of 9" in error["message"]


def test_nobody_is_named_while_a_nodes_ranks_are_not_known() -> None:
    replies = Replies(2)
    replies.add(0, failed(PEER, stood(0, replied=True, failed=True), stood(1), peer=True), 1, "n0")
    replies.add(1, failed(STOPPED), 2, "n1")
    assert told(replies)["rank"] == -1


def test_a_node_whose_ranks_had_returned_may_still_end_the_call_with_a_hang() -> None:
    replies = Replies(2)
    replies.add(0, succeeded(b"", seqs={"0": 3, "1": 2}), 1, "n0")
    hang = ErrorInfo(cause=Cause.HANG, message="no progress", rank=1)
    replies.node_gone(0, hang, 2)
    replies.add(1, failed(STOPPED), 3, "n1")
    assert told(replies)["cause"] == Cause.HANG


def test_a_peer_error_stays_a_victims_while_a_node_has_said_nothing() -> None:
    replies = Replies(2)
    replies.add(0, failed(PEER, peer=True), 1, "n0")
    replies.node_gone(1, STOPPED, 1, may_have_run=True)
    outcome = replies.combine(CALL, returns_all=False)
    assert outcome.meta["error"]["cause"] == Cause.INFRASTRUCTURE


def test_a_time_limit_stays_one_when_other_ranks_only_died_of_it() -> None:
    replies = Replies(2)
    replies.add(0, failed(PEER), 1, "n0")
    timeout = ErrorInfo(cause=Cause.TIMEOUT, message="its time limit passed")
    replies.add(1, failed(timeout, outcome=Outcome.TIMED_OUT), 2, "n1")
    assert replies.combine(CALL, returns_all=False).meta["outcome"] == "timed_out"


def test_a_call_that_no_node_began_never_ran() -> None:
    replies = Replies(2)
    replies.node_gone(0, None, 1)
    replies.node_gone(1, BOOM, 1)
    assert replies.complete(1)
    assert replies.never_ran


def test_a_node_that_ends_in_mid_call_fails_it() -> None:
    replies = Replies(2)
    replies.add(0, failed(PEER), 1, "n0")
    replies.node_gone(1, BOOM, 1)
    assert replies.complete(1)
    assert not replies.never_ran
    assert replies.combine(CALL, returns_all=False).meta["error"]["message"] == "boom"
