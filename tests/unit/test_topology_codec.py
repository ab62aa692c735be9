"""A topology as JSON and back, and the hash by which nodes that look alike share tables."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.topology.codec import FORMAT, READERS, from_json, to_json, topology_hash
from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.importers.topo_text import read_topo_text
from phalanx.core.topology.node import Gpu, Health, Link, LinkLayer, MigDevice, Nic, NicLink, NodeTopology, Path
from tests.support.topologies import PRINTED, cube_mesh, switched_node

WHOLE = st.integers(0, (1 << 63) - 1)
MAYBE_WHOLE = st.none() | WHOLE
FIGURE = st.none() | st.floats(0, 1e12)
MAYBE = st.none() | st.booleans()
LABELS = st.none() | st.lists(st.integers(0, 300), max_size=4).map(tuple)
TEXT = st.text(max_size=8)
LINKS = st.builds(Link, nvlinks=MAYBE_WHOLE, path=st.none() | st.sampled_from(Path), switched=MAYBE, copies=MAYBE)
NIC_LINKS = st.builds(NicLink, path=st.none() | st.sampled_from(Path), bridges=MAYBE_WHOLE, gpudirect=MAYBE)
MIG = st.builds(MigDevice, uuid=TEXT, profile=TEXT, gpu_instance=MAYBE_WHOLE)
GPUS = st.builds(
    Gpu, uuid=TEXT, index=WHOLE, model=TEXT, pci=TEXT, numa=LABELS, cpus=st.none() | TEXT, memory_bytes=MAYBE_WHOLE,
    memory_numa=MAYBE_WHOLE, compute=MAYBE_WHOLE, mig_enabled=MAYBE, mig=st.lists(MIG, max_size=2).map(tuple),
    nvlinks_active=MAYBE_WHOLE, nvlinks_total=MAYBE_WHOLE, nvlink_gbyte_s=FIGURE, module_id=MAYBE_WHOLE,
    health=st.sampled_from(Health), reason=TEXT,
)  # fmt: skip
NICS = st.builds(
    Nic, name=TEXT, interface=TEXT, pci=TEXT, numa=LABELS, layer=st.none() | st.sampled_from(LinkLayer),
    rate_gbit_s=FIGURE, up=MAYBE, virtual=MAYBE, bond=st.lists(TEXT, max_size=2).map(tuple),
    rail=MAYBE_WHOLE, guid=TEXT,
)  # fmt: skip


@st.composite
def nodes(draw: st.DrawFn) -> NodeTopology:
    gpus = draw(st.lists(GPUS, max_size=3, unique_by=lambda gpu: gpu.uuid))
    nics = draw(st.lists(NICS, max_size=2))
    rows = len(gpus)
    return NodeTopology(
        gpus=tuple(gpus),
        links=tuple(tuple(draw(LINKS) for _ in gpus) for _ in range(rows)) if draw(st.booleans()) else (),
        nics=tuple(nics),
        nic_links=tuple(tuple(draw(NIC_LINKS) for _ in nics) for _ in range(rows)) if draw(st.booleans()) else (),
        nvl_domain=draw(st.none() | TEXT),
        partitions=draw(st.lists(st.lists(TEXT, max_size=2).map(tuple), max_size=2).map(tuple)),
        pcie_gen=draw(MAYBE_WHOLE),
        socket_gbyte_s=draw(FIGURE),
        driver=draw(TEXT),
        cuda=draw(TEXT),
        sources=draw(st.lists(st.tuples(TEXT, TEXT), max_size=2).map(tuple)),
        notes=draw(st.lists(TEXT, max_size=2).map(tuple)),
    )


@given(nodes())
def test_any_node_survives_the_round_trip_and_keeps_its_hash(node: NodeTopology) -> None:
    back = from_json(to_json(node))
    assert back == node
    assert topology_hash(back) == topology_hash(node)


@pytest.mark.parametrize("name", PRINTED)
def test_nodes_that_were_read_survive_the_round_trip(name: str) -> None:
    node = read_topo_text(PRINTED[name]().text())
    assert from_json(to_json(node)) == node


@pytest.mark.parametrize("kind", [Gpu, Nic, Link, NicLink, MigDevice, NodeTopology])
def test_every_field_has_a_reader(kind: type[Any]) -> None:
    assert READERS[kind].keys() == {each.name for each in fields(kind)}


def test_what_is_unknown_is_left_out_or_null() -> None:
    assert json.loads(to_json(NodeTopology())) == {"format": FORMAT}
    text = json.dumps({"format": FORMAT, "gpus": [{"uuid": "GPU-1", "index": 0, "numa": None}]})
    assert from_json(text) == NodeTopology(gpus=(Gpu(uuid="GPU-1", index=0),))


def gpu(**more: object) -> dict[str, object]:
    return {"gpus": [{"uuid": "GPU-1", "index": 0}, {"uuid": "GPU-2", "index": 1, **more}]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gpu(index=-1), r"gpus\[1\].index: expected a whole number from 0, not -1"),
        (gpu(index=True), r"gpus\[1\].index: expected a whole number from 0, not True"),
        (gpu(index=1.5), r"gpus\[1\].index: expected a whole number"),
        (gpu(index=1 << 70), r"gpus\[1\].index: expected a whole number"),
        (gpu(index=None), r"gpus\[1\].index: expected a whole number from 0, not None"),
        (gpu(model=None), r"gpus\[1\].model: expected a text, not None"),
        (gpu(uuid="GPU-1"), "gpus: two have the same uuid"),
        (gpu(numa=[0, "1"]), r"gpus\[1\].numa\[1\]: expected a whole number from 0, not '1'"),
        (gpu(numa=0), r"gpus\[1\].numa: expected a list, not 0"),
        (gpu(mig=[{"uuid": "MIG-1"}]), r"gpus\[1\].mig\[0\].profile: missing"),
        (gpu(mig_enabled="yes"), r"gpus\[1\].mig_enabled: expected true or false, not 'yes'"),
        (gpu(health="ill"), r"gpus\[1\].health: expected one of ok, degraded, lost, not 'ill'"),
        (gpu(nvlink_gbyte_s=-1), r"gpus\[1\].nvlink_gbyte_s: expected a number from 0, not -1"),
        (gpu(nvlink_gbyte_s={}), r"gpus\[1\].nvlink_gbyte_s: expected a number from 0, not dict"),
        (gpu(colour="red"), r"gpus\[1\].colour: unknown field: expected one of uuid, index"),
        ({"gpus": [3]}, r"gpus\[0\]: expected an object, not 3"),
        ({"links": [[{"path": "QPI"}]]}, r"links\[0\]\[0\].path: expected one of PIX, PXB, PHB, NODE, SYS, not 'QPI'"),
        ({"links": [[{}]]}, "links: 1 rows for 0 GPUs"),
        ({**gpu(), "links": [[{}], [{}]]}, r"links\[0\]: 1 columns: expected 2"),
        ({**gpu(), "nic_links": [[{}], []]}, r"nic_links\[0\]: 1 columns: expected 0"),
        ({"sources": [["links"]]}, r"sources\[0\]: expected a fact and where it was read"),
        ({"format": "another"}, "expected an object with .format."),
    ],
)
def test_a_bad_field_is_named(data: dict[str, object], message: str) -> None:
    with pytest.raises(UnreadableTopologyError, match=message):
        from_json(json.dumps({"format": FORMAT, **data}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected JSON: Expecting value"),
        ("[]", "expected an object with"),
        ("{\n{", "line 2: expected JSON"),
        ("[" * 200_000, "expected JSON"),
        ("9" * 5000, "expected JSON: Exceeds the limit"),
        (f'{{"format": "{FORMAT}", "pcie_gen": NaN}}', "NaN is not a figure"),
        (f'{{"format": "{FORMAT}", "socket_gbyte_s": 1e999}}', "socket_gbyte_s: expected a number from 0, not inf"),
        (f'{{"format": "{FORMAT}", "driver": "1", "driver": "2"}}', "'driver' stands there twice"),
        (" " * (17 << 20), "characters: expected 16777216 at most"),
    ],
)
def test_what_is_no_topology_is_refused(text: str, message: str) -> None:
    with pytest.raises(UnreadableTopologyError, match=message):
        from_json(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(READERS[NodeTopology])), inner),
)


@given(st.text() | JSON.map(json.dumps) | JSON.map(lambda data: json.dumps({"format": FORMAT, "gpus": data})))
def test_whatever_the_text_only_our_error_is_raised(text: str) -> None:
    try:
        from_json(text)
    except UnreadableTopologyError:
        return


@given(st.data())
def test_damaged_json_raises_only_our_error(data: st.DataObject) -> None:
    text = to_json(read_topo_text(cube_mesh().text()))
    at, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 40))
    try:
        from_json(
            text[:at]
            + data.draw(st.text(max_size=4) | st.sampled_from(["{", "]", "null", '"', "1e9"]))
            + text[at + length :]
        )
    except UnreadableTopologyError:
        return


def renamed(node: NodeTopology) -> NodeTopology:
    return replace(
        node,
        gpus=tuple(
            replace(gpu, uuid=f"GPU-{at}", pci=f"0000:{at:02x}:00.0", cpus=None) for at, gpu in enumerate(node.gpus)
        ),
        nics=tuple(replace(nic, name=f"ib{at}", guid="1") for at, nic in enumerate(node.nics)),
        partitions=tuple(tuple(f"GPU-{node.position(uuid)}" for uuid in each) for each in node.partitions),
        nvl_domain="another.1",
        driver="600.1",
        cuda="13.9",
        sources=(("links", "nvml"),),
        notes=("a note",),
    )


@pytest.mark.parametrize("name", PRINTED)
def test_names_versions_and_notes_do_not_change_the_hash(name: str) -> None:
    node = replace(read_topo_text(PRINTED[name]().text()), partitions=(("index-0", "index-1"), ("index-2",)))
    assert topology_hash(renamed(node)) == topology_hash(node)
    assert topology_hash(replace(node, partitions=node.partitions[::-1])) == topology_hash(node)


BASE = read_topo_text(switched_node().text())


def with_first_gpu(**change: Any) -> NodeTopology:
    return replace(BASE, gpus=(replace(BASE.gpus[0], **change), *BASE.gpus[1:]))


@pytest.mark.parametrize(
    "node",
    [
        with_first_gpu(health=Health.LOST),
        with_first_gpu(numa=(1,)),
        with_first_gpu(mig_enabled=True),
        with_first_gpu(mig=(MigDevice(uuid="MIG-1", profile="1g.10gb"),)),
        with_first_gpu(nvlinks_active=17),
        replace(BASE, links=((Link(), Link(nvlinks=3), *BASE.links[0][2:]), *BASE.links[1:])),
        replace(BASE, nics=(replace(BASE.nics[0], up=False), *BASE.nics[1:])),
        replace(BASE, nic_links=((NicLink(path=Path.SYS), *BASE.nic_links[0][1:]), *BASE.nic_links[1:])),
        replace(BASE, partitions=(("index-0",),)),
        replace(BASE, pcie_gen=4),
        replace(BASE, socket_gbyte_s=22.0),
    ],
)
def test_what_a_choice_depends_on_changes_the_hash(node: NodeTopology) -> None:
    assert topology_hash(node) != topology_hash(BASE)


def test_the_hash_stays_the_same_from_one_version_to_the_next() -> None:
    assert topology_hash(NodeTopology()) == "8abccd0d72127a8dadb2f3b63cc49248"
    assert topology_hash(read_topo_text(cube_mesh().text())) == "95cff4951f14df68fdf2374833678611"
