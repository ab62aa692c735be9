"""Where a webhook may go. An address is looked up once, judged, and connected to: a name that means something else a
moment later changes nothing. Addresses of this machine and of private networks are refused, unless settings allow them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE = ipaddress.ip_network("::/96")
_PORTS = {"http": 80, "https": 443}
_LOOKUPS = ThreadPoolExecutor(4, thread_name_prefix="webhook-lookup")
"""Lookups may hang; they must not take threads that others need."""


class ForbiddenTargetError(Exception):
    """The address leads to where webhooks must not go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``address``: what ``host`` was when it was looked up. ``path`` with its query."""

    host: str
    address: str
    port: int
    path: str
    tls: bool

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.tls else "http"] else f"{host}:{self.port}"


async def find(url: str, *, allow_private: bool) -> Target:
    """Returns where ``url``, which was checked, leads now. Raises ForbiddenTargetError, OSError where the name is not
    known."""
    parts = urlsplit(url)
    host, tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or _PORTS[parts.scheme]
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_LOOKUPS, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    addresses = [str(info[4][0]) for info in found]
    if not allow_private:
        refuse_private(host, addresses)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(host=host, address=addresses[0], port=port, path=path, tls=tls)


def refuse_private(host: str, addresses: Sequence[str]) -> None:
    """Raises ForbiddenTargetError where any of a name's addresses is not one of the public network."""
    for address in addresses:
        if not is_public(address):
            what = address if address == host else f"{host} is {address}"
            raise ForbiddenTargetError(f"{what}, which is no public address (--allow-private-webhooks is not set)")


def is_public(address: str) -> bool:
    """Says whether an address is one of the public network, also where it is an IPv4 address within an IPv6 one."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = _within(ip)
        if inner is not None:
            return is_public(str(inner))
        if ip.is_site_local:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


def _within(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if ip in _NAT64 or (ip in _COMPATIBLE and int(ip) > 1):
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if ip.teredo is not None:
        return ip.teredo[1]
    return ip.ipv4_mapped or ip.sixtofour
