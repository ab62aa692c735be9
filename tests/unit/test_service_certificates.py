"""The certificate authority of a cell."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.oid import NameOID

from phalanx.core.errors import InvalidSpecError
from phalanx_control.certificates import (
    AGENT_LIFETIME,
    derive,
    fingerprint,
    load_cell_secret,
    load_or_make,
    node_uri,
)

NOW = 1_700_000_000_000


def _csr(common_name: str = "whatever") -> bytes:
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, None)
    return request.public_bytes(serialization.Encoding.PEM)


def test_the_same_folder_gives_the_same_authority(tmp_path: Path) -> None:
    assert load_or_make(tmp_path, "c", NOW).pem == load_or_make(tmp_path, "c", NOW + 1).pem


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    load_or_make(tmp_path / "d", "c", NOW)
    load_cell_secret(tmp_path / "d")
    for name in ("ca-key.pem", "cell.key"):
        assert stat.S_IMODE((tmp_path / "d" / name).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700
    assert b"PRIVATE" not in (tmp_path / "d" / "ca.pem").read_bytes()


def test_the_names_in_a_node_certificate_are_not_the_requests(tmp_path: Path) -> None:
    signed = load_or_make(tmp_path, "c", NOW).sign_agent(_csr("someone-else"), "node-1", NOW)
    certificate = x509.load_pem_x509_certificate(signed)
    assert [a.value for a in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["node-1"]
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [node_uri("node-1")]


def test_it_knows_what_it_has_signed_for_whom_and_for_how_long(tmp_path: Path) -> None:
    authority, other = load_or_make(tmp_path / "a", "c", NOW), load_or_make(tmp_path / "b", "c", NOW)
    csr = _csr()
    signed = authority.sign_agent(csr, "node-1", NOW)
    assert authority.has_signed(signed, csr, "node-1", NOW)
    assert not authority.has_signed(signed, csr, "node-2", NOW)
    assert not authority.has_signed(signed, _csr(), "node-1", NOW)
    assert not authority.has_signed(signed, csr, "node-1", NOW + 24 * 3_600_000)
    assert not authority.has_signed(other.sign_agent(csr, "node-1", NOW), csr, "node-1", NOW)
    assert not authority.has_signed(b"no certificate", csr, "node-1", NOW)


def test_a_node_certificate_ends_after_a_day(tmp_path: Path) -> None:
    signed = load_or_make(tmp_path, "c", NOW).sign_agent(_csr(), "node-1", NOW)
    certificate = x509.load_pem_x509_certificate(signed)
    assert certificate.not_valid_after_utc.timestamp() * 1000 == NOW + AGENT_LIFETIME.total_seconds() * 1000


def test_a_node_certificate_signs_nothing_itself(tmp_path: Path) -> None:
    signed = load_or_make(tmp_path, "c", NOW).sign_agent(_csr(), "node-1", NOW)
    constraints = x509.load_pem_x509_certificate(signed).extensions.get_extension_for_class(x509.BasicConstraints)
    assert not constraints.value.ca


@pytest.mark.parametrize("csr", [b"", b"junk", bytes(20_000)])
def test_a_request_that_does_not_parse_is_refused(tmp_path: Path, csr: bytes) -> None:
    with pytest.raises(InvalidSpecError, match="certificate request"):
        load_or_make(tmp_path, "c", NOW).sign_agent(csr, "node-1", NOW)


def test_the_server_certificate_names_its_hosts(tmp_path: Path) -> None:
    pair = load_or_make(tmp_path, "c", NOW).server_pair(["10.0.0.7", "cp.example"], NOW)
    certificate = x509.load_pem_x509_certificate(pair.certificate_pem)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "cp.example" in names.get_values_for_type(x509.DNSName)
    assert "10.0.0.7" in map(str, names.get_values_for_type(x509.IPAddress))


def test_a_fingerprint_is_the_sha256_of_the_der_form(tmp_path: Path) -> None:
    pem = load_or_make(tmp_path, "c", NOW).pem
    assert fingerprint(pem) == x509.load_pem_x509_certificate(pem).fingerprint(hashes.SHA256()).hex()


def test_derived_keys_differ_by_purpose_and_subject() -> None:
    keys = {derive(b"s", purpose, subject) for purpose, subject in (("a", "b"), ("a", "c"), ("b", "a"), ("ab", ""))}
    assert len(keys) == 4
