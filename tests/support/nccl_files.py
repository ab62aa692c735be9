"""Nodes of our own, as NCCL writes them into its topology files."""

from __future__ import annotations

from collections.abc import Iterable

SWITCHES = (("0000:05:00.0", 4), ("0000:06:00.0", 4), ("0000:07:00.0", 2))


def element(tag: str, *inside: str, **attributes: object) -> str:
    """Returns one element. "class_" is written class."""
    words = "".join(f' {name.rstrip("_")}="{value}"' for name, value in attributes.items())
    return f"<{tag}{words}>{''.join(inside)}</{tag}>" if inside else f"<{tag}{words}/>"


def system(*cpus: str) -> str:
    return element("system", *cpus, version=1)


def cpu(numa: object, *inside: str, **attributes: object) -> str:
    return element("cpu", *inside, **{"numaid": numa, "affinity": "0000ffff", "arch": "x86_64", **attributes})


def bridge(address: str, *inside: str) -> str:
    return element("pci", *inside, busid=address, class_="0x060400", link_speed="32.0 GT/s PCIe", link_width=16)


def gpu(address: str, dev: object, *links: str, speed: str = "32.0 GT/s PCIe", sm: int = 90, gdr: int = 1) -> str:
    chip = element("gpu", *links, dev=dev, sm=sm, rank=dev, gdr=gdr)
    return element("pci", chip, busid=address, class_="0x030200", link_speed=speed, link_width=0)


def port(address: str, name: str, class_: str = "0x020700", **attributes: object) -> str:
    return element("pci", element("nic", net(name, **attributes)), busid=address, class_=class_)


def net(name: str, **attributes: object) -> str:
    return element("net", **{"name": name, "dev": 0, "speed": 400000, "port": 1, "guid": "0x1", "gdr": 1, **attributes})


def nvlink(target: str, count: object, tclass: str = "0x030200") -> str:
    return element("nvlink", target=target, count=count, tclass=tclass)


def to_switches(switches: Iterable[tuple[str, int]] = SWITCHES) -> tuple[str, ...]:
    return tuple(nvlink(address, count, "0x068000") for address, count in switches)


def switched_node() -> str:
    """Four GPUs behind three NVSwitches, ten NVLinks each; a NIC beside each, numbered the other way."""
    pairs = [
        bridge(
            f"0000:{at}0:00.0",
            port(f"0000:{at}1:00.0", f"mlx5_{4 - at}"),
            gpu(f"0000:{at}2:00.0", at - 1, *to_switches()),
        )
        for at in range(1, 5)
    ]
    return system(cpu(0, *pairs[:2]), cpu(1, *pairs[2:], affinity="ffff0000"))


def bridged_node() -> str:
    """Four GPUs, NVLinks between 0 and 2 and between 1 and 3; a deep tree of bridges; the host's own Ethernet."""
    links = {
        0: nvlink("0000:32:00.0", 4),
        1: nvlink("0000:42:00.0", 4),
        2: nvlink("0000:12:00.0", 4),
        3: nvlink("0000:22:00.0", 4),
    }
    cards = [gpu(f"0000:{at + 1}2:00.0", at, links[at], sm=86, speed="16.0 GT/s PCIe") for at in range(4)]
    left = bridge(
        "0000:01:00.0",
        bridge("0000:10:00.0", cards[0]),
        bridge("0000:20:00.0", cards[1], port("0000:23:00.0", "mlx5_0")),
    )
    host = element("nic", net("eno1", speed=10000, guid="0x0", gdr=0), net("veth12ab", speed=10000, gdr=0))
    return system(cpu(0, left, host), cpu(1, cards[2], cards[3]))


def hint_file() -> str:
    """As a cloud gives it: PCI classes, made-up switches, no GPU and no NIC elements, not in order of address."""
    devices = {
        "0002:00:00.0": "0x030200",
        "0001:00:00.0": "0x030200",
        "0102:00:00.0": "0x020700",
        "0101:00:00.0": "0x020000",
    }
    inside = [element("pci", busid=address, class_=kind) for address, kind in devices.items()]
    return "<!-- made by hand -->" + system(
        cpu(3, bridge("ffff:ff:01.0", *inside)), cpu(1, element("pci", busid="0000:09:00.0"))
    )
