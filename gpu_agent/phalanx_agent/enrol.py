"""The node's identity: a key made here, and a 24-hour certificate that names the node, got by a join token.

Key and certificate stay in the state directory, readable by their owner only; the key never leaves it. Each control
address is also asked, once, where it takes agents.
"""

from __future__ import annotations

import hashlib
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from phalanx.core.clock import Clock
from phalanx.core.files import replace_file
from phalanx_proto.v1 import agent_pb2, agent_pb2_grpc, control_pb2_grpc

CONTROL_NAME = "phalanx-control"
"""The name that every replica's certificate carries, whatever its address."""
ENROL_TIMEOUT_S = 15.0
_REFUSALS = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """PEM bytes and paths. ``fingerprint`` is the certificate's SHA-256 in hex, which clients pin."""

    ca_pem: bytes
    key_pem: bytes
    certificate_pem: bytes
    fingerprint: str
    begins_wall_ms: int
    ends_wall_ms: int

    @property
    def renew_at_wall_ms(self) -> int:
        return (self.begins_wall_ms + self.ends_wall_ms) // 2


class Enrolment:
    """Keeps one node's identity in ``state_dir``."""

    def __init__(self, *, node_id: str, state_dir: Path, ca: Path, join_token_file: Path | None, clock: Clock) -> None:
        self._node_id = node_id
        self._dir = state_dir
        self._ca = ca
        self._token_file = join_token_file
        self._clock = clock
        self._addresses: dict[str, str] = _read_json(self._dir / "agents.json")
        self._doubted: set[str] = set()
        self._identity = self._load()

    @property
    def identity(self) -> Identity | None:
        return self._identity

    async def ready(self, control: str) -> tuple[Identity, str]:
        """Returns the identity and the address at which ``control`` takes agents, enrolling where either is missing.

        Raises grpc.aio.AioRpcError when the control plane refuses or is not there, OSError without a token to show.
        """
        identity = self._identity
        address = self._addresses.get(control, "")
        former = (identity, address) if identity is not None and address and self._is_valid(identity) else None
        if former is not None and control not in self._doubted:
            return former
        self._doubted.discard(control)
        try:
            answer = await self._enrol(control)
        except grpc.aio.AioRpcError as e:
            if former is None or e.code() not in _REFUSALS:
                raise
            return former  # an older control plane takes no certificate for a token: where agents went is all it knows
        self._remember_address(control, answer.agents_address)
        if identity is None or not self._is_valid(identity):
            identity = self._store(answer.certificate_pem)
        return identity, answer.agents_address

    def doubt_address(self, control: str) -> None:
        """The address does not answer: ask again where agents go."""
        self._doubted.add(control)

    async def renew(self, channel: grpc.aio.Channel) -> Identity:
        """Gets a new certificate under the present one. Raises grpc.aio.AioRpcError."""
        stub: Any = agent_pb2_grpc.AgentsStub(channel)
        request = agent_pb2.CertificateRequest(node_id=self._node_id, csr_pem=self._request())
        answer = await stub.RenewCertificate(request, timeout=ENROL_TIMEOUT_S)
        return self._store(answer.certificate_pem)

    def tls_context(self) -> ssl.SSLContext:
        """Returns the data plane's server side. Raises OSError before the node has a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self._dir / "node.pem", self._dir / "node.key")
        return context

    def _is_valid(self, identity: Identity) -> bool:
        return identity.ends_wall_ms > self._clock.wall_ms()

    async def _enrol(self, control: str) -> Any:
        identity = self._identity
        shown = identity.certificate_pem if identity is not None and self._is_valid(identity) else b""
        token = self._token(needed=not shown)
        credentials = grpc.ssl_channel_credentials(root_certificates=self._ca.read_bytes())
        async with grpc.aio.secure_channel(control, credentials, options=CHANNEL_OPTIONS) as channel:
            stub: Any = control_pb2_grpc.ControlStub(channel)
            request = agent_pb2.CertificateRequest(
                node_id=self._node_id, join_token=token, csr_pem=self._request(), certificate_pem=shown
            )
            return await stub.Enroll(request, timeout=ENROL_TIMEOUT_S)

    def _token(self, *, needed: bool) -> str:
        """Returns the join token; "" for none where the certificate will do. Raises OSError where it will not."""
        if self._token_file is None:
            if needed:
                raise FileNotFoundError("this node has no certificate and no --join-token-file to get one with")
            return ""
        try:
            return self._token_file.read_text().strip()
        except OSError:
            if needed:
                raise
            return ""

    def _request(self) -> bytes:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._node_id)])
        request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(self._key(), hashes.SHA256())
        return request.public_bytes(serialization.Encoding.PEM)

    def _key(self) -> ec.EllipticCurvePrivateKey:
        path = self._dir / "node.key"
        if path.exists():
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
            if isinstance(key, ec.EllipticCurvePrivateKey):
                return key
        made = ec.generate_private_key(ec.SECP256R1())
        pem = made.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        replace_file(path, pem, durable=True)
        return made

    def _store(self, certificate_pem: bytes) -> Identity:
        replace_file(self._dir / "node.pem", certificate_pem, durable=True)
        identity = self._load()
        if identity is None:
            raise OSError("the control plane's certificate does not fit this node")
        self._identity = identity
        return identity

    def _load(self) -> Identity | None:
        """Returns what is stored, unless it is another node's, another cell's, or incomplete."""
        try:
            certificate_pem = (self._dir / "node.pem").read_bytes()
            key_pem = (self._dir / "node.key").read_bytes()
            ca_pem = self._ca.read_bytes()
            certificate = x509.load_pem_x509_certificate(certificate_pem)
            certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca_pem))
        except (OSError, ValueError, TypeError, InvalidSignature):
            return None
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if not names or names[0].value != self._node_id:
            return None
        return Identity(
            ca_pem=ca_pem,
            key_pem=key_pem,
            certificate_pem=certificate_pem,
            fingerprint=hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest(),
            begins_wall_ms=int(certificate.not_valid_before_utc.timestamp() * 1000),
            ends_wall_ms=int(certificate.not_valid_after_utc.timestamp() * 1000),
        )

    def _remember_address(self, control: str, address: str) -> None:
        self._addresses[control] = address
        replace_file(self._dir / "agents.json", json.dumps(self._addresses), durable=True)


CHANNEL_OPTIONS = (
    ("grpc.ssl_target_name_override", CONTROL_NAME),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", 16 << 20),
)


def _read_json(path: Path) -> dict[str, str]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return {}
