"""The control plane's settings: from flags, else from PHALANX_CONTROL_* variables. Reads nothing else.

Every flag has a variable of the same name (``--web-listen`` is PHALANX_CONTROL_WEB_LISTEN). Wrong values raise
InvalidSpecError that says which flag, which value, and what is legal.
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from phalanx.core.errors import InvalidSpecError
from phalanx.core.ids import new_raw_id

_PREFIX = "PHALANX_CONTROL_"
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("", "0", "false", "no", "off")
_MOST_STORE_REPLICAS = 8


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port; port 0 means any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one replica is told. ``advertise`` is the host that others reach it under; empty = the listen host."""

    store: str
    cell: str
    data_dir: Path
    blobs: str
    blobs_shared: bool
    listen: Address
    agents_listen: Address
    web_listen: Address
    bootstrap_token_file: Path | None
    join_token_file: Path | None
    ready_file: Path | None
    replica_id: str
    allow_volatile_store: bool
    allow_private_webhooks: bool
    store_replicas: int
    advertise: str
    price_book: Path | None

    @property
    def public_host(self) -> str:
        """The host in the addresses that are handed out."""
        if self.advertise:
            return self.advertise
        return socket.gethostname() if self.listen.host in ("0.0.0.0", "::") else self.listen.host  # noqa: S104


@dataclass(frozen=True, slots=True)
class _Flag:
    name: str
    default: str
    help: str

    @property
    def variable(self) -> str:
        return _PREFIX + self.name.upper().replace("-", "_")


_FLAGS = (
    _Flag("store", "", "unix:///path/to/socket or redis://host:port/db (required)"),
    _Flag("store-replicas", "0", "how many replicas of the store must have an entry before it counts as written"),
    _Flag("cell", "main", "name of this cell: the prefix of every key in the store"),
    _Flag("data-dir", "", "folder for the CA and the cell's secret (required)"),
    _Flag("blobs", "", "file:///folder for code, large arguments and results; default: DATA_DIR/blobs"),
    _Flag("listen", "127.0.0.1:0", "address for clients"),
    _Flag("agents-listen", "127.0.0.1:0", "address for agents"),
    _Flag("web-listen", "127.0.0.1:0", "address of the page"),
    _Flag("bootstrap-token-file", "", "file with the first admin token; written when absent"),
    _Flag("join-token-file", "", "file with a reusable join token for agents of this machine; written when absent"),
    _Flag("ready-file", "", "JSON file written when everything serves"),
    _Flag("replica-id", "", "name of this replica; default: host name and eight random characters"),
    _Flag("advertise", "", "host under which clients and agents reach this replica"),
    _Flag("price-book", "", "TOML file with prices; default: the built-in one"),
)
_SWITCHES = (
    _Flag("allow-volatile-store", "", "accept a store that does not write every entry to disk"),
    _Flag("allow-private-webhooks", "", "webhooks may go to this machine and to private networks"),
    _Flag("blobs-shared", "", "every replica of this cell reaches the same blob folder"),
)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Returns the settings. Raises InvalidSpecError on a wrong value; argparse ends the program on a wrong flag."""
    values = _read(argv, environ)
    for name in ("store", "data-dir"):
        if not values[name]:
            raise InvalidSpecError(f"--{name} is not set", hint=f"give --{name} or {_PREFIX}{name.upper()}")
    _check_store(values["store"])
    data_dir = Path(values["data-dir"]).absolute()
    return Settings(
        store=values["store"],
        cell=_cell(values["cell"]),
        data_dir=data_dir,
        blobs=values["blobs"] or f"file://{data_dir}/blobs",
        blobs_shared=_switch("blobs-shared", values["blobs-shared"]),
        listen=_address("listen", values["listen"]),
        agents_listen=_address("agents-listen", values["agents-listen"]),
        web_listen=_web_address(values["web-listen"]),
        bootstrap_token_file=_path(values["bootstrap-token-file"]),
        join_token_file=_path(values["join-token-file"]),
        ready_file=_path(values["ready-file"]),
        replica_id=values["replica-id"] or f"{socket.gethostname()}-{new_raw_id().hex()[:8]}",
        allow_private_webhooks=_switch("allow-private-webhooks", values["allow-private-webhooks"]),
        allow_volatile_store=_switch("allow-volatile-store", values["allow-volatile-store"]),
        store_replicas=_store_replicas(values["store-replicas"]),
        advertise=values["advertise"],
        price_book=_path(values["price-book"]),
    )


def _read(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    parser = argparse.ArgumentParser(prog="phalanx-control", description="The Phalanx control plane, one replica.")
    for flag in _FLAGS:
        parser.add_argument(f"--{flag.name}", help=f"{flag.help} [{flag.variable}]")
    for flag in _SWITCHES:
        parser.add_argument(f"--{flag.name}", action="store_const", const="1", help=f"{flag.help} [{flag.variable}]")
    given = vars(parser.parse_args(list(argv)))
    out: dict[str, str] = {}
    for flag in (*_FLAGS, *_SWITCHES):
        value: str | None = given[flag.name.replace("-", "_")]
        out[flag.name] = value if value is not None else environ.get(flag.variable, flag.default)
    return out


def _check_store(url: str) -> None:
    if urlsplit(url).scheme not in ("unix", "redis", "rediss"):
        raise InvalidSpecError(f"--store {url!r}: use unix:///path/to/socket, redis://host:port/db or rediss://…")


def _store_replicas(text: str) -> int:
    if text not in {str(n) for n in range(_MOST_STORE_REPLICAS + 1)}:
        raise InvalidSpecError(f"--store-replicas {text!r}: use a whole number from 0 to {_MOST_STORE_REPLICAS}")
    return int(text)


def _cell(name: str) -> str:
    if not name or len(name) > 64 or not all(c.isalnum() or c in "-_." for c in name):
        raise InvalidSpecError(f"--cell {name!r}: use 1 to 64 letters, digits, '-', '_' and '.'")
    return name


def _address(flag: str, text: str) -> Address:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidSpecError(f"--{flag} {text!r}: give host:port, such as 127.0.0.1:7070 or [::1]:0")
    return Address(host, int(port))


def _web_address(text: str) -> Address:
    address = _address("web-listen", text)
    if not address.loopback:
        raise InvalidSpecError(
            f"--web-listen {text!r}: the page is plain HTTP and is served on loopback only",
            hint="use 127.0.0.1:PORT, and reach it through SSH forwarding or a TLS proxy on this machine",
        )
    return address


def _switch(flag: str, text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise InvalidSpecError(f"--{flag} {text!r}: use 1 or 0")


def _path(text: str) -> Path | None:
    return Path(text).absolute() if text else None
