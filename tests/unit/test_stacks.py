"""Reading what faulthandler writes: the main thread, what our own frame called, and ranks that stand together."""

from __future__ import annotations

import faulthandler
import tempfile
from pathlib import Path

import pytest

from phalanx.core.stacks import Place, RankStack, alike, caller_of, main_thread, ranks_text, stack_text

DUMP = """\
Thread 0x00007f0000000002 (most recent call first):
  File "/x/worker/recorder.py", line 40 in _serve

Current thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/linecache.py", line 30 in getline
  File "/home/me/train.py", line 88 in step
  File "/home/me/train.py", line ??? in main
  File "/x/worker/calls.py", line 120 in _call_user
  File "/x/worker/calls.py", line 60 in serve
"""
CALLER = "/x/worker/calls.py"


def test_the_main_thread_is_what_our_own_frame_called() -> None:
    assert main_thread(DUMP, caller=CALLER) == (
        Place("/usr/lib/python3.11/linecache.py", 30, "getline"),
        Place("/home/me/train.py", 88, "step"),
        Place("/home/me/train.py", 0, "main"),
    )


def test_files_of_the_platform_are_left_out() -> None:
    assert [p.line for p in main_thread(DUMP, caller=CALLER, without=("/home/",))] == [30]


def test_of_several_dumps_the_last_counts() -> None:
    later = DUMP.replace("line 88", "line 89")
    assert main_thread(DUMP + later, caller=CALLER)[1].line == 89


def test_a_dump_without_our_frame_is_shown_whole_and_nonsense_as_nothing() -> None:
    assert len(main_thread(DUMP, caller="/x/other.py")) == 5
    assert main_thread("File half a line\nThread 0x12") == ()


def test_the_function_of_ours_that_called_is_known() -> None:
    assert caller_of(DUMP, CALLER) == "_call_user"
    assert caller_of(DUMP, "/x/worker/recorder.py") == ""


def test_of_a_dump_that_leaves_out_the_oldest_threads_nothing_is_known() -> None:
    assert main_thread(f"{DUMP}\n...\n", caller=CALLER) == ()
    assert caller_of(f"{DUMP}\n...\n", CALLER) == ""


def test_a_real_dump_is_read() -> None:
    """Of one thread: earlier tests of this process may have left more than faulthandler writes."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=False)
        file.seek(0)
        places = main_thread(file.read())
    assert (places[0].file, places[0].function) == (__file__, "test_a_real_dump_is_read")


@pytest.mark.parametrize(
    ("file", "users", "of_collectives"),
    [
        ("/home/me/train.py", True, False),
        ("/usr/lib/python3.11/threading.py", False, False),
        ("<frozen importlib._bootstrap>", False, False),
        ("/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", False, True),
    ],
)
def test_whose_a_frame_is(file: str, users: bool, of_collectives: bool) -> None:
    place = Place(file, 1, "f")
    assert (place.is_users, place.is_of_collectives) == (users, of_collectives)


def test_a_stack_reads_like_a_traceback() -> None:
    places = main_thread(DUMP, caller=CALLER, without=("/usr/",))
    assert stack_text(places).splitlines() == [
        "Stack (most recent call last):",
        '  File "/home/me/train.py", line 0, in main',
        '  File "/home/me/train.py", line 88, in step',
    ]
    assert stack_text(()) == ""


def test_ranks_that_stand_in_one_place_are_shown_together() -> None:
    there, here = (Place("a.py", 1, "f"),), (Place("a.py", 2, "f"),)
    stacks = [RankStack(rank=2, places=there), RankStack(rank=0, places=here), RankStack(rank=1, places=there)]
    assert [ranks for ranks, _ in alike(stacks)] == [(0,), (1, 2)]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([0, 2], "ranks 0,2"),
        ([0, 1], "ranks 0,1"),
        ([0, 1, 2, 5], "ranks 0-2,5"),
        ([5, 4, 3], "ranks 3-5"),
    ],
)
def test_ranks_in_words(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text


def test_a_file_is_named_short_and_as_people_know_it() -> None:
    place = Place(str(Path("/v/lib/python3.11/site-packages/torch/nn/linear.py")), 7, "forward")
    assert (place.short, place.shown) == ("linear.py:7", "torch/nn/linear.py:7")
