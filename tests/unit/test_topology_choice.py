"""Which GPUs a gang gets inside one node: reference answers, samples, ties, single GPUs, and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.core.topology.bitsets import mask_of
from phalanx.core.topology.choice import choose
from phalanx.core.topology.importers.topo_text import read_topo_text
from phalanx.core.topology.node import Gpu, Health, Link, MigDevice, NodeTopology
from phalanx.core.topology.outcome import Chosen
from phalanx.core.topology.refusals import Cause, Refusal
from phalanx.core.topology.tables import Tables, build_tables
from tests.support.choice_answers import (
    NODE_SAMPLES,
    ReferenceRow,
    choice_answers,
    dgx1_p100,
    dgx1_v100,
    dgx2,
    linked,
    members,
    read_sample,
    reference_node,
    reference_rows,
    rtx8000_x4,
)
from tests.support.topologies import SAMPLES, cube_mesh, grace_tray, needs_samples, pcie_node, switched_node

ROWS = reference_rows() if SAMPLES.is_dir() else []
BETTER_THAN_THE_REFERENCE = {1: "0 4"}
"""Among 0 2 4 5, go-gpuallocator takes 4 5 (one NVLink) since that splits all four GPUs best; 0 4 have two NVLinks, and
the best ring comes first here."""


def everything(tables: Tables) -> int:
    return (1 << len(tables.devices)) - 1


def named(tables: Tables, chosen: Chosen | Refusal) -> str:
    return tables.names(chosen.mask) if isinstance(chosen, Chosen) else "none"


def sequence(tables: Tables, sizes: tuple[int, ...]) -> list[str]:
    """What gangs get one after the other, without release."""
    free, given = everything(tables), list[str]()
    for size in sizes:
        chosen = choose(tables, free, size)
        given.append(named(tables, chosen))
        free &= ~chosen.mask if isinstance(chosen, Chosen) else free
    return given


def refused(chosen: Chosen | Refusal) -> Refusal:
    assert isinstance(chosen, Refusal), chosen
    assert chosen.reason
    return chosen


def chosen_of(chosen: Chosen | Refusal) -> Chosen:
    assert isinstance(chosen, Chosen), chosen
    assert chosen.why
    return chosen


@needs_samples
def test_all_reference_rows_are_there() -> None:
    assert [row.case for row in ROWS] == list(range(1, 26))
    assert {row.policy for row in ROWS} == {"best-effort", "best-effort sequence", "static", "static valid sets"}


@pytest.mark.parametrize("row", [row for row in ROWS if row.policy == "best-effort"], ids=lambda row: str(row.case))
def test_a_single_choice_is_the_reference_answer(row: ReferenceRow) -> None:
    tables = build_tables(reference_node(row.node))
    available = everything(tables) if row.available is None else row.available
    chosen = choose(tables, available, row.sizes[0], required=row.required)
    assert named(tables, chosen) == BETTER_THAN_THE_REFERENCE.get(row.case, row.expected)


@pytest.mark.parametrize("case", sorted(BETTER_THAN_THE_REFERENCE))
@needs_samples
def test_where_an_answer_differs_from_the_reference_its_ring_is_faster(case: int) -> None:
    row = ROWS[case - 1]
    tables = build_tables(reference_node(row.node))
    ours = tables.rings.bottleneck(members(BETTER_THAN_THE_REFERENCE[case]))
    assert ours > tables.rings.bottleneck(members(row.expected))


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.policy == "best-effort sequence"], ids=lambda row: str(row.case)
)
def test_a_sequence_of_choices_is_the_reference_answer(row: ReferenceRow) -> None:
    assert sequence(build_tables(reference_node(row.node)), row.sizes) == row.expected.split(" | ")


def test_a_node_is_used_up_in_the_sets_of_the_reference_without_its_file() -> None:
    volta, pascal, turing = (build_tables(node) for node in (dgx1_v100(), dgx1_p100(), rtx8000_x4()))
    assert sequence(volta, (2, 2, 2, 2, 1)) == ["0 3", "1 2", "4 7", "5 6", "none"]
    assert sequence(volta, (4, 4, 1)) == ["0 1 2 3", "4 5 6 7", "none"]
    assert sequence(volta, (8, 1)) == ["0 1 2 3 4 5 6 7", "none"]
    assert sequence(pascal, (2, 2, 2, 2, 1)) == ["0 2", "1 3", "4 6", "5 7", "none"]
    assert sequence(pascal, (4, 4, 1)) == ["0 1 2 3", "4 5 6 7", "none"]
    assert sequence(turing, (2, 2, 1)) == ["0 3", "1 2", "none"]
    assert sequence(turing, (4, 1)) == ["0 1 2 3", "none"]


def test_without_numa_nodes_only_the_leftover_quads_tell_two_equal_splits_into_pairs_apart() -> None:
    tables = build_tables(read_topo_text(cube_mesh().text()))
    assert tables.score[members("0 3")] == tables.score[members("0 4")]
    assert tables.leftover[everything(tables) ^ members("0 3")] > tables.leftover[everything(tables) ^ members("0 4")]
    assert sequence(tables, (2, 2, 2, 2)) == ["0 3", "1 2", "4 7", "5 6"]


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.policy == "static valid sets"], ids=lambda row: str(row.case)
)
def test_gangs_of_one_size_fill_a_node_with_the_valid_sets_of_the_reference(row: ReferenceRow) -> None:
    tables = build_tables(reference_node(row.node))
    size = row.sizes[0]
    valid = _valid_sets(row.expected, size)
    assert {members(name) for name in sequence(tables, (size,) * (len(tables.devices) // size))} == valid


def _valid_sets(expected: str, size: int) -> set[int]:
    if expected.startswith("aligned"):
        return {mask_of(range(at, at + size)) for at in range(0, 16, size)}
    return {_range_or_list(each) for each in expected.split(" or ")}


def _range_or_list(words: str) -> int:
    first, dash, last = words.partition("-")
    return mask_of(range(int(first), int(last) + 1)) if dash else members(words)


def valid_sets(tables: Tables) -> set[int]:
    """The sets of 1, 2, 4 and 8 that gangs of one size fill the node with: a static offer."""
    count = len(tables.devices)
    return {members(name) for size in (1, 2, 4, 8) for name in sequence(tables, (size,) * (count // size))}


@pytest.mark.parametrize("row", [row for row in ROWS if row.policy == "static"], ids=lambda row: str(row.case))
def test_a_static_offer_refuses_what_the_reference_refuses(row: ReferenceRow) -> None:
    tables = build_tables(reference_node(row.node))
    assert row.expected == "none"
    for size in row.sizes:
        refused(choose(tables, everything(tables), size, required=row.required, legal=valid_sets(tables)))


def test_sixteen_gpus_behind_one_switch_are_given_in_aligned_sets() -> None:
    tables = build_tables(dgx2())
    assert sequence(tables, (2,) * 9)[7:] == ["14 15", "none"]
    assert sequence(tables, (4, 4, 4, 4)) == ["0 1 2 3", "4 5 6 7", "8 9 10 11", "12 13 14 15"]
    assert sequence(tables, (8, 8)) == ["0 1 2 3 4 5 6 7", "8 9 10 11 12 13 14 15"]
    assert sequence(tables, (16,)) == [tables.names(everything(tables))]


@needs_samples
@pytest.mark.parametrize("name", NODE_SAMPLES)
def test_a_choice_on_the_empty_node_is_one_of_the_sample_s_best_sets(name: str) -> None:
    node, answers = read_sample(name), choice_answers(name)
    tables = build_tables(node, answers.figures(node))
    for answer in answers.best or []:
        chosen = chosen_of(choose(tables, everything(tables), answer.size))
        sets = answer.after_ties or answer.by_links
        assert chosen.score.ring_mbyte_s == answer.ring_mbyte_s
        assert sets.masks is None or chosen.mask in sets.masks
        assert chosen.mask == answer.canonical or _leaves_more(tables, chosen.mask, answer.canonical)


def _leaves_more(tables: Tables, mask: int, other: int) -> bool:
    return tables.leftover[everything(tables) ^ mask] > tables.leftover[everything(tables) ^ other]


@needs_samples
@pytest.mark.parametrize("name", NODE_SAMPLES)
def test_a_single_gpu_of_an_empty_node_is_one_whose_loss_costs_least(name: str) -> None:
    node, answers = read_sample(name), choice_answers(name)
    tables = build_tables(node, answers.figures(node))
    if len(node.gpus) > 0:
        chosen = chosen_of(choose(tables, everything(tables), 1))
        assert answers.single is None or chosen.mask in answers.single


def bridged(pairs: str, count: int) -> Tables:
    counts = {(int(pair[1]), int(pair[0])): 4 for pair in pairs.split()}
    return build_tables(linked(count, counts, sockets=(count,), switches=(), compute=86))


def test_a_single_gpu_is_taken_where_it_breaks_no_bridge() -> None:
    tables = bridged("01", 3)
    assert chosen_of(choose(tables, 0b111, 1)).why == "GPU 2 is in no complete pair; 0 is"
    assert named(tables, choose(tables, 0b011, 1)) == "0"


def test_a_single_gpu_is_taken_whose_partner_is_gone() -> None:
    assert named(build_tables(dgx1_v100()), choose(build_tables(dgx1_v100()), members("0 3 1"), 1)) == "1"
    tables = bridged("01 23", 4)
    assert named(tables, choose(tables, members("0 2 3"), 1)) == "0"
    assert named(tables, choose(tables, members("0 1 3"), 1)) == "3"


def test_a_single_gpu_is_taken_from_an_island_that_is_broken_already() -> None:
    counts = {(j, i): 2 for quad in (range(4), range(4, 8)) for j in quad for i in quad if i < j}
    tables = build_tables(linked(8, counts, sockets=(8,), switches=(), compute=80))
    chosen = chosen_of(choose(tables, everything(tables) ^ members("4 5"), 1))
    assert tables.names(chosen.mask) == "6"
    whole = chosen_of(choose(tables, everything(tables), 1))
    assert whole.why == "GPU 0 costs others as little as 1, which has the higher index"


def test_a_single_gpu_is_taken_where_the_rest_stays_worth_most() -> None:
    node = read_topo_text(pcie_node().text())
    tables = build_tables(node)
    assert named(tables, choose(tables, members("0 2 3"), 1)) == "0"
    six = build_tables(linked(6, {}, sockets=(4, 2), switches=("01", "23", "45")))
    chosen = chosen_of(choose(six, everything(six), 1))
    assert (six.names(chosen.mask), chosen.why) == (
        "4",
        "GPU 4 costs others as little as 5, which has the higher index",
    )
    assert chosen_of(choose(tables, members("2"), 1)).why == "GPU 2; no other one on the node fits"


def test_the_reason_for_a_single_gpu_is_what_others_keep() -> None:
    counts = {(j, i): 2 for quad in (range(4), range(4, 8)) for j in quad for i in quad if i < j}
    quads = build_tables(linked(8, counts, sockets=(8,), switches=(), compute=80))
    six = build_tables(linked(6, {}, sockets=(4, 2), switches=("01", "23", "45")))
    chain = build_tables(linked(6, {(1, 0): 2, (3, 2): 2, (4, 3): 2, (5, 0): 1}, sockets=(6,), switches=(), compute=80))
    corner = build_tables(linked(4, {}, sockets=(4,), switches=("01", "23", "02"), compute=80))
    assert single_of(quads, "0 1 2 3 4 5", "0 4") == (
        "GPU 4 is of an island that is not whole anyway; taking 0 would break one"
    )
    assert single_of(six, "0 1 2 3 4 5", "0 4") == "GPU 4 leaves better sets of 2, 4 and 8 to others than 0"
    assert single_of(chain, "0 2", "0 2") == "GPU 2 leaves better sets to others than 0 once all of them are free"
    assert single_of(corner, "0 1 2 3", "0 1") == "GPU 1 takes 60.0 GB/s of links away from others, 0 66.0 GB/s"


def single_of(tables: Tables, free: str, of: str) -> str:
    return chosen_of(choose(tables, members(free), 1, legal={members(at) for at in of.split()})).why


def test_among_equal_pairs_the_one_wins_whose_others_will_be_worth_most() -> None:
    counts = {(1, 0): 2, (3, 1): 2, (3, 2): 2, (2, 0): 1}
    tables = build_tables(linked(4, counts, sockets=(4,), switches=(), compute=70))
    chosen = chosen_of(choose(tables, members("1 2 3"), 2))
    assert tables.names(chosen.mask) == "2 3"
    assert chosen.why.endswith("; 1 3 is as good but would leave worse sets to others once all of them are free")


def test_the_ring_goes_where_the_links_are() -> None:
    counts = {(1, 0): 2, (3, 1): 2, (3, 2): 2, (2, 0): 1}
    tables = build_tables(linked(4, counts, sockets=(4,), switches=(), compute=70))
    chosen = chosen_of(choose(tables, 0b1111, 4))
    assert (chosen.ring, chosen.ring_gbyte_s) == ((0, 1, 3, 2), 20.0)
    assert chosen.uuids == ("GPU-0", "GPU-1", "GPU-3", "GPU-2")
    assert chosen.why == "ring 0-1-3-2 at 20.0 GB/s, its pairs 158.0 GB/s together; no other set on the node fits"


@pytest.mark.parametrize(
    ("free", "size", "reason"),
    [
        ("0 3 1", 2, "0 1 has a slower ring (20.0 GB/s)"),
        ("0 1 2 3", 3, "1 2 3 is as good but has higher indices"),
        ("0 2 1 3", 2, "1 2 is as good but has higher indices"),
        ("0 4 5 6", 2, "0 4 has links as fast but spans 2 NUMA nodes instead of 1"),
        ("0 1 2 3 4 6 7", 2, "6 7 is as good but would leave worse sets to others once all of them are free"),
    ],
)
def test_the_reason_says_how_the_runner_up_lost(free: str, size: int, reason: str) -> None:
    tables = build_tables(dgx1_v100())
    why = chosen_of(choose(tables, members(free), size)).why
    assert why.split("; ")[1] == reason


def test_the_reason_may_be_the_pairs_or_what_is_left_to_others() -> None:
    tables = build_tables(dgx1_v100())
    chosen = chosen_of(choose(tables, members("0 1 2 3"), 3, legal={members("0 2 3"), members("0 1 2")}))
    assert chosen.why.endswith("; 0 1 2 has as fast a ring but slower pairs (80.0 GB/s together)")
    six = build_tables(linked(6, {}, sockets=(4, 2), switches=("01", "23", "45")))
    left = chosen_of(choose(six, everything(six), 2))
    assert left.why.endswith("; 0 1 is as good but would leave worse sets of 2, 4 and 8 to others")


def test_equal_sets_nearer_on_pcie_win_and_the_reason_says_so() -> None:
    tables = build_tables(dgx1_p100())
    assert chosen_of(choose(tables, members("0 1 2"), 2)).why.endswith("; 0 1 is as good but is farther apart on PCIe")


def test_network_ports_decide_among_equal_links_and_lost_ones_do_not_count() -> None:
    node = read_topo_text(switched_node().text())
    far = tuple(
        tuple(replace(link, path=None) if gpu < 2 else link for link in row) for gpu, row in enumerate(node.nic_links)
    )
    tables = build_tables(replace(node, nic_links=far))
    chosen = chosen_of(choose(tables, members("0 1 2 3"), 2))
    assert (tables.names(chosen.mask), chosen.score.nic_closeness) == ("2 3", 8)
    second = chosen_of(choose(tables, members("0 2 4 5"), 3))
    assert second.why.endswith("; 0 2 4 has links as fast but is farther from the network ports")


def test_known_rails_decide_among_equally_near_ports() -> None:
    node = read_topo_text(switched_node().text())
    railed = replace(node, nics=tuple(replace(nic, rail=at // 2) for at, nic in enumerate(node.nics)))
    tables = build_tables(railed)
    chosen = chosen_of(choose(tables, members("0 1 2"), 2))
    assert (tables.names(chosen.mask), chosen.score.rails) == ("0 2", 2)
    assert chosen_of(choose(tables, members("0 1 4 5"), 3)).score.rails == 2
    railed_apart = chosen_of(choose(tables, members("0 2"), 2, legal={members("0 2")}))
    assert railed_apart.score.rails == 2
    assert chosen_of(choose(tables, members("0 1 2"), 2, legal={members("0 1"), members("0 2")})).why.endswith(
        "; 0 1 has links as fast but shares network ports (1 instead of 2 rails)"
    )


def test_the_leftover_keeps_the_gpus_of_one_numa_node_together() -> None:
    tables = build_tables(read_topo_text(switched_node().text()))
    assert named(tables, choose(tables, members("0 1 2 3 4 5"), 2)) == "4 5"
    assert named(tables, choose(tables, members("0 1 2 3 4 5 6"), 1)) == "4"


def test_unknown_numa_nodes_are_not_one_node() -> None:
    node = read_topo_text(grace_tray().text())
    unknown = replace(node, gpus=(*(replace(gpu, numa=None) for gpu in node.gpus[:2]), *node.gpus[2:]))
    tables = build_tables(unknown)
    assert named(tables, choose(tables, everything(tables), 2)) == "2 3"


def test_too_few_free_gpus_are_refused_with_both_numbers() -> None:
    tables = build_tables(dgx1_v100())
    answer = refused(choose(tables, members("0 1"), 3))
    assert (answer.cause, answer.reason) == (Cause.NOT_ENOUGH, "3 GPUs are asked for and 2 free")
    assert refused(choose(tables, 0, 1)).cause is Cause.NOT_ENOUGH
    assert refused(choose(build_tables(NodeTopology()), 0, 1)).cause is Cause.NOT_ENOUGH


@pytest.mark.parametrize("size", [0, -1])
def test_a_gang_of_nothing_is_refused(size: int) -> None:
    assert refused(choose(build_tables(rtx8000_x4()), 0b1111, size)).cause is Cause.SIZE


def test_required_gpus_must_be_free_and_no_more_than_asked_for() -> None:
    tables = build_tables(dgx1_v100())
    busy = refused(choose(tables, members("1 2 3 4"), 2, required=members("0 1")))
    assert (busy.cause, busy.reason) == (Cause.REQUIRED, "GPU 0 is required and not free")
    many = refused(choose(tables, everything(tables), 2, required=members("0 1 2")))
    assert (many.cause, many.reason) == (Cause.REQUIRED, "3 GPUs are required and 2 asked for")
    beyond = refused(choose(tables, 0b1_1111_1111, 2, required=1 << 8))
    assert beyond.reason == "there is no GPU 8 here; it is required"


def with_gpus(node: NodeTopology, **changed: Gpu) -> NodeTopology:
    return replace(node, gpus=tuple(changed.get(f"gpu{gpu.index}", gpu) for gpu in node.gpus))


def test_a_lost_gpu_is_never_chosen_and_the_rest_of_the_node_still_serves() -> None:
    node = dgx1_v100()
    tables = build_tables(with_gpus(node, gpu3=replace(node.gpus[3], health=Health.LOST, reason="XID 79")))
    assert named(tables, choose(tables, members("0 1 3"), 2)) == "0 1"
    answer = refused(choose(tables, members("0 1 3"), 3))
    assert answer.reason == "3 GPUs are asked for and 2 free; GPU 3 is lost (XID 79)"
    required = refused(choose(tables, members("0 3"), 2, required=members("3")))
    assert required.reason == "GPU 3 is lost (XID 79); it is required"


def split_node() -> NodeTopology:
    """Four GPUs of which the last is split in three."""
    node = linked(4, {(j, i): 12 for j in range(4) for i in range(j)}, sockets=(4,), switches=(), compute=80)
    parts = tuple(MigDevice(uuid=f"MIG-{at}", profile="2g.10gb") for at in range(3))
    return with_gpus(node, gpu3=replace(node.gpus[3], mig_enabled=True, mig=parts))


def test_a_gang_gets_no_mig_devices_unless_it_is_allowed_to() -> None:
    tables = build_tables(split_node())
    assert [device.name for device in tables.devices] == ["0", "1", "2", "3:2g.10gb#0", "3:2g.10gb#1", "3:2g.10gb#2"]
    assert named(tables, choose(tables, everything(tables), 3)) == "0 1 2"
    answer = refused(choose(tables, everything(tables), 4))
    assert answer.cause is Cause.MIG
    assert answer.reason.startswith("a gang of 4 would hold MIG devices (3 whole GPUs are free): they have no NVLink")
    assert chosen_of(choose(tables, everything(tables), 4, mig_gangs=True)).mask.bit_count() == 4
    assert refused(choose(tables, everything(tables), 2, required=1 << 3)).cause is Cause.MIG
    assert refused(choose(tables, everything(tables), 7)).cause is Cause.NOT_ENOUGH


def test_a_single_request_may_have_a_mig_device() -> None:
    tables = build_tables(split_node())
    chosen = chosen_of(choose(tables, everything(tables), 1))
    assert chosen.uuids == ("MIG-0",)
    assert chosen_of(choose(tables, members("0 1 5"), 1)).uuids == ("MIG-2",)


def test_a_gpu_in_mig_mode_without_devices_and_parts_of_a_lost_one_are_not_there() -> None:
    node = split_node()
    empty = build_tables(with_gpus(node, gpu0=replace(node.gpus[0], mig_enabled=True)))
    answer = refused(choose(empty, 0b1, 1))
    assert answer.reason == "1 GPUs are asked for and 0 free; GPU 0 is in MIG mode without any MIG device"
    lost = build_tables(with_gpus(node, gpu3=replace(node.gpus[3], health=Health.LOST)))
    assert refused(choose(lost, members("3 4 5"), 1)).cause is Cause.NOT_ENOUGH


def partitioned(*partitions: str) -> Tables:
    node = read_topo_text(switched_node().text())
    parts = tuple(tuple(node.gpus[int(at)].uuid for at in part.split()) for part in partitions)
    return build_tables(replace(node, partitions=parts))


def test_only_the_sets_that_a_shared_nvswitch_offers_are_given() -> None:
    tables = partitioned("0 2 4 6", "1 3 5 7", "0 2", "4 6", "1 3", "5 7", *"01234567", "0 1 2 3 4 5 6 7")
    assert named(tables, choose(tables, everything(tables), 2)) == "0 2"
    assert named(tables, choose(tables, everything(tables) ^ 1, 4)) == "1 3 5 7"
    assert named(tables, choose(tables, everything(tables) ^ 1, 1)) == "2"
    assert refused(choose(tables, everything(tables), 3)).reason == (
        "no set of 3 may be given: the partitions of this node do not offer it"
    )
    answer = refused(choose(tables, members("0 1 4 5"), 2))
    assert answer.cause is Cause.PARTITION
    assert answer.reason == "none of the sets of 2 that may be given is free as a whole: 0 2, 1 3, 4 6, 5 7"


def test_the_caller_may_narrow_the_sets_further() -> None:
    tables = build_tables(dgx1_v100())
    assert named(tables, choose(tables, everything(tables), 2, legal={members("5 7"), members("0 1")})) == "0 1"
    assert refused(choose(tables, everything(tables), 2, required=1, legal={members("5 7")})).cause is Cause.PARTITION
    assert named(tables, choose(tables, everything(tables), 2, required=1, legal={members("0 1")})) == "0 1"


def copying_wrongly(node: NodeTopology, one: int, other: int) -> NodeTopology:
    def link(i: int, j: int, old: Link) -> Link:
        return replace(old, copies=False) if (i, j) == (one, other) else old

    rows = enumerate(node.links)
    return replace(node, links=tuple(tuple(link(i, j, old) for j, old in enumerate(row)) for i, row in rows))


def test_a_pair_that_copies_wrongly_is_never_in_a_set() -> None:
    tables = build_tables(copying_wrongly(dgx1_v100(), 0, 3))
    assert named(tables, choose(tables, members("0 1 3"), 2)) == "0 1"
    answer = refused(choose(tables, members("0 1 3"), 3))
    assert answer.cause is Cause.WRONG_COPIES
    assert answer.reason == "every set of 3 free GPUs holds a pair whose copies came out wrong"
    assert refused(choose(tables, members("0 3"), 2, legal={members("0 3")})).cause is Cause.WRONG_COPIES
    assert named(tables, choose(tables, members("0 3"), 1)) == "0"


def test_tables_hold_no_more_than_sixteen_devices() -> None:
    with pytest.raises(ValueError, match="17 devices; tables hold at most 16"):
        build_tables(linked(17, {}, sockets=(17,), switches=()))
