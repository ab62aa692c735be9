"""Which rank is the odd one: by comparing what ranks know of their collectives, and nobody where that does not tell."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from phalanx.core.collectives import Collective, RankState, at_fault, compare, describe, from_dict, stands, to_dict
from phalanx.core.stacks import Place

TRAIN = (Place("train.py", 88, "step"),)
IN_RECEIVE = (Place("/x/site-packages/torch/distributed/distributed_c10d.py", 9, "recv"), *TRAIN)


def ran(seq: int, *, size: int = 4, op: str = "all_reduce", group: str = "0") -> tuple[Collective, ...]:
    return (Collective(group=group, seq=seq, op=op, sizes=str(size), dtypes="float"),)


def waits(rank: int, seq: int = 5, *, size: int = 4, op: str = "all_reduce", group: str = "0") -> RankState:
    """A rank inside collective number ``seq``."""
    last = ran(seq, size=size, op=op, group=group)
    return RankState(rank=rank, answered=True, entered={group: seq}, completed={group: seq - 1}, last=last)


def works(rank: int, seq: int = 4) -> RankState:
    """A rank in user code, after ``seq`` collectives."""
    last = (replace(ran(seq)[0], done=True),)
    return RankState(rank=rank, answered=True, entered={"0": seq}, completed={"0": seq}, last=last, places=TRAIN)


def returned(rank: int, seq: int = 4, *, failed: bool = False) -> RankState:
    return replace(works(rank, seq), replied=True, failed=failed, places=())


def failed(rank: int, seq: int = 5) -> RankState:
    return returned(rank, seq, failed=True)


def dead(rank: int) -> RankState:
    return RankState(rank=rank, alive=False)


HOLDS_THE_INTERPRETER = RankState(rank=1, places=TRAIN)
SILENT = RankState(rank=1)
PAIR = {"1": [0, 1]}
THREE = {"1": [0, 1, 2]}


@pytest.mark.parametrize(
    ("states", "culprits"),
    [
        pytest.param([waits(0), works(1), waits(2)], (1,), id="one has not come"),
        pytest.param([waits(0), HOLDS_THE_INTERPRETER, waits(2)], (1,), id="one holds the interpreter"),
        pytest.param([waits(0), SILENT, waits(2)], (), id="one is not known"),
        pytest.param([waits(0), dead(1), waits(2)], (), id="one is dead"),
        pytest.param([waits(0), returned(1), waits(2)], (1,), id="one returned before it"),
        pytest.param([waits(0, 7), waits(1, 6), works(2, 5)], (2,), id="the first that is waited in counts"),
        pytest.param([returned(0, 5), returned(1, 4), waits(2, 5)], (1,), id="others needed it for nothing more"),
        pytest.param([waits(0), waits(1, op="broadcast"), waits(2)], (1,), id="one is in another operation"),
        pytest.param([waits(0), waits(1, size=9), waits(2)], (1,), id="one came with another size"),
        pytest.param([waits(0), waits(1, size=9)], (), id="two accuse each other"),
        pytest.param([waits(0), waits(1), waits(2, size=9), waits(3, size=9)], (), id="two sides are as large"),
        pytest.param(
            [waits(0, op="all_to_all"), waits(1, op="all_to_all", size=9), works(2)], (2,), id="uneven is fine"
        ),
        pytest.param([waits(0), waits(1), waits(2)], (), id="all wait in the same"),
        pytest.param([works(0), works(1)], (), id="all work"),
        pytest.param([returned(0), works(1), returned(2)], (1,), id="one has not returned"),
        pytest.param(
            [replace(works(0), places=IN_RECEIVE), works(1), returned(2)], (1,), id="one waits for a message of it"
        ),
        pytest.param(
            [replace(works(0), places=IN_RECEIVE), works(1), waits(2), waits(3)],
            (1,),
            id="who waits for a message is behind for that",
        ),
        pytest.param(
            [replace(waits(0, 2, group="1"), members=PAIR), works(1), works(2), works(3)], (1,), id="of a smaller group"
        ),
        pytest.param(
            [replace(waits(0, 2, group="1"), members={"1": [0, 1]}), works(1), waits(2), waits(3)],
            (1,),
            id="a member of a smaller group keeps the others waiting through another",
        ),
        pytest.param([waits(0, 2, group="1"), works(1), works(2)], (), id="a group whose members are not known"),
        pytest.param(
            [*(replace(waits(r, 4, group="1"), members=THREE) for r in (0, 2)), waits(1, 2), waits(3, 2)],
            (1,),
            id="one is in the next collective of another group already",
        ),
        pytest.param([replace(waits(0, 4, group="1"), members=PAIR), waits(1, 2), waits(2, 2)], (), id="one of two is"),
    ],
)
def test_who_keeps_a_gang_from_going_on(states: list[RankState], culprits: tuple[int, ...]) -> None:
    found = compare(states, world_size=len(states))
    assert found.culprits == culprits
    assert found.text == describe(states)


def test_collectives_that_were_completed_in_another_order_are_waited_for_by_nobody() -> None:
    done = (replace(ran(3)[0], done=True), replace(ran(4)[0], done=True))
    late = replace(works(1), completed={"0": 3}, last=done)
    assert late.waits_in("0") is None
    assert compare([waits(0), late], world_size=2).culprits == (1,)


def test_of_several_that_were_begun_at_once_the_first_is_waited_for() -> None:
    begun = replace(waits(0, 6), last=(*ran(5), *ran(6)))
    waiting = begun.waits_in("0")
    assert waiting is not None
    assert waiting.seq == 5


def test_nobody_is_named_while_a_rank_of_the_gang_is_missing_from_the_picture() -> None:
    assert compare([waits(0), works(1)], world_size=3).culprits == ()


def test_a_rank_that_a_signal_holds_is_the_odd_one_and_is_told_how_it_goes_on() -> None:
    found = compare([waits(0), RankState(rank=1, pid=77, stopped=True), waits(2)], world_size=3)
    assert found.culprits == (1,)
    assert found.text.endswith("rank 1 is stopped by a signal (kill -CONT 77 lets it go on)")


def test_who_failed_inside_a_collective_did_not_fail_after_it() -> None:
    inside = replace(waits(0), replied=True, failed=True)
    assert stands(inside) == "has failed in all_reduce #5 of 4 float"
    assert stands(replace(inside, last=())) == "has failed in collective #5"
    assert stands(failed(0)) == "has failed after all_reduce #5 of 4 float"
    assert stands(replace(waits(0), replied=True)) == "has returned after all_reduce #5 of 4 float"


def test_a_single_rank_that_does_not_go_on_is_its_own() -> None:
    assert compare([works(0)], world_size=1).culprits == (0,)


@pytest.mark.parametrize(
    ("states", "who_failed", "who_died", "culprits"),
    [
        pytest.param([failed(0), waits(1), waits(2)], [0], [], (0,), id="one alone raised"),
        pytest.param([failed(0), waits(1, size=9), waits(2)], [0], [], (1,), id="one came with another size"),
        pytest.param([failed(0), waits(1, size=9)], [0], [], (), id="two accuse each other"),
        pytest.param([dead(0), waits(1, size=9), waits(2), waits(3)], [], [0], (1,), id="it aborted its neighbour"),
        pytest.param([dead(0), waits(1, size=9), waits(2)], [], [0], (), id="the third one left no record"),
        pytest.param([dead(0), waits(1), waits(2)], [], [0], (0,), id="all others agree but the dead one"),
        pytest.param([dead(0), dead(1), waits(2), waits(3)], [], [0, 1], (), id="two died"),
        pytest.param([dead(0), waits(1)], [], [0], (), id="one of two died"),
        pytest.param(
            [dead(0), waits(1, op="all_to_all"), waits(2, op="all_to_all", size=9)], [], [0], (), id="sizes may differ"
        ),
        pytest.param([failed(0), failed(1), works(2), failed(3)], [0, 1, 3], [], (2,), id="three timed out on one"),
        pytest.param([failed(0), works(1)], [0], [], (), id="one of two timed out or was too early"),
        pytest.param([failed(0), works(1), works(2), works(3)], [0], [], (0,), id="one went on where nobody did"),
        pytest.param([failed(0, 4), waits(1), waits(2)], [0], [], (0,), id="one raised before it entered"),
        pytest.param([failed(0), failed(1)], [0, 1], [], (), id="all raised"),
        pytest.param([failed(0), failed(1), waits(2)], [0, 1], [], (), id="some raised, in the same collective"),
        pytest.param([failed(0), SILENT, waits(2)], [0], [], (), id="one is not known"),
        pytest.param([], [0], [], (), id="nothing is known"),
    ],
)
def test_who_made_ranks_fail_in_collectives(
    states: list[RankState], who_failed: list[int], who_died: list[int], culprits: tuple[int, ...]
) -> None:
    assert at_fault(states, failed=who_failed, dead=who_died).culprits == culprits


@pytest.mark.parametrize(
    ("states", "culprits"),
    [
        pytest.param([dead(0), waits(1)], (0,), id="the other waits in the same"),
        pytest.param([dead(0), works(1)], (0,), id="the other has not come yet"),
        pytest.param([dead(0), failed(1)], (0,), id="the other failed for it"),
        pytest.param([dead(0), returned(1)], (), id="the other returned without it"),
        pytest.param([dead(0), waits(1), waits(2, size=9), waits(3)], (2,), id="one came with another size"),
    ],
)
def test_a_crash_within_a_collective_is_a_ranks_own_unless_the_others_did_not_keep_in_step(
    states: list[RankState], culprits: tuple[int, ...]
) -> None:
    assert at_fault(states, failed=[], dead=(0,), crashed=(0,)).culprits == culprits


def test_one_that_has_returned_is_behind_what_its_only_other_rank_failed_in() -> None:
    assert at_fault([failed(0), returned(1)], failed=[0]).culprits == (1,)


def test_ranks_that_all_raised_in_one_collective_did_so_alike() -> None:
    assert at_fault([failed(0), failed(1)], failed=[1, 0]).alike
    assert not at_fault([failed(0), failed(1, 6)], failed=[1]).alike


@pytest.mark.parametrize(
    ("states", "text"),
    [
        ([waits(0, 41), works(1), waits(2, 41)], "ranks 0,2 wait in all_reduce #41 of 4 float, rank 1 is in user code"),
        ([waits(r) for r in (0, 1, 2, 5)], "ranks 0-2,5 wait in all_reduce #5 of 4 float"),
        ([returned(0, 3), failed(1, 3)], "rank 0 has returned after all_reduce #3 of 4 float, rank 1 has failed after"),
        ([RankState(rank=0, replied=True), RankState(rank=1, replied=True)], "ranks 0,1 have returned"),
        ([RankState(rank=0, replied=True, entered={"0": 3})], "rank 0 has returned after collective #3"),
        ([dead(0), SILENT], "rank 0 is dead, rank 1 does not answer"),
        ([replace(SILENT, rank=0), SILENT], "ranks 0,1 do not answer"),
        ([works(0)], "rank 0 is in user code at train.py:88"),
        ([replace(waits(0), last=())], "rank 0 waits in collective #5"),
    ],
)
def test_who_stands_where_in_words(states: list[RankState], text: str) -> None:
    assert describe(states).startswith(text)


@pytest.mark.parametrize("state", [waits(3), works(1), dead(0), replace(works(2), members={"1": [0, 2]})])
def test_a_state_survives_its_way_through_json(state: RankState) -> None:
    assert from_dict(json.loads(json.dumps(to_dict(state)))) == state


@pytest.mark.parametrize("value", [{}, {"rank": 0, "last": [], "places": [], "more": 1}, {"last": [{"x": 1}]}])
def test_what_is_no_state_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        from_dict(value)
