"""Machines that many people know, as topologies: for simulated nodes, for trying placements, and for tests.

Written from public facts: link counts and paths as `nvidia-smi topo -m` shows them on these machines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.node import Gpu, Link, LinkLayer, Nic, NicLink, NodeTopology, Path

_GB = 10**9
_DGX1_NV2 = frozenset({(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)})
_DGX1_NV1 = frozenset({(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)})
_NO_LINK = Link()
_PORT_NAMES = {LinkLayer.EFA: "rdmap", LinkLayer.ETHERNET: "eth"}


def preset(name: str) -> NodeTopology:
    """Returns a machine by name. Raises UnreadableTopologyError naming those that there are."""
    make = PRESETS.get(name)
    if make is None:
        raise UnreadableTopologyError(f"no preset {name[:60]!r}", hint=f"one of: {', '.join(PRESETS)}")
    return make()


def _switched(
    model: str, *, compute: int, memory_gb: int, nvlinks: int, rate_gbit_s: float, pcie_gen: int
) -> NodeTopology:
    """Eight GPUs behind NVSwitches, each with an InfiniBand port of its own on the same PCIe switch; two sockets."""
    places = range(8)
    return NodeTopology(
        gpus=tuple(
            _gpu(at, model, compute=compute, memory_gb=memory_gb, numa=at // 4, nvlinks=nvlinks) for at in places
        ),
        links=_matrix(8, lambda _i, _j: Link(nvlinks=nvlinks, switched=True)),
        nics=tuple(_port(f"mlx5_{at}", rail=at, numa=at // 4, rate_gbit_s=rate_gbit_s) for at in places),
        nic_links=tuple(tuple(NicLink(_near(i, k, per_socket=4, own=i == k)) for k in places) for i in places),
        pcie_gen=pcie_gen,
        notes=("a preset: no such machine was looked at",),
    )


def _shared_ports(switched: NodeTopology, *, count: int, layer: LinkLayer, rate_gbit_s: float) -> NodeTopology:
    """The same machine with ``count`` ports instead, shared out evenly: more than one for each GPU, or fewer."""
    gpus = len(switched.gpus)
    homes = [at * gpus // count for at in range(count)]
    near = [range(home, home + max(1, gpus // count)) for home in homes]
    names = _PORT_NAMES[layer]
    ports = [
        replace(_port(f"{names}{at}", rail=at, numa=home // 4, rate_gbit_s=rate_gbit_s), layer=layer)
        for at, home in enumerate(homes)
    ]
    links = tuple(
        tuple(NicLink(_near(i, homes[k], per_socket=4, own=i in near[k])) for k in range(count)) for i in range(gpus)
    )
    return replace(switched, nics=tuple(ports), nic_links=links)


def _a100(memory_gb: int) -> NodeTopology:
    model = f"NVIDIA A100-SXM4-{memory_gb}GB"
    return _switched(model, compute=80, memory_gb=memory_gb, nvlinks=12, rate_gbit_s=200, pcie_gen=4)


def _h100() -> NodeTopology:
    return _switched("NVIDIA H100 80GB HBM3", compute=90, memory_gb=80, nvlinks=18, rate_gbit_s=400, pcie_gen=5)


def _dgx1() -> NodeTopology:
    """Eight V100s in a hybrid cube mesh; four InfiniBand ports, one for each pair behind a PCIe switch."""

    def link(i: int, j: int) -> Link:
        pair = (min(i, j), max(i, j))
        nvlinks = 2 if pair in _DGX1_NV2 else 1 if pair in _DGX1_NV1 else 0
        return Link(nvlinks=nvlinks, path=_near(i, j, per_socket=4, own=i // 2 == j // 2), switched=False)

    return NodeTopology(
        gpus=tuple(
            _gpu(at, "Tesla V100-SXM2-32GB", compute=70, memory_gb=32, numa=at // 4, nvlinks=6) for at in range(8)
        ),
        links=_matrix(8, link),
        nics=tuple(_port(f"mlx5_{at}", rail=at, numa=at // 2, rate_gbit_s=100) for at in range(4)),
        nic_links=tuple(
            tuple(NicLink(_near(i, 2 * k, per_socket=4, own=i // 2 == k)) for k in range(4)) for i in range(8)
        ),
        pcie_gen=3,
        notes=("a preset: no such machine was looked at",),
    )


def _pcie(model: str, *, compute: int, memory_gb: int, count: int) -> NodeTopology:
    """GPUs on PCIe alone, two sockets, one Ethernet port."""
    half = count // 2
    return NodeTopology(
        gpus=tuple(
            _gpu(at, model, compute=compute, memory_gb=memory_gb, numa=at // half, nvlinks=0) for at in range(count)
        ),
        links=_matrix(count, lambda i, j: Link(nvlinks=0, path=Path.NODE if i // half == j // half else Path.SYS)),
        nics=(Nic(name="eth0", numa=(0,), layer=LinkLayer.ETHERNET, rate_gbit_s=25, up=True, virtual=False),),
        nic_links=tuple((NicLink(Path.NODE if at < half else Path.SYS),) for at in range(count)),
        pcie_gen=4,
        notes=("a preset: no such machine was looked at",),
    )


def _gpu(at: int, model: str, *, compute: int, memory_gb: int, numa: int, nvlinks: int) -> Gpu:
    return Gpu(
        uuid=f"index-{at}",
        index=at,
        model=model,
        numa=(numa,),
        memory_bytes=memory_gb * _GB,
        compute=compute,
        mig_enabled=False,
        nvlinks_active=nvlinks,
        nvlinks_total=nvlinks,
    )


def _port(name: str, *, rail: int, numa: int, rate_gbit_s: float) -> Nic:
    return Nic(
        name=name,
        numa=(numa,),
        layer=LinkLayer.INFINIBAND,
        rate_gbit_s=rate_gbit_s,
        up=True,
        virtual=False,
        rail=rail,
    )


def _near(i: int, j: int, *, per_socket: int, own: bool) -> Path:
    if own:
        return Path.PIX
    return Path.NODE if i // per_socket == j // per_socket else Path.SYS


def _matrix(count: int, link: Callable[[int, int], Link]) -> tuple[tuple[Link, ...], ...]:
    return tuple(tuple(_NO_LINK if i == j else link(i, j) for j in range(count)) for i in range(count))


def nearest_preset(name: str) -> str:
    """Returns the preset that a misspelled name may have meant, "" where none is near."""
    from difflib import get_close_matches  # only mistakes need it

    return next(iter(get_close_matches(name, PRESETS, n=1, cutoff=0.5)), "")


PRESETS: dict[str, Callable[[], NodeTopology]] = {
    "dgx1_v100": _dgx1,
    "dgx_h100": _h100,
    "hgx_a100": lambda: _a100(80),
    "hgx_h100": _h100,
    "hgx_b200": lambda: _switched("NVIDIA B200", compute=100, memory_gb=180, nvlinks=18, rate_gbit_s=400, pcie_gen=5),
    "aws_p4d": lambda: _shared_ports(_a100(40), count=4, layer=LinkLayer.EFA, rate_gbit_s=100),
    "aws_p5": lambda: _shared_ports(_h100(), count=32, layer=LinkLayer.EFA, rate_gbit_s=100),
    "azure_nd_h100": _h100,
    "gcp_a3": lambda: _shared_ports(_h100(), count=4, layer=LinkLayer.ETHERNET, rate_gbit_s=200),
    "pcie_l4": lambda: _pcie("NVIDIA L4", compute=89, memory_gb=24, count=8),
}
"""By name: what `--simulate` takes."""
