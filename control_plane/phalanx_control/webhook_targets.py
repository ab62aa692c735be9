"""Where a webhook may go. An address is looked up once, judged, and connected to: a name that means something else a
moment later changes nothing. Addresses of this machine and of private networks are refused, unless settings allow them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

from phalanx.core.webhooks import PORTS, receiver

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE = ipaddress.ip_network("::/96")


class ForbiddenTargetError(Exception):
    """A name leads to where webhooks must not go. The text is for users; ``address`` says what a name of the control
    plane's own network means, and is for its log alone."""

    def __init__(self, host: str, address: str) -> None:
        super().__init__(f"{host} leads to no public address (--allow-private-webhooks is not set)")
        self.host = host
        self.address = address


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
        return host if self.port == PORTS["https" if self.tls else "http"] else f"{host}:{self.port}"


class Lookups:
    """Looks names up, in threads of its own. A lookup may hang for longer than anybody waits for it: ``places`` says
    whose do. One name is looked up once at a time, however many ask, so that ``threads`` receivers never wait here.
    """

    def __init__(self, threads: int, resolve: Callable[[str, int], list[str]] | None = None) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="webhook-lookup")
        self._resolve = resolve or _resolve
        self._pending: dict[tuple[str, int], asyncio.Future[list[str]]] = {}

    def places(self) -> Counter[str]:
        """Returns for how many lookups of each receiver a thread is at work."""
        return Counter(receiver(host, port) for host, port in self._pending)

    async def addresses(self, host: str, port: int) -> list[str]:
        """Returns what the name means now. Raises OSError where it is not known. Cancelling it ends no lookup."""
        key = (host, port)
        if key not in self._pending:
            loop = asyncio.get_running_loop()
            self._pending[key] = loop.run_in_executor(self._threads, self._resolve, host, port)
            self._pending[key].add_done_callback(lambda done: self._end(key, done))
        pending = self._pending[key]
        await asyncio.wait({pending})
        return pending.result()

    def _end(self, key: tuple[str, int], done: asyncio.Future[list[str]]) -> None:
        del self._pending[key]
        if not done.cancelled():
            done.exception()  # Whoever asked may have gone: nobody else would take it.


def _resolve(host: str, port: int) -> list[str]:
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


async def find(url: str, lookups: Lookups, *, allow_private: bool) -> Target:
    """Returns where ``url``, which was checked, leads now. Raises ForbiddenTargetError, OSError where the name is not
    known."""
    parts = urlsplit(url)
    host, tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or PORTS[parts.scheme]
    addresses = await lookups.addresses(host, port)
    if not allow_private:
        refuse_private(host, addresses)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(host=host, address=addresses[0], port=port, path=path, tls=tls)


def refuse_private(host: str, addresses: Sequence[str]) -> None:
    """Raises ForbiddenTargetError where any of a name's addresses is not one of the public network."""
    for address in addresses:
        if not is_public(address):
            raise ForbiddenTargetError(host, address)


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
