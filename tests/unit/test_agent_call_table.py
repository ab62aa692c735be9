"""Outcomes are kept until they are acknowledged, within bounds; logged calls survive an agent in a journal."""

from __future__ import annotations

from pathlib import Path

from phalanx.core.frames import Frame, Kind
from phalanx_agent.dataplane.calljournal import CallJournal, open_calls
from phalanx_agent.dataplane.calls import MAX_KEPT_BYTES, MAX_KEPT_MS, CallRecord, CallTable, Origin, Step


def record(number: int, *, origin: Origin = Origin.DIRECT) -> CallRecord:
    return CallRecord(id=number.to_bytes(16, "big"), origin=origin, queue_key="a", user="ann")


def finish(table: CallTable, item: CallRecord, *, size: int = 0, now_ns: int = 0) -> None:
    table.add(item)
    table.finish(item, Frame(Kind.RESULT, item.id, {}, bytes(size)), now_ns)


def test_an_outcome_is_there_until_it_is_forgotten() -> None:
    table = CallTable()
    item = record(1)
    finish(table, item)
    assert table.get(item.id) is item
    assert item.step is Step.FINISHED
    table.forget(item.id)
    assert table.get(item.id) is None
    assert len(table) == 0


def test_outcomes_that_nobody_fetches_go_after_ten_minutes() -> None:
    table = CallTable()
    item = record(1)
    finish(table, item)
    assert table.overdue(MAX_KEPT_MS * 1_000_000) == []
    assert table.overdue(MAX_KEPT_MS * 1_000_000 + 1) == [item]


def test_the_oldest_go_first_when_outcomes_take_too_much_memory() -> None:
    table = CallTable()
    items = [record(i) for i in range(3)]
    for item in items:
        finish(table, item, size=MAX_KEPT_BYTES // 2)
    overdue = table.overdue(1)
    assert overdue[0] is items[0]
    assert items[2] not in overdue


def test_outcomes_that_the_control_plane_waits_for_never_go() -> None:
    table = CallTable()
    finish(table, record(1, origin=Origin.OFFERED), size=MAX_KEPT_BYTES * 2)
    assert table.overdue(MAX_KEPT_MS * 2_000_000) == []


def test_logged_calls_are_found_again_and_acknowledged_ones_are_not(tmp_path: Path) -> None:
    journal = CallJournal(tmp_path / "calls.jsonl")
    first, second = record(1, origin=Origin.OFFERED), record(2)
    first.attempt, first.fence, first.timeout_ms = 3, 9, 50
    journal.opened(first)
    journal.opened(second)
    journal.closed(second)
    journal.close()
    (found,) = open_calls(tmp_path / "calls.jsonl")
    assert (found.id, found.attempt, found.fence, found.timeout_ms) == (first.id, 3, 9, 50)
    assert found.origin is Origin.OFFERED
    assert found.reported


def test_a_torn_line_of_the_journal_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    journal = CallJournal(path)
    journal.opened(record(1))
    journal.close()
    path.write_text(path.read_text() + '{"id": "0')
    assert len(open_calls(path)) == 1


def test_without_a_path_nothing_is_written() -> None:
    CallJournal(None).opened(record(1))
    assert open_calls(None) == []


def test_a_journal_whose_folder_has_gone_or_whose_disk_is_full_ends_nobody(tmp_path: Path) -> None:
    """A gang's folder goes when its end is stored; the acknowledgement of its last call may come later."""
    gone = CallJournal(tmp_path / "gone" / "calls.jsonl")
    gone.closed(record(1))
    full = CallJournal(Path("/dev/full"))
    full.opened(record(2))
    full.opened(record(3))
    full.close()
    assert open_calls(tmp_path / "gone" / "calls.jsonl") == []
