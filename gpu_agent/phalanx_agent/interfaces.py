"""Which network interface of this machine an address is reached by. Linux; asks the kernel, sends nothing."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915


def interface_towards(host: str, port: int) -> str:
    """Returns the name of the interface whose address this machine uses to reach ``host``; "" when unknown."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            local = str(probe.getsockname()[0])
    except OSError:
        return ""
    if family == socket.AF_INET6:
        return _interface_of_v6(local)
    return next(
        (name for _, name in socket.if_nameindex() if _v4_address(name) == local), "lo" if local[:4] == "127." else ""
    )


def _v4_address(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def _interface_of_v6(local: str) -> str:
    wanted = socket.inet_pton(socket.AF_INET6, local.partition("%")[0]).hex()
    for line in Path("/proc/net/if_inet6").read_text().splitlines():
        fields = line.split()
        if fields[0] == wanted:
            return fields[-1]
    return ""
