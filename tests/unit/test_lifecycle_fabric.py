"""The cell's fabric as one durable fact: set, replaced, forgotten, bounded, and unknown to replicas before it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from phalanx.core.errors import InvalidSpecError, VersionError
from phalanx.core.topology.codec import nvl_domain_in, to_json
from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.fabric import Fabric, FabricNode
from phalanx.core.topology.fabric_codec import MOST_STORED_BYTES, fabric_to_json
from phalanx.core.topology.presets import PRESETS, preset
from phalanx_control.lifecycle.decide import decide
from phalanx_control.scheduler.cell_fabric import absent_nodes, known_fabric
from phalanx_control.state import commands as c
from phalanx_control.state.model import from_jsonable, to_jsonable
from phalanx_control.state.schemas import schema_of
from tests.support.builders import World, node_info
from tests.support.cells import looks_like, tree
from tests.support.invariants import check_history

TEXT = fabric_to_json(tree({"a": "n1 n2"}))


def test_it_is_one_event_and_the_same_again_is_none() -> None:
    world = World(node_info("n1"))
    events = world.do(c.SetFabric(fabric=TEXT))
    assert world.kinds(events) == ["FabricSet"]
    assert schema_of(events) == 3
    assert world.do(c.SetFabric(fabric=TEXT)) == ()
    assert world.kinds(world.do(c.SetFabric(fabric=""))) == ["FabricSet"]
    assert world.state.fabric == ""
    check_history(world.history, world.state)


def test_snapshots_of_cells_without_a_fabric_can_be_read_by_older_replicas() -> None:
    world = World(node_info("n1"))
    assert "fabric" not in to_jsonable(world.state)
    world.do(c.SetFabric(fabric=TEXT))
    assert from_jsonable(json.loads(json.dumps(to_jsonable(world.state)))).fabric == TEXT


def test_beside_an_older_replica_it_is_refused_and_told_why() -> None:
    world = World()
    with pytest.raises(VersionError, match="cannot read a fabric"):
        decide(world.state, c.SetFabric(fabric=TEXT), replace(world.now, schema=2))


def test_what_is_no_fabric_is_refused() -> None:
    with pytest.raises(UnreadableTopologyError):
        World().do(c.SetFabric(fabric="roses"))


def test_what_is_too_large_is_refused_with_both_sizes() -> None:
    large = fabric_to_json(Fabric(notes=("x" * MOST_STORED_BYTES,)))
    with pytest.raises(InvalidSpecError, match=f"takes {len(large)} bytes: a cell keeps {MOST_STORED_BYTES}"):
        World().do(c.SetFabric(fabric=large))


def test_ten_thousand_nodes_with_rails_and_nvlink_domains_are_within_bounds() -> None:
    nodes = tuple(
        FabricNode(
            id=f"gpu-node-{at:05}", domain=f"leaf-{at // 16}", nvl_domain=f"{at // 18:036}.1", rails=tuple(range(8))
        )
        for at in range(10_000)
    )
    leaves = tree({f"leaf-{at}": "" for at in range(625)})
    world = World()
    world.do(c.SetFabric(fabric=fabric_to_json(replace(leaves, nodes=nodes))))
    assert len(absent_nodes(world.state)) == 10_000


def test_nodes_that_have_not_joined_are_kept_and_those_it_does_not_name_are_added() -> None:
    world = World(node_info("n2"), looks_like(preset("hgx_h100"), "n10", nvl="x.1"))
    world.do(c.SetFabric(fabric=TEXT))
    assert absent_nodes(world.state) == ("n1",)
    known = known_fabric(world.state)
    assert [node.id for node in known.nodes] == ["n1", "n2", "n10"]
    assert known.nodes[2] == FabricNode(id="n10", nvl_domain="x.1", rails=tuple(range(8)))


def test_a_rail_of_the_fabric_without_a_working_port_is_degraded() -> None:
    look = preset("hgx_h100")
    down = replace(look, nics=tuple(replace(nic, up=nic.rail != 3) for nic in look.nics))
    world = World(looks_like(down, "n1"))
    fabric = tree({"a": "n1"})
    node = replace(fabric.nodes[0], rails=tuple(range(8)))
    world.do(c.SetFabric(fabric=fabric_to_json(replace(fabric, nodes=(node,)))))
    (known,) = known_fabric(world.state).nodes
    assert (known.rails, known.degraded_rails) == ((0, 1, 2, 4, 5, 6, 7), (3,))


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("nvl", [None, "a.1", 'q"uo\\te', "ü\n", '"nvl_domain": "z"'])
def test_the_nvlink_domain_is_found_without_reading_the_rest(name: str, nvl: str | None) -> None:
    look = preset(name)
    gpu = replace(look.gpus[0], reason='"nvl_domain": "no"')
    topology = replace(look, nvl_domain=nvl, gpus=(gpu, *look.gpus[1:]), notes=('"nvl_domain": "no"',))
    assert nvl_domain_in(to_json(topology)) == nvl


@pytest.mark.parametrize("text", ["", "{}", '"nvl_domain": 5', '"nvl_domain": "', '"nvl_domain": "\\x"'])
def test_a_text_that_is_no_topology_names_no_domain(text: str) -> None:
    assert nvl_domain_in(text) is None
