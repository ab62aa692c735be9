"""A data plane with fake keepers and real sockets, for tests of relaying."""

from __future__ import annotations

import datetime
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from phalanx.core.clock import SystemClock
from phalanx.core.ids import id_raw, id_text, new_raw_id
from phalanx_agent.dataplane.calls import CallRecord, Origin
from phalanx_agent.dataplane.facts import GangSpec, PeerSpec, PlaneEvent
from phalanx_agent.dataplane.server import DataPlane, PlaneSettings
from tests.support.fake_keeper import Answer, FakeKeeper, echo
from tests.support.frame_client import FrameClient
from tests.support.wait import wait_until

KEY = b"k" * 32
GANG = id_text("g", bytes(16))
E = TypeVar("E")


@dataclass(slots=True)
class TestPlane:
    """One node's data plane. ``events`` is what the rest of the agent would hear."""

    __test__ = False

    directory: Path
    node_id: str = "n0"
    shells: bool = True
    events: list[PlaneEvent] = field(default_factory=list[PlaneEvent])
    keepers: list[FakeKeeper] = field(default_factory=list[FakeKeeper])
    fingerprint: str = ""
    plane: DataPlane = field(init=False)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = PlaneSettings(
            node_id=self.node_id,
            epoch=1,
            unix_path=self.directory / "agent.sock",
            host="127.0.0.1",
            port=0,
            shells=self.shells,
            open_spool=self._open_spool,
        )
        self.plane = DataPlane(settings, clock=SystemClock(), emit=self.events.append)
        context, self.fingerprint = make_certificate(self.directory)
        self.plane.start(context)
        self.plane.set_ticket_key(KEY)

    def _open_spool(self, _gang: str, _call: str) -> tuple[int, int] | None:
        path = self.directory / "spool.log"
        return (os.open(path, os.O_RDONLY | os.O_CLOEXEC), 0) if path.exists() else None

    def close(self) -> None:
        self.plane.stop()
        for keeper in self.keepers:
            keeper.die()

    def open(  # noqa: PLR0913  what a gang may be
        self,
        *,
        gang_id: str = GANG,
        lead: bool = True,
        answer: Answer = echo,
        state: dict[str, Any] | None = None,
        peers: tuple[PeerSpec, ...] = (),
        returns_all: bool = False,
        streams: bool = False,
        silent: bool = False,
        gpus_may_fail: bool = False,
    ) -> FakeKeeper:
        """Opens a gang with a fake keeper of its own."""
        path = self.directory / f"{gang_id[-4:]}-{len(self.keepers)}.sock"
        keeper = FakeKeeper(path, answer=answer, state=state, silent=silent)
        self.keepers.append(keeper)
        self.attach(
            keeper,
            gang_id=gang_id,
            lead=lead,
            peers=peers,
            returns_all=returns_all,
            streams=streams,
            gpus_may_fail=gpus_may_fail,
        )
        return keeper

    def attach(
        self,
        keeper: FakeKeeper,
        *,
        gang_id: str = GANG,
        lead: bool = True,
        peers: tuple[PeerSpec, ...] = (),
        returns_all: bool = False,
        streams: bool = False,
        gpus_may_fail: bool = False,
    ) -> None:
        """Gives the data plane a gang whose keeper is there already; logged calls are journalled beside it."""
        gang = GangSpec(
            gang_id=gang_id,
            fence=1,
            function_id="f-1",
            keeper_socket=keeper.path,
            lead=lead,
            peers=peers,
            returns_all=returns_all,
            streams=streams,
            gpus_may_fail=gpus_may_fail,
            call_journal=keeper.path.with_suffix(".jsonl"),
        )
        self.plane.open_gang(gang).result(5)

    def client(self, *, tls: bool = False, lane: bool = False, gang_id: str = GANG, **ticket: Any) -> FrameClient:
        """Returns a client that was welcomed."""
        client = FrameClient(("127.0.0.1", self.plane.port) if tls else self.directory / "agent.sock")
        answer = client.hello(KEY, lane=lane, gang_id=gang_id, node_id=self.node_id, **ticket)
        assert answer.kind.name == "WELCOME", answer.meta
        return client

    def offer(
        self,
        call: bytes,
        body: bytes = b"",
        *,
        gang_id: str = GANG,
        queue_key: str = "user ann",
        attempt: int = 1,
        timeout_ms: int = 0,
    ) -> bool:
        """Offers a durable call; its fence rises with the attempt, from 7."""
        record = CallRecord(
            id=call,
            origin=Origin.OFFERED,
            queue_key=queue_key,
            attempt=attempt,
            fence=6 + attempt,
            timeout_ms=timeout_ms,
            body=body,
        )
        return self.plane.offer(gang_id, record).result(5)

    def heard(self, kind: type[E]) -> list[E]:
        return [e for e in self.events if isinstance(e, kind)]

    def wait_for(self, kind: type[E], count: int = 1) -> list[E]:
        """Returns the events of a kind once there are ``count`` of them."""
        wait_until(lambda: len(self.heard(kind)) >= count, f"{count} {kind.__name__}")
        return self.heard(kind)


def new_call() -> bytes:
    return new_raw_id()


def raw(call_id: str) -> bytes:
    return id_raw(call_id)


def make_certificate(directory: Path) -> tuple[ssl.SSLContext, str]:
    """Returns a server context with a fresh self-signed certificate, and its fingerprint."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
    (directory / "node.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (directory / "node.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "node.pem", directory / "node.key")
    return context, certificate.fingerprint(hashes.SHA256()).hex()
