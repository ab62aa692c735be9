"""Reading fabrics of Slurm and of clouds: the samples' answers, clusters of our own, and spoilt text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.fabric import Domain, Fabric
from phalanx.core.topology.importers.cloud import read_aws_topology, read_azure_topology, read_gcp_topology
from phalanx.core.topology.importers.hostlist import MAX_NAMES, expand
from phalanx.core.topology.importers.slurm import read_slurm_topology
from phalanx.core.topology.importers.tree_draft import MAX_DOMAINS, MAX_NODES, TreeDraft
from tests.support.fabrics import NVL72_BLOCKS, aws_answer, azure_machine, gcp_instance, members
from tests.support.topologies import needs_samples, sample
from tests.support.topology_answers import answers_of

SLURM_TREE = """# sw1=rack-a
SwitchName=sw1 Nodes=n[01-04,7]
switchname=sw2 nodes=n[11-12] \\
  LinkSpeed=100   # a comment
SwitchName=top Switches=sw[1-2]
"""


@needs_samples
def test_the_slurm_sample_has_three_levels() -> None:
    assert answers_of("slurm_tree_topology.md")["answers"] == (
        "3 levels: 1 core, 6 spines, 12 leaves, 8 nodes a leaf = 96 nodes; "
        "comments map the short switch names to the real ones"
    )
    fabric = read_slurm_topology(sample("slurm_tree_topology.conf"))
    assert fabric.levels == ("leaf", "spine", "core")
    assert Counter(domain.level for domain in fabric.domains) == {"leaf": 12, "spine": 6, "core": 1}
    assert {len(nodes) for nodes in members(fabric, "leaf").values()} == {8}
    assert len(fabric.nodes) == 96
    assert fabric.domain("switch.1.3").switches == ("leaf-2-1",)
    assert (fabric.common_level("srv1101", "srv1208"), fabric.common_level("srv1101", "srv2101")) == ("spine", "core")


@needs_samples
def test_our_nvl72_fabric_has_the_sizes_of_the_sample() -> None:
    assert answers_of("nvl72_fabric_model.yaml.md")["answers"].startswith(
        "2 spines x 2 leaves, each leaf one NVLink domain of 18 nodes: 72 nodes"
    )
    ranges = re.findall(r"node\[(\d+-\d+)\]", sample("nvl72_fabric_model.yaml.txt"))
    assert re.findall(r"tray\[(\d+-\d+)\]", NVL72_BLOCKS) == ranges


def test_slurm_switches_are_levels_by_what_lies_below() -> None:
    fabric = read_slurm_topology(SLURM_TREE)
    assert fabric.levels == ("leaf", "spine")
    assert members(fabric, "leaf") == {"sw1": ["n01", "n02", "n03", "n04", "n7"], "sw2": ["n11", "n12"]}
    assert fabric.domain("sw1").switches == ("rack-a",)
    assert fabric.common_level("n01", "n12") == "spine"


def test_slurm_blocks_that_lie_next_to_each_other_are_places_again() -> None:
    fabric = read_slurm_topology(NVL72_BLOCKS)
    assert fabric.levels == ("block", "2-blocks", "4-blocks")
    assert len(fabric.nodes) == 72
    others = ("tray1118", "tray1201", "tray2201")
    assert [fabric.common_level("tray1101", other) for other in others] == ["block", "2-blocks", "4-blocks"]


def test_slurm_blocks_without_sizes_are_apart() -> None:
    fabric = read_slurm_topology("BlockName=a Nodes=n1\nBlockName=b Nodes=n2\n")
    assert fabric.common_level("n1", "n2") is None


def test_what_slurm_says_twice_or_not_at_all_is_noted() -> None:
    fabric = read_slurm_topology(
        "SwitchName=a Nodes=n1,n1\nSwitchName=b Nodes=n1\nSwitchName=c Switches=a,gone\n"
        "SwitchName=d Switches=a,b\nBlockName=x Nodes=n1\nTopologyParam=Dragonfly\n\\"
    )
    assert fabric.notes == (
        "line 6: left out: expected SwitchName=, BlockName= or BlockSizes=",
        "1 blocks are left out: the switches say where nodes are",
        "line 3: gone has no line of its own: left out",
        "line 4: a lies in c already: that counts",
        "n1 is listed twice, in a and in b: the first counts",
    )


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "no switch and no block"),
        ("\n# empty\n", 2, "expected SwitchName=leaf1 Nodes=node[01-32]"),
        ("SwitchName=a Nodes=n1\n\nSwitchName=a Nodes=n2", 3, "a is there twice: line 1 has it too"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a", 1, "a lies in itself"),
        ("SwitchName= Nodes=n1", 1, "without a name"),
        ("BlockName=a Nodes=n1\nBlockSizes=18,x", 2, "BlockSizes=18,x: expected such as 18,36"),
        ("SwitchName=a Nodes=n[1-", 1, "expected a list such as node[001-032,040]"),
        ("SwitchName=a Nodes=n[3-1]", 1, "[3-1]: expected ranges such as 001-032,040"),
        ("SwitchName=a Nodes=n[0-999999999]", 1, f"more than {MAX_NAMES} names"),
        ("SwitchName=a Nodes=" + "[0-99]" * 5, 1, f"more than {MAX_NAMES} names"),
        ("SwitchName=a Nodes=" + "n[0-99999]," * 3, 1, f"more than {MAX_NAMES} names"),
        ("".join(f"SwitchName=s{at} Nodes=n{at}-[0-99999]\n" for at in range(5)), 4, "more than 400000 names"),
        ("".join(f"SwitchName=s{at} Switches=s{at + 1}\n" for at in range(9)), 1, "9 levels of switches: expected 8"),
    ],
)
def test_slurm_files_that_cannot_be_read_are_refused_with_the_line(text: str, line: int, words: str) -> None:
    with pytest.raises(UnreadableTopologyError) as refused:
        read_slurm_topology(text)
    assert words in str(refused.value)
    assert refused.value.line == line


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node[001-003,010]", ["node001", "node002", "node003", "node010"]),
        ("a,b[8-11],c", ["a", "b8", "b9", "b10", "b11", "c"]),
        ("r[1-2]n[1,3]x", ["r1n1x", "r1n3x", "r2n1x", "r2n3x"]),
        ("a,,b,", ["a", "b"]),
        ("", []),
    ],
)
def test_hostlists_are_expanded(text: str, names: list[str]) -> None:
    assert expand(text, line=1) == names


def test_aws_layers_count_from_the_closest() -> None:
    fabric = read_aws_topology(aws_answer())
    assert fabric.levels == ("leaf", "spine", "core", "core-2", "zone")
    assert [domain.id for domain in fabric.domains_of("i-1")] == ["nn-c", "nn-b", "nn-a", "zone:usw2-az2"]
    assert fabric.common_level("i-1", "i-2") == "spine"
    assert fabric.common_level("i-1", "i-3") == "zone"


def test_aws_instances_that_have_just_started_are_in_their_zone_and_no_nearer() -> None:
    fabric = read_aws_topology(aws_answer())
    assert [domain.id for domain in fabric.domains_of("i-4")] == ["zone:usw2-az2"]
    assert fabric.notes == (
        "i-4: no network nodes: expected once it runs for a while",
        "an instance has no name: left out",
        "the answer goes on (NextToken): the instances of its other pages are missing",
    )


def test_an_aws_capacity_block_is_an_nvlink_domain() -> None:
    fabric = read_aws_topology(aws_answer())
    assert {node.id: node.nvl_domain for node in fabric.nodes if node.nvl_domain} == {"i-3": "cb-1"}


def test_the_names_of_the_aws_api_are_read_like_those_of_its_command() -> None:
    instances = [{"instanceId": "i-1", "networkNodeSet": ["nn-a"], "zoneId": "z"}]
    assert read_aws_topology(json.dumps({"instanceSet": instances})).levels == ("leaf", "zone")


def test_an_aws_network_node_with_two_parents_is_noted() -> None:
    instances = [{"InstanceId": f"i-{at}", "NetworkNodes": [f"nn-{at}", "nn-leaf"]} for at in (1, 2)]
    fabric = read_aws_topology(json.dumps({"Instances": instances}))
    assert fabric.common_level("i-1", "i-2") == "leaf"
    assert fabric.notes == ("nn-leaf lies in nn-1 and in nn-2: the first counts",)


def test_gcp_places_are_host_subblock_block_and_cluster() -> None:
    instances = [
        gcp_instance("a", "c", "b1", "s1"),
        gcp_instance("b", "c", "b1", "s2"),
        gcp_instance("d", "c", "b2", "s3"),
    ]
    for answer in (
        instances,
        {"items": instances},
        {"items": {"zones/z-b": {"instances": instances}, "zones/z-c": {}}},
    ):
        fabric = read_gcp_topology(json.dumps(answer))
        assert fabric.levels == ("host", "subblock", "block", "cluster", "zone")
        assert (fabric.common_level("a", "b"), fabric.common_level("a", "d")) == ("block", "cluster")
        assert fabric.notes == ()


def test_a_gcp_subblock_of_a4x_machines_is_an_nvlink_domain() -> None:
    instances = [gcp_instance("a", "c", "b", "s", machine="a4x-highgpu-4g"), gcp_instance("b", "c", "b", "t")]
    assert [node.nvl_domain for node in read_gcp_topology(json.dumps(instances)).nodes] == ["s", None]


def test_gcp_instances_of_which_little_is_known_are_kept() -> None:
    older = {"name": "old", "resourceStatus": {"physicalHost": "/c/b/h"}}
    instances = [gcp_instance("new", None, None, None), older, {"name": "off"}, {"zone": "z"}]
    fabric = read_gcp_topology(json.dumps(instances))
    assert [domain.id for domain in fabric.domains_of("new")] == ["host:h-new", "zone:z-b"]
    assert [domain.id for domain in fabric.domains_of("old")] == ["host:h", "block:b", "cluster:c"]
    assert fabric.domains_of("off") == ()
    assert [note.partition(":")[0] for note in fabric.notes] == ["new", "off", "an instance has no name"]
    assert read_gcp_topology(json.dumps(gcp_instance("alone", "c", "b", "s"))).nodes[0].id == "alone"


def test_azure_fault_domains_count_where_a_group_has_several() -> None:
    machines = [azure_machine(f"vm{at}", "pg-1", str(at // 2)) for at in range(4)]
    fabric = read_azure_topology(json.dumps(machines))
    assert fabric.levels == ("fault-domain", "placement-group", "zone", "region")
    assert (fabric.common_level("vm0", "vm1"), fabric.common_level("vm0", "vm2")) == ("fault-domain", "placement-group")
    spread = [azure_machine(f"vm{at}", "pg-1", "0") for at in range(2)]
    assert read_azure_topology(json.dumps({"value": spread})).common_level("vm0", "vm1") == "placement-group"


def test_azure_machines_outside_a_placement_group_are_in_their_zone() -> None:
    machines = [azure_machine("a", "", ""), azure_machine("b", "", "", zone="", physicalZone="westus-az7")]
    fabric = read_azure_topology(json.dumps(machines))
    assert [domain.id for domain in fabric.domains_of("a")] == ["zone:westus-1", "region:westus"]
    assert [domain.id for domain in fabric.domains_of("b")] == ["zone:westus-az7", "region:westus"]
    assert fabric.notes[0] == "a: no placementGroupId: its InfiniBand network is unknown"
    assert [node.id for node in read_azure_topology(json.dumps(azure_machine("one", "pg", "3"))).nodes] == ["one"]


LEAF_IN_LEAF = json.dumps(
    {"Instances": [{"InstanceId": "".join(path), "NetworkNodes": path} for path in (["a", "b"], ["b", "c"])]}
)


@pytest.mark.parametrize(
    ("read", "text", "line", "words"),
    [
        (read_aws_topology, "{}", 1, "no instance: expected Instances with InstanceId and NetworkNodes"),
        (read_aws_topology, "\n\n{", 3, "expected JSON"),
        (read_aws_topology, "[" * 100_000, 0, "expected JSON"),
        (read_aws_topology, " " * (65 << 20), 0, "characters"),
        (read_gcp_topology, "3", 1, "no instance: expected instances with name"),
        (read_gcp_topology, '{"items": {"z": 3}}', 1, "no instance"),
        (read_aws_topology, LEAF_IN_LEAF, 0, "domain 'c' at level 'leaf' cannot lie in 'b' at level 'leaf'"),
        (read_azure_topology, '[{"compute": 3}]', 1, "no instance: expected compute with name"),
    ],
)
def test_what_is_no_such_answer_is_refused(read: Callable[[str], Fabric], text: str, line: int, words: str) -> None:
    with pytest.raises(UnreadableTopologyError) as refused:
        read(text)
    assert words in str(refused.value)
    assert refused.value.line == line


def test_fabrics_too_large_to_be_one_are_refused() -> None:
    with pytest.raises(UnreadableTopologyError, match=f"more than {MAX_NODES} nodes"):
        read_slurm_topology("SwitchName=a Nodes=a[0-149999]\nSwitchName=b Nodes=b[0-149999]")
    domains = {str(at): Domain(id=str(at), level="leaf") for at in range(MAX_DOMAINS)}
    with pytest.raises(UnreadableTopologyError, match=f"more than {MAX_DOMAINS} domains"):
        TreeDraft(("leaf",), domains).add_domain(Domain(id="last", level="leaf"))


def test_notes_of_a_fabric_are_not_without_end() -> None:
    instances = [{"InstanceId": f"i-{at}"} for at in range(60)]
    notes = read_aws_topology(json.dumps({"Instances": instances})).notes
    assert (len(notes), notes[-1]) == (41, "and 20 more")


READERS: dict[Callable[[str], Fabric], str] = {
    read_slurm_topology: SLURM_TREE + NVL72_BLOCKS,
    read_aws_topology: aws_answer(),
    read_gcp_topology: json.dumps([gcp_instance("a", "c", "b", "s"), gcp_instance("b", "c", "b", None)]),
    read_azure_topology: json.dumps([azure_machine("a", "g", "0"), azure_machine("b", "g", "1")]),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["Instances", "InstanceId", "NetworkNodes", "items", "name", "resourceStatus", "compute", "value"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(READERS)), st.text(max_size=300))
def test_any_text_is_read_or_refused(read: Callable[[str], Fabric], text: str) -> None:
    with suppress(UnreadableTopologyError):
        read(text)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([read_aws_topology, read_gcp_topology, read_azure_topology]), JSON)
def test_any_json_is_read_or_refused(read: Callable[[str], Fabric], document: Any) -> None:
    with suppress(UnreadableTopologyError):
        read(json.dumps(document))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(READERS)), st.data())
def test_spoilt_text_is_read_or_refused(read: Callable[[str], Fabric], data: st.DataObject) -> None:
    text = READERS[read]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 16))
        text = text[:at] + data.draw(st.text(alphabet='{}[]",:=-09aS\\#\n\té٣', max_size=5)) + text[at + length :]
    with suppress(UnreadableTopologyError):
        read(text)
