"""Simulated fleets as gpuctl plans them: words to groups, names, a fabric, and the orders for the agents' side."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.cli.fabric_text import drawing
from phalanx.cli.fleet import fabric_of, is_fleets, orders, plan, summary
from phalanx.core.errors import InvalidSpecError
from phalanx.core.played import is_played
from phalanx.core.topology.presets import PRESETS, preset
from phalanx_agent.fleet.node import as_played
from phalanx_agent.fleet.orders import read_orders


@pytest.mark.parametrize(
    "words", [("64", "x", "aws_p5", "8", "x", "dgx_h100"), ("64xaws_p5", "8xdgx_h100"), ("64 X aws_p5, 8 × dgx_h100",)]
)
def test_machines_are_read_with_and_without_spaces(words: tuple[str, ...]) -> None:
    groups = plan(words, "played", preset)
    assert [(group.machine, len(group.node_ids)) for group in groups] == [("aws_p5", 64), ("dgx_h100", 8)]
    assert summary(groups) == "72 nodes, 576 GPUs: 64 x aws_p5, 8 x dgx_h100"


def test_node_names_go_on_where_the_same_machine_comes_twice() -> None:
    first, second = plan(("2 x pcie_l4", "1 x pcie_l4"), "sim", preset)
    assert (first.node_ids, second.node_ids) == (("sim-pcie_l4-1", "sim-pcie_l4-2"), ("sim-pcie_l4-3",))


def test_a_file_lends_the_nodes_its_name() -> None:
    (group,) = plan(("1 x ./my+topo.v2.txt",), "p", lambda _machine: preset("pcie_l4"))
    assert group.node_ids == ("p-my-topo-1",)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("2", "aws"), "'2 aws' is no number of machines: write it as"),
        (("2 x aws_p5 and more",), "'and more' is no number"),
        (("0 x aws_p5",), "0 x aws_p5: give at least one node"),
        (("900 x aws_p5 200 x aws_p5",), "1100 nodes are too many"),
        ((" ",), "no machines are named"),
    ],
)
def test_what_cannot_be_played_is_refused_with_the_words(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(InvalidSpecError, match=said):
        plan(words, "played", preset)


def test_the_fabric_has_rail_groups_of_eight_alike_nodes_in_one_pod() -> None:
    fabric = fabric_of(plan(("20 x aws_p5", "3 x hgx_a100"), "sim", preset), "sim", 8)
    sizes = [sum(node.domain == domain.id for node in fabric.nodes) for domain in fabric.domains]
    assert sizes == [0, 8, 8, 4, 3]
    assert {domain.parent for domain in fabric.domains} == {None, "sim-pod"}
    assert [domain.bandwidth_gbyte_s for domain in fabric.domains] == [None, 400, 400, 400, 200]
    assert fabric.nodes[0].rails == tuple(range(32))
    assert is_fleets(fabric, "sim")
    assert not is_fleets(fabric, "other")


def test_the_orders_survive_the_way_to_the_fleets_process() -> None:
    groups = plan(("2 x aws_p4d", "1 x dgx1_v100"), "sim", preset)
    tokens = {node_id: f"token of {node_id}" for group in groups for node_id in group.node_ids}
    line = orders(groups, tokens, address="a:1", ca="/c/ca.pem", folder="/c/fleet", call_ms=1500)
    assert "\n" not in line
    read = read_orders(line)
    assert (read.control, read.call_ms) == (("a:1",), 1500)
    assert (read.ca, read.folder) == (Path("/c/ca.pem"), Path("/c/fleet"))
    assert [(each.node_id, each.join_token) for each in read.machines] == list(tokens.items())
    assert [each.topology for each in read.machines] == [preset("aws_p4d"), preset("aws_p4d"), preset("dgx1_v100")]


@pytest.mark.parametrize("line", ["", "{}", "[]", '{"control": 1}', "null"])
def test_other_orders_are_refused(line: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_orders(line)


@pytest.mark.parametrize("name", PRESETS)
def test_every_gpu_of_a_played_machine_says_that_it_is(name: str) -> None:
    played = as_played(preset(name))
    assert all(is_played(gpu.model) for gpu in played.gpus)
    assert played.links == preset(name).links
    assert any("no code runs" in note for note in played.notes)


@pytest.mark.parametrize("prefix", ["a/b", "", "-x", "a b", "x" * 33])
def test_a_name_that_no_node_can_have_is_refused_before_anything_starts(prefix: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"--name .* cannot begin the name of a node"):
        plan(("1 x aws_p5",), prefix, preset)


def test_a_fleets_fabric_is_told_in_words() -> None:
    fabric = fabric_of(plan(("9 x aws_p5",), "sim", preset), "sim", 8)
    first, _, third, *_ = drawing(fabric)
    assert first == "fabric: 2 rail groups, 1 pod; 9 nodes"
    assert third.strip() == "rail group sim-rails-1: 400 GB/s a node"
