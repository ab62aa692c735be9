"""What was verified of links: it is told, survives JSON, and keeps gangs off pairs that are wrong or slow."""

from __future__ import annotations

from itertools import combinations

import pytest

from phalanx.core.topology.choice import choose
from phalanx.core.topology.codec import from_json, to_json, topology_hash
from phalanx.core.topology.figures import figures_of
from phalanx.core.topology.node import Gpu, NodeTopology
from phalanx.core.topology.outcome import Chosen
from phalanx.core.topology.presets import preset
from phalanx.core.topology.refusals import Cause, Refusal
from phalanx.core.topology.tables import build_tables
from phalanx.core.topology.verified import PairCheck, findings, pair_of, unverified, with_checks

FAST, SLOW = 40.0, 9.0


def checked(
    node: NodeTopology,
    *,
    wrong: tuple[tuple[int, int], ...] = (),
    slow: tuple[tuple[int, int], ...] = (),
    simulated: bool = False,
) -> NodeTopology:
    """Every pair tried, these with a fault."""
    checks = [
        PairCheck(
            gpus=pair_of(node.gpus[i].uuid, node.gpus[j].uuid),
            gbyte_s=SLOW if (i, j) in slow else FAST,
            copies=(i, j) not in wrong,
        )
        for i, j in combinations(range(len(node.gpus)), 2)
    ]
    return with_checks(node, checks, simulated=simulated, all_reduce_gbyte_s=123.0)


def best(node: NodeTopology, size: int, free: int = -1) -> tuple[int, ...]:
    tables = build_tables(node)
    chosen = choose(tables, free & tables.rules.everything, size)
    assert isinstance(chosen, Chosen)
    return tuple(sorted(chosen.ring))


def test_a_pair_that_copies_wrongly_is_in_no_set() -> None:
    node = preset("dgx1_v100")
    assert best(node, 2) == (0, 3)
    spoilt = checked(node, wrong=((0, 3),))
    for size in range(2, 8):
        assert not {0, 3} <= set(best(spoilt, size))
    whole = choose(build_tables(spoilt), 0xFF, 8)
    assert isinstance(whole, Refusal)
    assert whole.cause is Cause.WRONG_COPIES


def test_a_slow_pair_comes_last_but_may_be_had() -> None:
    node = preset("dgx_h100")
    assert best(node, 2) == (0, 1)
    limping = checked(node, slow=((0, 1),))
    assert not {0, 1} <= set(best(limping, 2))
    assert best(limping, 2, free=0b11) == (0, 1)
    assert figures_of(limping).link_mbyte_s(limping, 1, 0) < 0.3 * figures_of(node).link_mbyte_s(node, 1, 0)


def test_pairs_are_compared_with_those_that_are_connected_alike() -> None:
    node = preset("dgx1_v100")
    singles = tuple((i, j) for i, j in combinations(range(8), 2) if node.links[i][j].nvlinks == 1)
    assert not [link for row in checked(node, slow=singles).links for link in row if link.slowed is not None]


def test_two_like_pairs_tell_nothing_of_what_is_usual() -> None:
    node = preset("dgx_h100")
    uuids = [gpu.uuid for gpu in node.gpus]
    few = [
        PairCheck(gpus=pair_of(uuids[0], uuids[1]), gbyte_s=SLOW, copies=True),
        PairCheck(gpus=pair_of(uuids[0], uuids[2]), gbyte_s=FAST, copies=True),
    ]
    assert not list(findings(with_checks(node, few, simulated=False)))


def test_simulated_links_are_slow_only_where_the_hosts_noise_cannot_be_the_reason() -> None:
    node = preset("dgx_h100")
    assert list(findings(checked(node, slow=((0, 1),), simulated=False)))
    busy = with_checks(
        node,
        [
            PairCheck(gpus=pair_of(node.gpus[i].uuid, node.gpus[j].uuid), gbyte_s=1.0 if i else 0.4, copies=True)
            for i, j in combinations(range(8), 2)
        ],
        simulated=True,
    )
    assert not list(findings(busy))


def test_faults_are_told_with_the_pair_and_the_figure() -> None:
    told = list(findings(checked(preset("dgx_h100"), wrong=((2, 5),), slow=((0, 1),))))
    assert told == [
        "GPU 0 and GPU 1 copy at 9 GB/s, 23% of what pairs connected alike do: avoided",
        "copies between GPU 2 and GPU 5 come out wrong: no gang gets both",
    ]


def test_it_survives_json_and_can_be_taken_off() -> None:
    node = preset("dgx1_v100")
    spoilt = checked(node, wrong=((0, 3),), slow=((4, 7),))
    assert from_json(to_json(spoilt)) == spoilt
    assert spoilt.all_reduce_gbyte_s == 123.0
    assert unverified(spoilt) == node


def test_nodes_whose_links_are_in_order_look_alike_whatever_was_measured() -> None:
    node = preset("dgx_h100")
    assert topology_hash(checked(node)) == topology_hash(node)
    assert topology_hash(checked(node, wrong=((0, 1),))) != topology_hash(node)
    assert topology_hash(checked(node, slow=((0, 1),))) != topology_hash(node)


def test_a_node_whose_links_nobody_knows_gets_what_was_found() -> None:
    plain = NodeTopology(gpus=tuple(Gpu(uuid=f"g{at}", index=at) for at in range(4)))
    spoilt = checked(plain, wrong=((0, 1),))
    assert not {0, 1} <= set(best(spoilt, 2))


@pytest.mark.parametrize("strange", [("g0", "elsewhere"), ("x", "y")])
def test_pairs_of_other_gpus_are_left_out(strange: tuple[str, str]) -> None:
    plain = NodeTopology(gpus=(Gpu(uuid="g0", index=0), Gpu(uuid="g1", index=1)))
    check = PairCheck(gpus=strange, gbyte_s=1, copies=False)
    assert with_checks(plain, [check], simulated=False) == plain
