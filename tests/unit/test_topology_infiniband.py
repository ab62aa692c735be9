"""Reading InfiniBand fabrics: the sample's answers, subnets of our own, and spoilt text."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.importers.ibnetdiscover import DeviceKind, rate_gbit_s, read_ibnetdiscover, read_subnet
from tests.support.fabrics import Subnet, members, rail_subnet
from tests.support.topologies import needs_samples, sample
from tests.support.topology_answers import answers_of

GB200 = "gb200_fabric_ibnetdiscover"


@needs_samples
def test_the_devices_of_the_infiniband_sample_are_counted() -> None:
    answer = answers_of(f"{GB200}.md")["answers"]
    subnet = read_subnet(sample(f"{GB200}.out"))
    fabric = read_ibnetdiscover(sample(f"{GB200}.out"))
    rates = Counter(port.rate for device in subnet.devices for port in device.ports)
    leaves = {name for domain in fabric.domains if domain.level == "rail-group" for name in domain.switches if name}
    switches, adapters = subnet.of_kind(DeviceKind.SWITCH), subnet.of_kind(DeviceKind.ADAPTER)
    assert answer == (
        f"{len(switches)} switches, {len(adapters)} channel adapters listed, {len(fabric.nodes)} hosts with a name; "
        f"{len(leaves)} switches carry hosts; link rates {dict(rates)}"
    )
    assert subnet.notes == ()


@needs_samples
def test_hosts_of_the_infiniband_sample_are_in_their_rail_groups() -> None:
    answers = answers_of(f"{GB200}.md")
    (listed,) = (text for key, text in answers.items() if key.startswith("rail groups"))
    expected: Counter[tuple[str, ...]] = Counter()
    for part in listed.split("; "):
        match = re.match(r"(\d+) (?:hosts )?on leaf-([\d.,]+\d)", part)
        assert match
        expected[tuple(f"leaf-{number}" for number in numbers(match[2]))] += int(match[1])
    expected["leaf-04", "leaf-05", "leaf-06", "leaf-07"] += expected.pop(("leaf-04", "leaf-05"))
    fabric = read_ibnetdiscover(sample(f"{GB200}.out"))
    groups = {domain.id: tuple(sorted(filter(None, domain.switches))) for domain in fabric.domains}
    assert {groups[group]: len(hosts) for group, hosts in members(fabric, "rail-group").items()} == expected
    assert answers["right grouping"].startswith("8 scalable units of at most 18 trays")
    assert len(expected) == 8
    assert max(expected.values()) == 18


def numbers(text: str) -> list[str]:
    """ "08..11" and "16,17,18,31" as two digits each."""
    first, dots, last = text.partition("..")
    return [f"{number:02}" for number in range(int(first), int(last) + 1)] if dots else text.split(",")


@needs_samples
def test_rails_that_hosts_of_the_infiniband_sample_lack_are_degraded() -> None:
    answers = answers_of(f"{GB200}.md")
    (listed,) = (text for key, text in answers.items() if key.startswith("hcas per named host"))
    fabric = read_ibnetdiscover(sample(f"{GB200}.out"))
    working = Counter(len(node.rails) for node in fabric.nodes)
    found = f"4 on {working[4]} hosts, 3 on {working[3]}, 2 on {working[2]}; "
    assert listed.startswith(found)
    assert all(len(node.rails) + len(node.degraded_rails) == 4 for node in fabric.nodes)
    lacking = {node.degraded_rails for node in fabric.nodes if node.degraded_rails}
    assert lacking == {(2,), (0, 1)}
    assert listed.endswith("69 HCA entries under leaves have no host name")
    assert fabric.notes == ("69 adapters have no host name: they are nobody's here",)


@needs_samples
def test_leaves_of_the_infiniband_sample_have_two_cables_to_each_spine() -> None:
    (listed,) = (text for key, text in answers_of(f"{GB200}.md").items() if key == "leaf to spine")
    assert listed == (
        "two 4xNDR links from each leaf to each spine seen from it (leaf-01 has 16 uplinks to 8 spines); "
        "31 leaves, 9 spines"
    )
    subnet = read_subnet(sample(f"{GB200}.out"))
    switches = {switch.guid: switch.description for switch in subnet.of_kind(DeviceKind.SWITCH)}
    leaves = [switch for switch in subnet.of_kind(DeviceKind.SWITCH) if "leaf" in switch.description]
    uplinks = {leaf.description: Counter(port.peer for port in leaf.ports if port.peer in switches) for leaf in leaves}
    assert sum(uplinks["MF0;leaf-01:MQM9701/U1"].values()) == 16
    assert Counter(count for peers in uplinks.values() for count in peers.values()).most_common(1)[0][0] == 2
    fabric = read_ibnetdiscover(sample(f"{GB200}.out"))
    (spine,) = (domain for domain in fabric.domains if domain.level == "spine")
    assert (len(leaves), len(spine.switches)) == (31, 9)


@needs_samples
def test_the_infiniband_sample_is_read_in_a_second() -> None:
    text = sample(f"{GB200}.out")
    began = process_time()
    read_ibnetdiscover(text)
    assert process_time() - began < 1


def test_a_rail_group_is_the_hosts_that_share_their_leaves() -> None:
    fabric = read_ibnetdiscover(rail_subnet((3, 2)).text())
    assert fabric.levels == ("rail-group", "spine")
    assert members(fabric, "rail-group") == {
        "rail-group:leaf-1": ["host-1", "host-2", "host-3"],
        "rail-group:leaf-5": ["host-4", "host-5"],
    }
    assert fabric.domain("rail-group:leaf-1").switches == ("leaf-1", "leaf-2", "leaf-3", "leaf-4")
    assert {(node.rails, node.degraded_rails) for node in fabric.nodes} == {((0, 1, 2, 3), ())}
    assert fabric.common_level("host-1", "host-4") == "spine"


def test_what_nodes_can_send_falls_where_links_are_oversubscribed() -> None:
    fabric = read_ibnetdiscover(rail_subnet((4, 2)).text())
    group = fabric.domain("rail-group:leaf-1")
    assert (group.bandwidth_gbyte_s, group.oversubscription) == (200, 2)
    assert fabric.domain("spine:spine-1").bandwidth_gbyte_s == 100
    assert fabric.domain("spine:spine-1").switches == ("spine-1", "spine-2")


def test_hosts_of_a_fat_tree_lie_in_one_leaf_and_have_no_rails() -> None:
    fabric = read_ibnetdiscover(rail_subnet((2, 2), rails=1).text())
    assert fabric.levels == ("leaf", "spine")
    assert members(fabric, "leaf") == {"leaf:leaf-1": ["host-1", "host-2"], "leaf:leaf-2": ["host-3", "host-4"]}
    assert {node.rails + node.degraded_rails for node in fabric.nodes} == {()}


def test_a_host_that_lacks_rails_stays_in_its_group() -> None:
    subnet = rail_subnet((3,))
    for at in (0, 1):
        subnet.cable(subnet.guid(f"leaf-{at + 1}"), subnet.adapter(f"late mlx5_{at}"))
    fabric = read_ibnetdiscover(subnet.text())
    node = fabric.node("late")
    assert node
    assert (node.domain, node.rails, node.degraded_rails) == ("rail-group:leaf-1", (0, 1), (2, 3))


def test_where_a_whole_group_lacks_a_rail_the_other_groups_tell() -> None:
    subnet = rail_subnet((3, 3))
    leaves = {number: subnet.switch(f"leaf-2{number}") for number in (0, 1, 5)}
    for number, leaf in leaves.items():
        subnet.cable(leaf, subnet.adapter(f"poor mlx5_{number}"))
    fabric = read_ibnetdiscover(subnet.text())
    node = fabric.node("poor")
    assert node
    assert (node.rails, node.degraded_rails) == ((0, 1, 3), (2,))
    assert fabric.domain("rail-group:leaf-20").switches == ("leaf-20", "leaf-21", "", "leaf-25")


def test_hosts_of_another_kind_are_not_degraded() -> None:
    subnet = rail_subnet((3, 3))
    for number in (0, 1):
        subnet.cable(subnet.switch(f"leaf-2{number}"), subnet.adapter(f"store mlx5_{number}"))
    node = read_ibnetdiscover(subnet.text()).node("store")
    assert node
    assert (node.rails, node.degraded_rails) == ((0, 1), ())


def test_a_cable_to_another_group_makes_no_new_group() -> None:
    subnet = rail_subnet((3, 3))
    for leaf, number in ((1, 0), (2, 1), (3, 4), (8, 5)):
        subnet.cable(subnet.guid(f"leaf-{leaf}"), subnet.adapter(f"crossed mlx5_{number}"))
    fabric = read_ibnetdiscover(subnet.text())
    node = fabric.node("crossed")
    assert node
    assert (node.domain, node.rails, node.degraded_rails) == ("rail-group:leaf-1", (0, 1, 2), (3,))


def test_leaves_whose_adapters_do_not_tell_the_rail_are_numbered_by_name() -> None:
    subnet = Subnet()
    leaves = [subnet.switch(f"leaf-{at}") for at in (10, 9)]
    for host in ("a", "b"):
        for leaf in leaves:
            subnet.cable(leaf, subnet.adapter(f"{host} ib0"))
    fabric = read_ibnetdiscover(subnet.text())
    (group,) = fabric.domains
    assert (group.id, group.switches, group.parent) == ("rail-group:leaf-9", ("leaf-9", "leaf-10"), None)
    assert {node.rails for node in fabric.nodes} == {(0, 1)}


def test_three_tiers_of_switches_are_leaf_spine_and_core() -> None:
    subnet = Subnet()
    core = subnet.switch("core-1")
    for pod in (1, 2):
        spine = subnet.switch(f"spine-{pod}")
        subnet.cable(spine, core, times=2)
        for at in (1, 2):
            leaf = subnet.switch(f"leaf-{pod}{at}")
            subnet.cable(leaf, spine, times=2)
            for host in (1, 2):
                subnet.cable(leaf, subnet.adapter(f"n{pod}{at}{host} mlx5_0"))
    fabric = read_ibnetdiscover(subnet.text())
    assert fabric.levels == ("leaf", "spine", "core")
    others = ("n112", "n121", "n211")
    assert [fabric.common_level("n111", other) for other in others] == ["leaf", "spine", "core"]
    assert [domain.bandwidth_gbyte_s for domain in fabric.domains_of("n111")] == [50, 50, 25]
    assert fabric.domain("spine:spine-1").oversubscription == 2


def test_hosts_that_no_spine_joins_are_not_near() -> None:
    subnet = Subnet()
    for at in (1, 2):
        subnet.cable(subnet.switch(f"leaf-{at}"), subnet.adapter(f"n{at} mlx5_0"))
    assert read_ibnetdiscover(subnet.text()).common_level("n1", "n2") is None


def test_adapters_without_a_name_are_not_one_host() -> None:
    subnet = rail_subnet((2,), rails=1)
    for described in ("MT4129 ConnectX7   Mellanox Technologies", "localhost mlx5_0", "localhost mlx5_0", ""):
        subnet.cable(subnet.guid("leaf-1"), subnet.adapter(described))
    fabric = read_ibnetdiscover(subnet.text())
    assert [node.id for node in fabric.nodes] == ["host-1", "host-2"]
    assert fabric.notes == ("4 adapters have no host name: they are nobody's here",)
    assert fabric.domain("leaf:leaf-1").oversubscription == 3


def test_switches_with_one_name_or_none_are_told_apart() -> None:
    subnet = Subnet()
    for described in ("MF0;twin:MQM9790/U1", "MF0;twin:MQM9790/U2", "Quantum Mellanox Technologies"):
        subnet.cable(subnet.switch("", described=described), subnet.adapter("n mlx5_0"))
    (group,) = read_ibnetdiscover(subnet.text()).domains
    assert sorted(group.switches) == ["Quantum Mellanox Technologies", "twin", "twin S-0000000000000002"]


def test_rates_that_are_not_shown_leave_figures_unknown() -> None:
    subnet = Subnet()
    spine, leaf = subnet.switch("spine-1"), subnet.switch("leaf-1")
    subnet.cable(leaf, spine, rate="")
    subnet.cable(leaf, subnet.adapter("n1 mlx5_0"), rate="4xNEW")
    fabric = read_ibnetdiscover(subnet.text())
    assert {(domain.bandwidth_gbyte_s, domain.oversubscription) for domain in fabric.domains} == {(None, None)}


def test_a_list_that_was_cut_off_gives_what_it_says() -> None:
    text = rail_subnet((2,)).text()
    cut = text[: text.index("Ca\t")]
    assert [node.id for node in read_ibnetdiscover(cut).nodes] == ["host-1", "host-2"]


def test_a_subnet_of_cables_without_sense_is_read_in_bounded_time() -> None:
    lines = [
        f'Switch 64 "S-{at:x}"'
        + "".join(f'\n[{port}] "H-{at}-{port}"[1] # "h{at // 2} mlx5_{at % 1_250}" 4xNDR' for port in (1, 2))
        for at in range(5_000)
    ]
    text = "\n".join(lines)[: 4 << 20]
    began = process_time()
    assert len(read_ibnetdiscover(text).nodes) == 2_500
    assert process_time() - began < 10


def test_switches_in_a_long_row_are_no_fabric() -> None:
    subnet = Subnet()
    row = [subnet.switch(f"s{at}") for at in range(3_000)]
    subnet.cable(row[0], subnet.adapter("n mlx5_0"))
    for one, other in pairwise(row):
        subnet.cable(one, other)
    with pytest.raises(UnreadableTopologyError, match="s2999 is 2999 switches from any host: expected 7"):
        read_ibnetdiscover(subnet.text())


def test_lines_of_a_subnet_that_make_no_sense_are_noted() -> None:
    subnet = read_subnet('Switch 4 "S-1"\n[1] nothing\n[2] "H-1"[1] # "a mlx5_0" 4xNDR\n')
    assert [port.number for device in subnet.devices for port in device.ports] == [2]
    assert subnet.notes == ('line 2: expected a port such as [1] "S-0002…"[3] # … 4xNDR, below its device',)
    many = read_subnet('Switch 4 "S-1"\n' + "[1] nothing\n" * 50).notes
    assert (len(many), many[-1]) == (21, "and 30 lines more")


@pytest.mark.parametrize(
    ("rate", "gbit_s"),
    [("4xNDR", 400), ("4xHDR", 200), ("2xHDR", 100), ("4xFDR10", 40), ("4xXDR", 800), ("4xNEW", None), ("", None)],
)
def test_rates_are_what_a_cable_carries_one_way(rate: str, gbit_s: float | None) -> None:
    assert rate_gbit_s(rate) == gbit_s


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 4))
def test_every_rail_subnet_is_read_as_it_was_built(groups: list[int], rails: int) -> None:
    fabric = read_ibnetdiscover(rail_subnet(groups, rails=rails).text())
    assert [len(hosts) for hosts in members(fabric, fabric.levels[0]).values()] == groups
    assert not any(node.degraded_rails for node in fabric.nodes)
    assert len(fabric.nodes) == sum(groups)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "no device"),
        ("\nibwarn: failed", 2, 'expected lines such as Switch 65 "S-0002…"'),
        ('Ca 1 "H-1" # "a mlx5_0"', 0, "no switch"),
        (" " * (65 << 20), 0, "characters"),
    ],
)
def test_what_is_no_such_list_is_refused(text: str, line: int, words: str) -> None:
    with pytest.raises(UnreadableTopologyError) as refused:
        read_ibnetdiscover(text)
    assert words in str(refused.value)
    assert refused.value.line == line


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(UnreadableTopologyError):
        read_ibnetdiscover(text)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_spoilt_text_is_read_or_refused(data: st.DataObject) -> None:
    text = rail_subnet((2, 1), rails=2).text()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 16))
        text = text[:at] + data.draw(st.text(alphabet='[]()"#-09aSHx\n\t é٣', max_size=5)) + text[at + length :]
    with suppress(UnreadableTopologyError):
        read_ibnetdiscover(text)
