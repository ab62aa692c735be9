"""Nodes that show more than sixteen devices: one island where one is enough, whole ones before parts."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.topology.bitsets import mask_of
from phalanx.core.topology.islands import Islands, Spread, build_islands, choose_spread
from phalanx.core.topology.node import Gpu, Link, MigDevice, NodeTopology, Path
from phalanx.core.topology.refusals import Cause, Refusal
from phalanx.core.topology.rings import slowest
from tests.support.choice_answers import linked


def domain() -> NodeTopology:
    """A whole NVLink domain as one host: 72 GPUs, two to a processor."""
    gpus = tuple(Gpu(uuid=f"GPU-{at}", index=at, numa=(at // 2,), compute=100) for at in range(72))
    link = Link(nvlinks=18, switched=True)
    return NodeTopology(gpus=gpus, links=tuple(tuple(Link() if i == j else link for j in range(72)) for i in range(72)))


def split_gpus() -> NodeTopology:
    """Three GPUs split in seven, and one whole."""
    node = linked(4, {(j, i): 12 for j in range(4) for i in range(j)}, sockets=(2, 2), switches=(), compute=80)
    parts = [tuple(MigDevice(uuid=f"MIG-{gpu}-{at}", profile="1g.5gb") for at in range(7)) for gpu in range(3)]
    split = (replace(gpu, mig_enabled=True, mig=part) for gpu, part in zip(node.gpus, parts, strict=False))
    return replace(node, gpus=(*split, node.gpus[3]))


def boxes() -> NodeTopology:
    """Twenty GPUs without NVLink, in five boxes of four."""
    return linked(20, {}, sockets=(4, 4, 4, 4, 4), switches=(), compute=80)


def spread_of(answer: Spread | Refusal) -> Spread:
    assert isinstance(answer, Spread), answer
    return answer


def refused(answer: Spread | Refusal) -> Refusal:
    assert isinstance(answer, Refusal), answer
    return answer


def everything(islands: Islands) -> int:
    return (1 << len(islands.devices)) - 1


def test_a_whole_domain_is_cut_into_islands_of_eight_along_its_processors() -> None:
    islands = build_islands(domain())
    assert islands.members == tuple(tuple(range(at, at + 8)) for at in range(0, 72, 8))


def test_the_parts_of_one_gpu_are_an_island() -> None:
    islands = build_islands(split_gpus())
    assert islands.members == (tuple(range(7)), tuple(range(7, 14)), tuple(range(14, 21)), (21,))


def test_a_gang_that_fits_one_island_gets_one_and_the_fullest_that_holds_it() -> None:
    islands = build_islands(domain())
    free = everything(islands) & ~mask_of((18, 19))
    spread = spread_of(choose_spread(islands, free, 4))
    assert spread.mask & mask_of(range(16, 24)) == spread.mask
    assert (spread.ring_gbyte_s, spread.why[:19]) == (721.8, "within one island: ")
    one = spread_of(choose_spread(islands, free, 1))
    assert (one.uuids, one.ring_gbyte_s) == (("GPU-16",), 0.0)


def test_a_larger_gang_gets_whole_islands_and_the_rest_where_it_leaves_least() -> None:
    islands = build_islands(domain())
    free = everything(islands) & ~mask_of((0, 1, 2, 3, 9))
    spread = spread_of(choose_spread(islands, free, 20))
    assert spread.mask == mask_of((4, 5, 6, 7, *range(16, 32)))
    assert spread.why == "no island has 20 free; taken from 3, whole ones first"
    assert len(spread.ring) == len(set(spread.uuids)) == 20


def test_required_devices_decide_the_islands() -> None:
    islands = build_islands(boxes())
    assert spread_of(choose_spread(islands, everything(islands), 2, required=1 << 9)).mask == mask_of((8, 9))
    both = spread_of(choose_spread(islands, everything(islands), 4, required=mask_of((0, 19))))
    assert both.mask & mask_of((0, 19)) == mask_of((0, 19))
    assert both.mask & ~mask_of((*range(8), *range(16, 20))) == 0
    assert refused(choose_spread(islands, 0b1, 1, required=0b10)).cause is Cause.REQUIRED


def test_gangs_on_parts_of_gpus_are_refused_unless_allowed() -> None:
    islands = build_islands(split_gpus())
    assert spread_of(choose_spread(islands, mask_of(range(1, 21)), 1)).uuids == ("MIG-0-1",)
    assert refused(choose_spread(islands, everything(islands), 2)).cause is Cause.MIG
    allowed = spread_of(choose_spread(islands, everything(islands), 9, mig_gangs=True))
    assert allowed.mask.bit_count() == 9
    assert refused(choose_spread(islands, everything(islands), 23)).cause is Cause.NOT_ENOUGH


def test_a_pair_that_copies_wrongly_is_avoided_in_an_island_and_refused_across() -> None:
    node = domain()
    wrong = tuple(
        tuple(replace(link, copies=False) if (i, j) in ((0, 1), (0, 8)) else link for j, link in enumerate(row))
        for i, row in enumerate(node.links)
    )
    islands = build_islands(replace(node, links=wrong))
    assert spread_of(choose_spread(islands, mask_of(range(8)), 2)).mask == mask_of((2, 3))
    assert refused(choose_spread(islands, mask_of((0, 8)), 2)).cause is Cause.WRONG_COPIES
    assert refused(choose_spread(islands, mask_of((0, 1, 8)), 3)).cause is Cause.WRONG_COPIES
    assert refused(choose_spread(islands, mask_of((0, 1, 9)), 3)).cause is Cause.WRONG_COPIES


def test_only_the_sets_that_a_shared_nvswitch_offers_are_given_within_islands_and_across() -> None:
    node = domain()
    islands = build_islands(replace(node, partitions=(("GPU-0", "GPU-3"), tuple(f"GPU-{at}" for at in range(16)))))
    assert spread_of(choose_spread(islands, everything(islands), 2)).mask == mask_of((0, 3))
    assert spread_of(choose_spread(islands, everything(islands), 16)).mask == mask_of(range(16))
    assert refused(choose_spread(islands, everything(islands) ^ 1, 16)).cause is Cause.PARTITION
    assert refused(choose_spread(islands, everything(islands), 1)).cause is Cause.PARTITION


@given(st.integers(0, (1 << 20) - 1), st.integers(1, 20))
def test_any_request_is_answered_with_free_devices_or_refused_for_want_of_them(free: int, size: int) -> None:
    answer = choose_spread(BOXES, free, size)
    if size > free.bit_count():
        assert refused(answer).cause is Cause.NOT_ENOUGH
        return
    spread = spread_of(answer)
    assert not spread.mask & ~free
    assert spread.mask.bit_count() == size == len(spread.ring)
    assert spread.ring_gbyte_s * 1000 == slowest(BOXES.weights, spread.ring)


BOXES = build_islands(boxes())


def test_paths_between_boxes_count() -> None:
    assert BOXES.weights[0][1] > BOXES.weights[0][4] > 0
    assert {link.path for row in boxes().links for link in row} == {None, Path.NODE, Path.SYS}
