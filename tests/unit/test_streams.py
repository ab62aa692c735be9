"""The rules of streams without processes: how far a rank may be ahead, and items of several ranks put together."""

from __future__ import annotations

from phalanx.core.frames import Frame, Kind
from phalanx_agent.keeper.merging import Merging
from phalanx_agent.worker.streams import WINDOW_BYTES, WINDOW_ITEMS, Window


def item(n: int) -> Frame:
    return Frame(Kind.ITEM, meta={"n": n})


def test_a_window_is_full_after_its_items_and_has_room_again_with_credit() -> None:
    window = Window(WINDOW_ITEMS, held=False)
    for _ in range(WINDOW_ITEMS):
        assert window.room
        window.add(10)
    assert not window.room
    window.credited(1)
    assert window.room


def test_a_window_is_full_after_its_bytes_whatever_one_item_holds() -> None:
    window = Window(WINDOW_ITEMS, held=False)
    window.add(WINDOW_BYTES * 3)
    assert not window.room
    window.credited(1)
    assert window.room


def test_an_older_credit_changes_nothing() -> None:
    window = Window(2, held=False)
    for _ in range(2):
        window.add(1)
    window.credited(2)
    window.add(1)
    window.credited(1)
    assert (window.room, window.end) == (True, 4)


def test_a_held_stream_makes_nothing_before_its_reader_comes() -> None:
    window = Window(2, held=True)
    assert (window.room, window.end) == (False, 0)
    window.credited(0)
    assert (window.room, window.end) == (True, 2)


def test_ranks_that_are_not_equally_far_know_the_same_end() -> None:
    ahead, behind = Window(2, held=False), Window(2, held=False)
    for _ in range(2):
        ahead.add(1)
    assert ahead.end == behind.end == 2


def test_an_item_is_whole_when_every_source_has_made_it() -> None:
    merging = Merging(2)
    assert merging.add(1, item(0)) is None
    assert merging.add(1, item(1)) is None
    whole = merging.add(0, item(0))
    assert whole is not None
    assert [f.meta["n"] for f in whole] == [0, 0]


def test_an_item_that_comes_again_or_out_of_order_is_not_taken() -> None:
    merging = Merging(2)
    merging.add(0, item(0))
    assert merging.add(0, item(0)) is None
    assert merging.add(1, item(1)) is None
    assert merging.add(1, item(0)) is not None


def test_sources_that_end_at_different_items_are_uneven() -> None:
    merging = Merging(2)
    merging.add(0, item(0))
    merging.end(1, 0)
    assert "number 1 ended after 0 items" in merging.uneven


def test_sources_that_end_at_the_same_item_are_even() -> None:
    merging = Merging(2)
    for source in range(2):
        merging.add(source, item(0))
        assert merging.uneven == ""
        merging.end(source, 1)
    assert merging.uneven == ""
