"""The fabric: what it refuses, how near nodes are, the order of ranks, and its JSON."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.fabric import Domain, Fabric, FabricNode, InvalidFabricError
from phalanx.core.topology.fabric_codec import FORMAT, fabric_from_json, fabric_hash, fabric_to_json
from phalanx.core.topology.names import natural_key
from tests.support.fabrics import nvl72_fabric

LEVELS = ("leaf", "spine", "core", "zone")
FEWER = settings(max_examples=60, deadline=None)


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    """Trees of up to four levels, in which parents skip levels, places are unknown and NVLink domains cut across."""
    levels = LEVELS[: draw(st.integers(0, 4))]
    domains: list[Domain] = []
    for at in range(draw(st.integers(0, 8)) if levels else 0):
        height = draw(st.integers(0, len(levels) - 1))
        above = [domain.id for domain in domains if levels.index(domain.level) > height]
        parent = draw(st.none() | st.sampled_from(above)) if above else None
        figure = st.none() | st.floats(0.001, 1e6)
        domains.append(
            Domain(
                id=f"d{at}",
                level=levels[height],
                parent=parent,
                bandwidth_gbyte_s=draw(figure),
                oversubscription=draw(figure),
            )
        )
    names = [domain.id for domain in domains]
    return Fabric(
        levels=levels,
        domains=tuple(domains),
        nodes=tuple(draw(nodes(f"n{at}", names)) for at in range(draw(st.integers(0, 8)))),
        notes=tuple(draw(st.lists(st.text(max_size=5), max_size=2))),
    )


@st.composite
def nodes(draw: st.DrawFn, name: str, domains: list[str]) -> FabricNode:
    rails = draw(st.sets(st.integers(0, 7)))
    return FabricNode(
        id=name,
        domain=draw(st.none() | st.sampled_from(domains)) if domains else None,
        nvl_domain=draw(st.none() | st.sampled_from(["x.1", "x.2", "y.1"])),
        rails=tuple(sorted(rails)),
        degraded_rails=tuple(sorted(draw(st.sets(st.integers(0, 7))) - rails)),
    )


TWO_LEVELS: dict[str, Any] = {"levels": ("leaf", "spine")}


def leaf(name: str, **facts: Any) -> Domain:
    return Domain(id=name, level="leaf", **facts)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"domains": (leaf("a", parent="b"),)}, "domain 'a' lies in 'b', which is not a domain here"),
        ({"domains": (leaf("a"), leaf("a"))}, "domain 'a' is there twice"),
        ({"domains": (leaf("a", parent="a"),)}, "cannot lie in 'a' at level 'leaf'"),
        ({"domains": (leaf("a", parent="b"), leaf("b", parent="a"))}, "so that nothing lies in itself"),
        (
            {"domains": (leaf("a"), Domain(id="b", level="spine", parent="a"))},
            "domain 'b' at level 'spine' cannot lie in 'a' at level 'leaf': a parent is at a later one of leaf, spine",
        ),
        ({"domains": (Domain(id="a", level="rack"),)}, "domain 'a' is at level 'rack': levels are leaf, spine"),
        ({"domains": (leaf("a", parent="b"), Domain(id="b", level="rack"))}, "is at level 'rack'"),
        ({"domains": (leaf(""),)}, "a domain has no name"),
        ({"domains": (leaf("a", bandwidth_gbyte_s=0.0),)}, "bandwidth_gbyte_s 0.0: expected a number above 0"),
        ({"domains": (leaf("a", oversubscription=float("nan")),)}, "oversubscription nan"),
        ({"levels": ("leaf", "leaf")}, "level 'leaf' is there twice"),
        ({"nodes": (FabricNode(id="n"), FabricNode(id="n"))}, "node 'n' is there twice"),
        ({"nodes": (FabricNode(id="n", domain="a"),)}, "node 'n' lies in 'a', which is not a domain here"),
        ({"nodes": (FabricNode(id="n", rails=(0, 1), degraded_rails=(1,)),)}, "rails [1] both work and are degraded"),
        ({"nodes": (FabricNode(id="n", rails=(-1,)),)}, "expected 0 and more"),
    ],
)
def test_what_is_no_tree_is_refused(facts: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidFabricError) as refused:
        Fabric(**(TWO_LEVELS | facts))
    assert words in str(refused.value)


def test_a_fabric_without_levels_has_no_domains() -> None:
    assert Fabric().order(["b", "a"]) == ("a", "b")
    with pytest.raises(InvalidFabricError, match="levels are none"):
        Fabric(domains=(leaf("a"),))


def test_domains_of_a_node_are_given_smallest_first() -> None:
    fabric = nvl72_fabric()
    assert [domain.id for domain in fabric.domains_of("tray2103")] == ["leaf-2-1", "spine-2", "core"]
    assert fabric.domain_at("tray2103", "spine") == fabric.domain("spine-2")
    assert fabric.domain_at("tray2103", "hall") is None
    assert fabric.node("tray2103") == FabricNode(
        id="tray2103", domain="leaf-2-1", nvl_domain="nvl-2-1", rails=(0, 1, 2, 3)
    )


def test_nodes_meet_at_the_smallest_domain_that_holds_both() -> None:
    fabric = nvl72_fabric()
    assert [fabric.common_level("tray1101", other) for other in ("tray1118", "tray1201", "tray2201")] == [
        "leaf",
        "spine",
        "core",
    ]
    assert fabric.common_domain("tray1101", "tray1201") == fabric.domain("spine-1")


def test_distance_grows_from_the_node_over_nvlink_up_the_tree() -> None:
    fabric = nvl72_fabric()
    others = ("tray1101", "tray1102", "tray1201", "tray2201", "elsewhere")
    assert [fabric.distance("tray1101", other) for other in others] == [0, 1, 3, 4, 5]
    apart = replace(fabric, nodes=tuple(replace(node, nvl_domain=None) for node in fabric.nodes))
    assert apart.distance("tray1101", "tray1102") == 2


def test_two_nodes_whose_place_is_unknown_are_not_together() -> None:
    fabric = Fabric(levels=("leaf",), domains=(leaf("a"),), nodes=(FabricNode(id="x"), FabricNode(id="y")))
    assert fabric.common_level("x", "y") is None
    assert not fabric.share_nvlink("x", "y")
    assert fabric.distance("x", "y") == fabric.distance("x", "nobody") == 3


def test_ranks_go_down_the_tree_by_name_as_people_count() -> None:
    domains = (
        Domain(id="s2", level="spine"),
        Domain(id="s10", level="spine"),
        leaf("l1", parent="s10"),
        leaf("l2", parent="s2"),
        leaf("l10", parent="s2"),
    )
    places = {"n1": "l1", "n2": "l10", "n3": "l2", "n10": "l2", "n4": "s2", "n5": None}
    fabric = Fabric(
        levels=("leaf", "spine"),
        domains=domains,
        nodes=tuple(FabricNode(id=name, domain=place) for name, place in places.items()),
    )
    assert fabric.order(["n5", "n1", "n2", "n10", "n3", "n4", "n0"]) == ("n3", "n10", "n2", "n4", "n1", "n0", "n5")


def test_an_nvlink_domain_stays_together_where_it_cuts_across_leaves() -> None:
    domains = (Domain(id="s1", level="spine"), leaf("l1", parent="s1"), leaf("l2", parent="s1"))
    places = {"a": ("l1", "x"), "b": ("l2", "x"), "c": ("l1", "y"), "d": ("l2", "y")}
    fabric = Fabric(
        levels=("leaf", "spine"),
        domains=domains,
        nodes=tuple(FabricNode(id=name, domain=place, nvl_domain=nvl) for name, (place, nvl) in places.items()),
    )
    assert fabric.order("dcba") == ("a", "b", "c", "d")


def test_ranks_of_two_nvlink_domains_follow_each_other() -> None:
    fabric = nvl72_fabric()
    every = [node.id for node in fabric.nodes]
    assert fabric.order(reversed(every)) == tuple(every)


@FEWER
@given(fabrics(), st.randoms(use_true_random=False))
def test_the_order_is_a_permutation_that_does_not_depend_on_what_came_first(fabric: Fabric, dice: Any) -> None:
    asked = [*(node.id for node in fabric.nodes), "stranger"]
    shuffled = [*asked]
    dice.shuffle(shuffled)
    assert sorted(fabric.order(asked)) == sorted(asked)
    assert fabric.order(shuffled) == fabric.order(asked)


@FEWER
@given(fabrics())
def test_the_nodes_of_an_nvlink_domain_have_ranks_in_a_row(fabric: Fabric) -> None:
    ranks = {name: rank for rank, name in enumerate(fabric.order(node.id for node in fabric.nodes))}
    for nvl in {node.nvl_domain for node in fabric.nodes} - {None}:
        held = sorted(ranks[node.id] for node in fabric.nodes if node.nvl_domain == nvl)
        assert held == list(range(held[0], held[0] + len(held)))


@FEWER
@given(fabrics())
def test_without_nvlink_the_nodes_of_any_domain_have_ranks_in_a_row(fabric: Fabric) -> None:
    plain = replace(fabric, nodes=tuple(replace(node, nvl_domain=None) for node in fabric.nodes))
    ranks = {name: rank for rank, name in enumerate(plain.order(node.id for node in plain.nodes))}
    for domain in plain.domains:
        held = sorted(ranks[node.id] for node in plain.nodes if domain in plain.domains_of(node.id))
        assert held == list(range(held[0], held[0] + len(held))) if held else True


@FEWER
@given(fabrics())
def test_nearness_is_the_same_from_both_sides(fabric: Fabric) -> None:
    names = [*(node.id for node in fabric.nodes), "stranger"]
    for a in names:
        assert fabric.distance(a, a) == 0
        for b in names:
            assert fabric.common_domain(a, b) == fabric.common_domain(b, a)
            assert fabric.common_level(a, b) == fabric.common_level(b, a)
            assert fabric.distance(a, b) == fabric.distance(b, a)


@FEWER
@given(fabrics())
def test_a_fabric_survives_json(fabric: Fabric) -> None:
    text = fabric_to_json(fabric)
    again = fabric_from_json(text)
    assert again == fabric
    assert hash(again) == hash(fabric)
    assert fabric_to_json(again) == text


@FEWER
@given(fabrics(), st.randoms(use_true_random=False))
def test_the_hash_does_not_depend_on_order_or_notes(fabric: Fabric, dice: Any) -> None:
    domains, members = list(fabric.domains), list(fabric.nodes)
    dice.shuffle(domains)
    dice.shuffle(members)
    moved = replace(fabric, domains=tuple(domains), nodes=tuple(members), notes=("read elsewhere",))
    assert fabric_hash(moved) == fabric_hash(fabric)


def test_the_hash_tells_fabrics_apart() -> None:
    fabric = nvl72_fabric()
    first, *rest = fabric.nodes
    changed = [
        replace(fabric, nodes=tuple(rest)),
        replace(fabric, nodes=(replace(first, degraded_rails=(3,), rails=(0, 1, 2)), *rest)),
        replace(fabric, nodes=(replace(first, domain="leaf-2-1"), *rest)),
        replace(fabric, levels=("leaf", "spine", "core", "zone")),
    ]
    assert len({fabric_hash(each) for each in [fabric, *changed]}) == 5


def test_the_hash_is_the_same_in_every_process_and_after_a_round_trip() -> None:
    fabric = nvl72_fabric()
    assert fabric_hash(fabric_from_json(fabric_to_json(fabric))) == fabric_hash(fabric)
    assert fabric_hash(fabric) == "50e576f878641e7f8382590267fd27a7baf7959bd894c571dec512b77f0eed6e"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("[]", f'expected an object with "format": "{FORMAT}"'),
        ("{", "expected JSON"),
        ("[" * 100_000, "expected JSON"),
        ('{"format": "phalanx-topology-1"}', "expected an object"),
        ({"levels": "leaf"}, "fabric.levels: expected a list"),
        ({"levels": [1]}, "fabric.levels: expected a list of texts"),
        ({"nodes": [1]}, "fabric.nodes: expected a list of objects"),
        ({"nodes": [{}]}, "a node has no name"),
        ({"nodes": [{"id": 1}]}, "nodes[0].id: expected text"),
        ({"nodes": [{"id": "n", "rails": [True]}]}, "nodes[0].rails: expected a list of whole numbers"),
        ({"nodes": [{"id": "n", "domain": "d"}]}, "node 'n' lies in 'd'"),
        ({"nodes": [{"id": "n", "rack": "r"}]}, "nodes[0].rack: expected no such fact"),
        ({"racks": []}, "fabric.racks: expected no such fact"),
        ({"levels": ["l"], "domains": [{"id": "d", "level": "l", "bandwidth_gbyte_s": "fast"}]}, "expected a number"),
        ({"levels": ["l"], "domains": [{"id": "d", "level": "l", "oversubscription": 10**400}]}, "a machine can hold"),
        ({"levels": ["l"], "domains": [{"id": "d", "level": "l", "oversubscription": -1}]}, "above 0"),
    ],
)
def test_json_that_is_no_fabric_is_refused_with_the_fact(document: str | dict[str, object], words: str) -> None:
    text = document if isinstance(document, str) else json.dumps({"format": FORMAT, **document})
    with pytest.raises(UnreadableTopologyError) as refused:
        fabric_from_json(text)
    assert words in str(refused.value)


def test_json_errors_name_the_line() -> None:
    with pytest.raises(UnreadableTopologyError) as refused:
        fabric_from_json('{"format":\n  "phalanx-fabric-1",\n]')
    assert refused.value.line == 3


@FEWER
@given(fabrics(), st.data())
def test_spoilt_json_is_read_or_refused(fabric: Fabric, data: st.DataObject) -> None:
    text = fabric_to_json(fabric)
    at = data.draw(st.integers(0, len(text)))
    spoilt = (
        text[:at]
        + data.draw(st.text(alphabet='{}[]",:0-9ntruefals', max_size=4))
        + text[at + data.draw(st.integers(0, 6)) :]
    )
    with suppress(UnreadableTopologyError):
        fabric_from_json(spoilt)


@settings(deadline=None)
@given(st.lists(st.text(max_size=6), unique=True))
def test_names_are_ordered_in_one_way_only(names: list[str]) -> None:
    assert len({natural_key(name) for name in names}) == len(names)


def test_names_are_ordered_as_people_count() -> None:
    assert sorted(["leaf-10", "leaf-2", "leaf-02", "core", "leaf"], key=natural_key) == [
        "core",
        "leaf",
        "leaf-02",
        "leaf-2",
        "leaf-10",
    ]
