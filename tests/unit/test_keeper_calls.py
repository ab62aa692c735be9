"""The keeper's books: calls, phases, memory on loan, and frames in pieces."""

from __future__ import annotations

from phalanx.core.frames import CHUNK_BYTES, Assembler, Frame, Kind, chunks, encode_head
from phalanx.core.states import Phase
from phalanx_agent.keeper.bodies import Loans
from phalanx_agent.keeper.calls import CallBook, Outcome, QueuedCall, Reply, result_meta
from phalanx_agent.keeper.counters import PhaseCounters

A, B = b"a" * 16, b"b" * 16


def queued(call_id: bytes) -> QueuedCall:
    return QueuedCall(call_id, 1, 0, {}, b"", [])


def reply(rank: int, *, seq: int = 0, body: bytes = b"") -> Reply:
    return Reply(rank, True, {"seq": seq}, body, [])


def test_the_next_call_begins_only_when_all_ranks_replied() -> None:
    book = CallBook(2)
    assert book.offer(queued(A))
    assert book.offer(queued(B))
    assert book.begin(5) is not None
    assert book.begin(6) is None
    assert not book.reply(reply(0))
    assert book.reply(reply(1))
    book.finish(Outcome(Frame(Kind.RESULT, A)))
    following = book.begin(7)
    assert following is not None
    assert following.id == B


def test_a_call_is_taken_once_whether_it_waits_runs_or_is_done() -> None:
    book = CallBook(1)
    assert book.offer(queued(A))
    assert not book.offer(queued(A))
    book.begin(0)
    assert not book.offer(queued(A))
    book.finish(Outcome(Frame(Kind.RESULT, A)))
    assert not book.offer(queued(A))


def test_only_a_waiting_call_can_be_withdrawn() -> None:
    book = CallBook(1)
    book.offer(queued(A))
    book.offer(queued(B))
    book.begin(0)
    assert book.withdraw(A) is None
    withdrawn = book.withdraw(B)
    assert withdrawn is not None
    assert not book.queue


def test_unequal_collective_counts_are_told() -> None:
    assert "uneven" not in result_meta([reply(0, seq=4), reply(1, seq=4)], busy_ms=1, all_parts=False)
    meta = result_meta([reply(0, seq=4), reply(1, seq=5)], busy_ms=1, all_parts=False)
    assert meta["uneven"] is True
    assert meta["world_seq"] == 5


def test_parts_are_the_lengths_by_rank() -> None:
    meta = result_meta([reply(0, body=b"xy"), reply(1, body=b"z")], busy_ms=1, all_parts=True)
    assert meta["parts"] == [2, 1]


def test_memory_is_the_senders_again_when_the_last_rank_gave_it_back() -> None:
    loans = Loans()
    loans.lend(A, {"fds": [{"size": 8, "slot": 3}]}, 2)
    assert loans.back(A) is None
    assert loans.back(A) == 3
    assert loans.back(A) is None


def test_memory_without_a_slot_is_nobodys_business() -> None:
    loans = Loans()
    loans.lend(A, {"fds": [{"size": 8, "slot": -1}]}, 1)
    assert loans.back(A) is None


def test_phases_add_up_and_an_ended_gang_grows_no_more() -> None:
    counters = PhaseCounters(Phase.START, 100)
    counters.enter(Phase.IDLE_WARM, 150)
    counters.enter(Phase.BUSY, 160)
    assert counters.snapshot(200) == {"start": 50, "idle_warm": 10, "busy": 40}
    counters.enter(Phase.TEARDOWN, 200)
    counters.enter(Phase.TEARDOWN, 230)
    assert counters.snapshot(999, ended=True) == {"start": 50, "idle_warm": 10, "busy": 40, "teardown": 30}


def test_a_large_body_comes_back_whole_from_its_chunks() -> None:
    body = bytes(range(256)) * (CHUNK_BYTES // 100)
    pieces = chunks(Frame(Kind.CALL, A, {"attempt": 2}, body))
    assert len(pieces) == 3
    assembler = Assembler()
    whole = [f for p in pieces for f in assembler.feed(encode_head(p) + bytes(p.body), [])]
    assert [(bytes(f.body), f.meta, f.id) for f in whole] == [(body, {"attempt": 2}, A)]
