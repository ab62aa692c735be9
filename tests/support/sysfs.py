"""Builds what discovery reads of `/sys`: PCI devices below bridges, network interfaces, RDMA devices, bonds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FakeSysfs:
    """``root`` is what a machine calls `/sys`."""

    root: Path

    def pci(self, *way: str, numa: int = 0, cpus: str = "", root: str = "pci0000:00") -> Path:
        """Makes a device below a way of bridges, as ``("0000:00:01.0", "0000:01:00.0")``, and returns its folder."""
        folder = self.root.joinpath("devices", root, *way)
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, {"numa_node": str(numa), "local_cpulist": cpus})
        link(self.root / "bus" / "pci" / "devices" / way[-1], folder)
        return folder

    def interface(self, name: str, device: Path | None = None, **files: str) -> Path:
        """Makes a network interface, on a device or virtual."""
        home = device / "net" if device is not None else self.root / "devices" / "virtual" / "net"
        folder = home / name
        folder.mkdir(parents=True)
        write(folder, {"operstate": "up", "type": "1", "speed": "25000", **files})
        if device is not None:
            link(folder / "device", device)
        link(self.root / "class" / "net" / name, folder)
        return folder

    def bond(self, name: str, *slaves: str, speed: str = "200000") -> Path:
        folder = self.interface(name, operstate="up", speed=speed, uevent="DEVTYPE=bond")
        (folder / "bonding").mkdir()
        write(folder / "bonding", {"slaves": " ".join(slaves)})
        return folder

    def rdma(self, name: str, device: Path, port: int = 1, guid: str = "", **files: str) -> Path:
        """Makes one port of an RDMA device: InfiniBand, active, 400 Gb/s, unless ``files`` say otherwise."""
        folder = device / "infiniband" / name
        ports = folder / "ports" / str(port)
        ports.mkdir(parents=True, exist_ok=True)
        usual = {
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "400 Gb/sec (4X NDR)",
            "link_layer": "InfiniBand",
        }
        write(ports, {**usual, **files})
        write(folder, {"node_guid": guid})
        if not (folder / "device").exists():
            link(folder / "device", device)
        link(self.root / "class" / "infiniband" / name, folder)
        return ports

    def dgx(self) -> None:
        """Two sockets with four switches each, a GPU and an InfiniBand port behind every one; an Ethernet port."""
        for at in range(8):
            root, numa = ("pci0000:00", 0) if at < 4 else ("pci0000:80", 1)
            bus = 16 * (at + 1)
            port = f"0000:{'00' if at < 4 else '80'}:{at % 4 + 1:02x}.0"
            above = (port, f"0000:{bus:02x}:00.0")
            cpus = "0-31" if at < 4 else "32-63"
            gpu = (*above, f"0000:{bus + 1:02x}:00.0", f"0000:{bus + 2:02x}:00.0")
            self.pci(*gpu, numa=numa, cpus=cpus, root=root)
            card = self.pci(*above, f"0000:{bus + 1:02x}:01.0", f"0000:{bus + 3:02x}:00.0", numa=numa, root=root)
            self.rdma(f"mlx5_{at}", card, guid=f"0000:0000:0000:{at + 1:04x}")
            self.interface(f"ib{at}", card, type="32", speed="-1")
        management = self.pci("0000:00:1c.0", "0000:0a:00.0")
        self.interface("eno1", management, speed="1000")
        self.interface("lo", operstate="unknown")
        self.interface("veth12ab", speed="10000")
        docker = self.interface("docker0", operstate="down", uevent="DEVTYPE=bridge", speed="-1")
        (docker / "bridge").mkdir()


def dgx_gpu(at: int) -> str:
    """Returns the PCI address of a GPU of `FakeSysfs.dgx`."""
    return f"0000:{16 * (at + 1) + 2:02x}:00.0"


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        path.symlink_to(target)
