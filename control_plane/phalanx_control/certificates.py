"""The cell's certificate authority, and the secret that replicas of one data directory share.

Made at first start, kept in the data directory with keys readable by their owner only. It signs the certificate that
this replica serves with, and a 24-hour certificate for each agent that enrols. Nothing here reads the network.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from phalanx.core.errors import AuthError, InvalidSpecError
from phalanx.core.files import replace_file

AGENT_LIFETIME = timedelta(hours=24)
SERVER_LIFETIME = timedelta(days=397)
_CA_LIFETIME = timedelta(days=3650)
_SKEW = timedelta(minutes=5)
"""Certificates begin a little earlier, for agents whose clocks are behind."""
REPLICA_NAME = "phalanx-control"
"""A name in every replica's certificate: replicas check it when they speak to each other."""
MAX_CSR_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A private key and its certificate chain, both PEM."""

    key_pem: bytes
    certificate_pem: bytes


class Authority:
    """Signs certificates for one cell."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, path: Path) -> None:
        self._key = key
        self._certificate = certificate
        self.path = path
        """The CA certificate, PEM: what clients and agents trust."""

    @property
    def pem(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def server_pair(self, hosts: Iterable[str], now_wall_ms: int) -> KeyPair:
        """Returns a fresh key and a certificate for these host names and addresses, and for every replica's name."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [_host_name(host) for host in dict.fromkeys([*hosts, "localhost", "127.0.0.1", "::1", REPLICA_NAME])]
        builder = self._builder(REPLICA_NAME, key.public_key(), now_wall_ms, SERVER_LIFETIME)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(_usage(ExtendedKeyUsageOID.SERVER_AUTH), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return KeyPair(_key_pem(key), certificate.public_bytes(serialization.Encoding.PEM))

    def sign_agent(self, csr_pem: bytes, node_id: str, now_wall_ms: int) -> bytes:
        """Returns a 24-hour certificate for the key of this request, PEM. Names come from ``node_id`` alone.

        Raises InvalidSpecError when the request does not parse, AuthError when it was not signed by its own key.
        """
        request = _read_csr(csr_pem)
        if not request.is_signature_valid:
            raise AuthError("the certificate request is not signed by its own key")
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(node_uri(node_id))])
        builder = self._builder(node_id, request.public_key(), now_wall_ms, AGENT_LIFETIME)
        builder = builder.add_extension(names, critical=False)
        both = _usage(ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
        builder = builder.add_extension(both, critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def has_signed(self, certificate_pem: bytes, csr_pem: bytes, node_id: str, now_wall_ms: int) -> bool:
        """Says whether this is a valid certificate of that node, for the key that signed the request."""
        request = _read_csr(csr_pem)
        try:
            shown = x509.load_pem_x509_certificate(certificate_pem[:MAX_CSR_BYTES])
            shown.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        now = datetime.fromtimestamp(now_wall_ms / 1000, UTC)
        return (
            request.is_signature_valid
            and shown.public_key() == request.public_key()
            and shown.subject == _name(node_id)
            and shown.not_valid_before_utc <= now < shown.not_valid_after_utc
        )

    def _builder(
        self, common_name: str, public_key: CertificatePublicKeyTypes, now_wall_ms: int, lifetime: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.fromtimestamp(now_wall_ms / 1000, UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(_name(common_name))
            .issuer_name(self._certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + lifetime)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        )


def load_or_make(data_dir: Path, cell: str, now_wall_ms: int) -> Authority:
    """Returns the CA of this data directory, made now when there is none. Replicas that race get the same one."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    bundle = keep_secret(data_dir / "ca-key.pem", lambda: _new_ca(cell, now_wall_ms))
    key = serialization.load_pem_private_key(bundle, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidSpecError(f"{data_dir / 'ca-key.pem'} holds no elliptic-curve key")
    certificate = x509.load_pem_x509_certificate(bundle)
    path = data_dir / "ca.pem"
    replace_file(path, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644, durable=True)
    return Authority(key, certificate, path)


def load_cell_secret(data_dir: Path) -> bytes:
    """Returns 32 random bytes that the replicas of one data directory share, made at first use."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return keep_secret(data_dir / "cell.key", lambda: os.urandom(32))


def derive(secret: bytes, purpose: str, subject: str) -> bytes:
    """Returns 32 bytes that only a holder of ``secret`` can make, different for each purpose and subject."""
    return hmac.new(secret, f"{purpose}\0{subject}".encode(), hashlib.sha256).digest()


def fingerprint(certificate_pem: bytes) -> str:
    """Returns the SHA-256 of the certificate in DER form, lower-case hex: what clients pin."""
    return x509.load_pem_x509_certificate(certificate_pem).fingerprint(hashes.SHA256()).hex()


def node_uri(node_id: str) -> str:
    """Returns the URI under which a certificate names its node."""
    return f"spiffe://phalanx/node/{node_id}"


def keep_secret(path: Path, make: Callable[[], bytes]) -> bytes:
    """Returns the file's bytes; when absent, writes what ``make()`` returns, 0600. The first of several makers wins."""
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as draft:
            draft.write(make())
            draft.flush()
            os.fsync(draft.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(draft.name, path)
    return path.read_bytes()


def _new_ca(cell: str, now_wall_ms: int) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.fromtimestamp(now_wall_ms / 1000, UTC)
    subject = _name(f"Phalanx {cell}")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_ca_key_usage(), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _key_pem(key) + certificate.public_bytes(serialization.Encoding.PEM)


def _ca_key_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _usage(*purposes: x509.ObjectIdentifier) -> x509.ExtendedKeyUsage:
    return x509.ExtendedKeyUsage(purposes)


def _read_csr(csr_pem: bytes) -> x509.CertificateSigningRequest:
    if len(csr_pem) > MAX_CSR_BYTES:
        raise InvalidSpecError(f"the certificate request has {len(csr_pem)} bytes: at most {MAX_CSR_BYTES}")
    try:
        return x509.load_pem_x509_csr(csr_pem)
    except ValueError as e:
        raise InvalidSpecError(f"the certificate request does not parse: {e}") from e


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
