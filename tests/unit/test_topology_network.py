"""Reading ibstat, sysfs and lspci: the samples' answers, nodes of our own, and spoilt text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.importers.ibstat import read_ibstat
from phalanx.core.topology.importers.lspci import MAX_DEVICES, PciDevice, read_lspci
from phalanx.core.topology.importers.ports import MAX_PORTS
from phalanx.core.topology.importers.reading import cpu_list, guid, number, pci_address, whole
from phalanx.core.topology.importers.sysfs_infiniband import read_sysfs_infiniband
from phalanx.core.topology.node import LinkLayer, Nic
from tests.support.topologies import needs_samples, sample
from tests.support.topology_answers import answers_of

IBSTAT = """CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 2
\tNode GUID: 0x00000000000000a0
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tPort GUID: 0x00000000000000a1
\t\tLink layer: InfiniBand
\tPort 2:
\t\tState: Down
\t\tPhysical state: Polling
\t\tRate: 10
\t\tLink layer: InfiniBand
CA 'mlx5_bond_0'
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 200 (HDR)
\t\tLink layer: Ethernet
CA 'irdma0'
\tPort 1:
\t\tState: Initializing
\t\tRate: quick
\t\tLink layer: OmniPath
CA 'mlx5_9'
\tPort 1:
"""

SYSFS = """/sys/class/infiniband/mlx5_0/node_guid\t0000:0000:0000:00a0
/sys/class/infiniband/mlx5_0/device/numa_node\t1
/sys/class/infiniband/mlx5_0/ports/1/link_layer\tInfiniBand
/sys/class/infiniband/mlx5_0/ports/1/phys_state\t5: LinkUp
/sys/class/infiniband/mlx5_0/ports/1/rate\t400 Gb/sec (4X NDR)
/sys/class/infiniband/mlx5_0/ports/1/state\t4: ACTIVE
/sys/class/infiniband/mlx5_0/ports/1/lid\t7
/sys/class/infiniband/mlx5_3/device/numa_node\t-1
/sys/class/infiniband/mlx5_3/ports/1/state\t1: DOWN
/sys/class/infiniband/mlx5_3/ports/1/phys_state\t3: Disabled
/sys/class/infiniband/mlx5_3/ports/1/rate\t10 Gb/sec (4X SDR)
/sys/class/infiniband/rdmap16s27/ports/1/link_layer\tUnspecified
/sys/class/infiniband/rdmap16s27/ports/1/state\t4: ACTIVE
/sys/class/infiniband/rdmap16s27/ports/1/rate\t100 Gb/sec (4X EDR)
"""

LSPCI = """3b:00.0 3D controller [0302]: NVIDIA Corporation GA102GL [RTX A6000] [10de:2230] (rev a1)
\tSubsystem: NVIDIA Corporation Device [10de:1459]
0000:03:00.0 VGA compatible controller [0300]: ASPEED Technology, Inc. Family [1a03:2000] (rev 41)
10000:c1:00.0 Processing accelerators [1200]: Advanced Micro Devices, Inc. [AMD/ATI] Aqua [1002:74a1]
0005:00:00.0 Bridge [0680]: NVIDIA Corporation Device [10de:22a3] (rev a1)
0000:10:1b.0 Ethernet controller [0200]: Amazon.com, Inc. Elastic Fabric Adapter (EFA) [1d0f:efa1]
0000:18:00.0 Ethernet controller [0200]: Broadcom BCM57414 [14e4:16d7]
0000:19:00.0 Infiniband controller [0207]: Mellanox ConnectX-7 Virtual Function [15b3:101e]
0000:1a:00.0 Network controller [0280]: Intel Wireless [8086:2725]
"""


def nics_by_name(nics: tuple[Nic, ...]) -> dict[str, Nic]:
    return {nic.name: nic for nic in nics}


@needs_samples
def test_the_roce_port_of_the_sample_is_read() -> None:
    assert answers_of("cx7_roce_ibstat.md")["answers"].startswith(
        "1 device, 1 port, Active, 400 Gb/s = 50 GB/s, link layer Ethernet (RoCE)"
    )
    (nic,) = read_ibstat(sample("cx7_roce_ibstat.txt")).nics
    assert (nic.name, nic.up, nic.rate_gbit_s, nic.layer) == ("mlx5_0", True, 400, LinkLayer.ETHERNET)


@needs_samples
def test_the_nine_devices_of_the_sysfs_sample_are_read() -> None:
    answer = answers_of("h100_sysfs_infiniband.md")["answers"]
    assert answer.startswith("9 devices; mlx5_0,1,4,5,6,7,8,9 are InfiniBand, ACTIVE, LinkUp, 400 Gb/s (50 GB/s)")
    assert "mlx5_bond_0 is Ethernet at 200 Gb/s and is not a rail" in answer
    ports = read_sysfs_infiniband(sample("h100_sysfs_infiniband.txt"))
    *rails, bond = ports.nics
    assert [nic.name for nic in rails] == [f"mlx5_{at}" for at in (0, 1, 4, 5, 6, 7, 8, 9)]
    assert {(nic.layer, nic.rate_gbit_s, nic.up) for nic in rails} == {(LinkLayer.INFINIBAND, 400.0, True)}
    assert (bond.name, bond.layer, bond.rate_gbit_s, bond.rail) == ("mlx5_bond_0", LinkLayer.ETHERNET, 200, None)
    assert ports.notes == ()


@needs_samples
def test_the_devices_of_the_lspci_sample_are_told_apart_by_their_domain() -> None:
    answer = answers_of("azure_a100_lspci_nn.md")["answers"]
    assert answer.startswith("8 GPUs [0302] 10de:20b2 in domains 0001-0004 and 000b-000e; 6 NVSwitch bridges [0680]")
    assert answer.endswith("8 InfiniBand VFs [0207] 15b3:101c in domains 0101-0108; 1 Ethernet VF")
    devices = read_lspci(sample("azure_a100_lspci_nn.txt"))
    cards = [device for device in devices if device.is_gpu]
    domains = [*range(0x1, 0x5), *range(0xB, 0xF)]
    assert [device.pci for device in cards] == [f"{domain:04x}:00:00.0" for domain in domains]
    assert {(device.vendor, device.device) for device in cards} == {("10de", "20b2")}
    assert sum(device.is_nvswitch for device in devices) == 6
    layers = Counter(device.layer for device in devices if device.is_virtual_function)
    assert layers == {LinkLayer.INFINIBAND: 8, LinkLayer.ETHERNET: 1}
    infiniband = [device.pci for device in devices if device.layer is LinkLayer.INFINIBAND]
    assert infiniband == [f"01{at:02x}:00:00.0" for at in range(1, 9)]


def test_ports_of_ibstat_have_a_layer_a_rate_and_a_guid() -> None:
    nics = nics_by_name(read_ibstat(IBSTAT).nics)
    assert list(nics) == ["mlx5_0", "mlx5_0:2", "mlx5_bond_0", "irdma0", "mlx5_9"]
    first = nics["mlx5_0"]
    assert (first.layer, first.rate_gbit_s, first.up) == (LinkLayer.INFINIBAND, 400, True)
    assert first.guid == "00000000000000a1"
    assert (nics["mlx5_bond_0"].layer, nics["mlx5_bond_0"].rate_gbit_s) == (LinkLayer.ETHERNET, 200)


def test_a_port_that_is_down_has_no_rate() -> None:
    nics = nics_by_name(read_ibstat(IBSTAT).nics)
    assert [(nics[name].up, nics[name].rate_gbit_s) for name in ("mlx5_0:2", "irdma0")] == [(False, None)] * 2


def test_what_ibstat_does_not_say_is_unknown_and_noted() -> None:
    ports = read_ibstat(IBSTAT)
    silent = nics_by_name(ports.nics)["mlx5_9"]
    assert (silent.up, silent.rate_gbit_s, silent.layer, silent.guid) == (None, None, None, "")
    assert nics_by_name(ports.nics)["irdma0"].layer is LinkLayer.OTHER
    assert ports.notes == (
        "line 23: irdma0: rate 'quick': expected one such as 400 (Gb/s)",
        "line 28: mlx5_9 has no state: whether it is up is unknown",
    )


def test_ports_of_sysfs_have_a_numa_node_where_it_is_known() -> None:
    nics = nics_by_name(read_sysfs_infiniband(SYSFS).nics)
    first, down, elastic = nics["mlx5_0"], nics["mlx5_3"], nics["rdmap16s27"]
    assert (first.numa, first.guid, first.rate_gbit_s) == ((1,), "00000000000000a0", 400)
    assert (down.numa, down.up, down.rate_gbit_s) == (None, False, None)
    assert (elastic.layer, elastic.up, elastic.rate_gbit_s) == (LinkLayer.EFA, True, 100)


def test_lspci_tells_gpus_switches_and_ports_by_class_and_maker() -> None:
    devices = read_lspci(LSPCI)
    assert [device.pci for device in devices if device.is_gpu] == ["0000:3b:00.0", "10000:c1:00.0"]
    assert [device.pci for device in devices if device.is_nvswitch] == ["0005:00:00.0"]
    nics = [nic for device in devices if (nic := device.nic())]
    assert [nic.layer for nic in nics] == [
        LinkLayer.EFA,
        LinkLayer.ETHERNET,
        LinkLayer.INFINIBAND,
        LinkLayer.OTHER,
    ]
    assert devices[0] == PciDevice(
        pci="0000:3b:00.0",
        kind="0302",
        vendor="10de",
        device="2230",
        name="NVIDIA Corporation GA102GL [RTX A6000]",
    )


def many_ports(count: int) -> str:
    return "\n".join(f"CA 'mlx5_{at}'\nPort 1:" for at in range(count))


@pytest.mark.parametrize(
    ("read", "text", "line", "words"),
    [
        (read_ibstat, "\n\nibwarn: no device", 3, "no port: expected lines such as CA 'mlx5_0'"),
        (read_ibstat, "", 1, "no port"),
        (read_ibstat, "\nPort 1:\n", 2, "a port before any device"),
        (read_ibstat, "CA 'a'\nPort 1:\nPort 1:\n", 3, "port 1 of a is listed twice"),
        (read_ibstat, many_ports(MAX_PORTS + 1), 2 * MAX_PORTS + 2, "more than 1024 ports"),
        (read_ibstat, "x" * 70_000, 1, "at most 65536"),
        (read_sysfs_infiniband, "\n/sys/class/net/eth0/speed 100\n", 2, "no port: expected /sys/class/infiniband"),
        (
            read_sysfs_infiniband,
            "\n".join(f"/sys/class/infiniband/m{at}/ports/1/state 4: ACTIVE" for at in range(MAX_PORTS + 1)),
            MAX_PORTS + 1,
            "more than 1024 ports",
        ),
        (read_lspci, "3b:00.0 3D controller: NVIDIA Corporation GA102GL\n", 1, "from lspci -nn"),
        (read_lspci, LSPCI.splitlines()[0] + "\n" + f"{LSPCI}" * 1100, 9217, f"more than {MAX_DEVICES} devices"),
        (read_lspci, "\n" * (5 << 20), 0, "characters"),
    ],
)
def test_what_is_no_such_text_is_refused_with_the_line(
    read: Callable[[str], object], text: str, line: int, words: str
) -> None:
    with pytest.raises(UnreadableTopologyError) as refused:
        read(text)
    assert words in str(refused.value)
    assert refused.value.line == line


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("3b:00.1", "0000:3b:00.1"),
        ("10000:1:2", "10000:01:02.0"),
        (" 0001:00:00.0 ", "0001:00:00.0"),
        ("fffffff:ffff:ff", ""),
        ("0000:3b:00.8", ""),
        ("", ""),
    ],
)
def test_pci_addresses_are_written_in_one_way(written: str, address: str) -> None:
    assert pci_address(written) == address


@pytest.mark.parametrize(
    ("mask", "cpus"),
    [
        ("000000ff,ffff0000", "16-39"),
        ("5555", "0,2,4,6,8,10,12,14"),
        ("80000000,00000001", "0,63"),
        ("0", None),
        ("", None),
        ("xyz", None),
        ("123456789", None),
        (",".join(["1"] * 600), None),
    ],
)
def test_masks_of_cpus_become_lists(mask: str, cpus: str | None) -> None:
    assert cpu_list(mask) == cpus


def test_numbers_and_guids_that_are_none_are_unknown() -> None:
    assert [whole(text) for text in ("12", "-1", "1e3", "", None, "9" * 40, "٣")] == [
        12,
        -1,
        None,
        None,
        None,
        None,
        None,
    ]
    assert [number(text) for text in ("2.5", "x", None, "-1")] == [2.5, None, None, None]
    assert [guid(text) for text in ("0xa0", "0000:0000:0000:00A0", "0x0", "g")] == [f"{0xA0:016x}"] * 2 + ["", ""]


READERS: dict[Callable[[str], object], str] = {read_ibstat: IBSTAT, read_sysfs_infiniband: SYSFS, read_lspci: LSPCI}


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(READERS)), st.text(max_size=300))
def test_any_text_is_read_or_refused(read: Callable[[str], object], text: str) -> None:
    read_or_refused(read, text)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(READERS)), st.data())
def test_spoilt_text_is_read_or_refused(read: Callable[[str], object], data: st.DataObject) -> None:
    text = READERS[read]
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 20))
        text = text[:at] + data.draw(st.text(alphabet="':[]09af.\n\t é٣", max_size=6)) + text[at + length :]
    read_or_refused(read, text)


def read_or_refused(read: Callable[[str], object], text: str) -> None:
    with suppress(UnreadableTopologyError):
        read(text)
