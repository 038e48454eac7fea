"""Certificates for the tests: two authorities, a server, and a client of each."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files."""

    ca: Path
    other_ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path
    other_client: Path
    other_key: Path


def make_certificates(directory: Path) -> Certificates:
    """Make all of them; elliptic curves, because their keys are quick to make."""
    paths = Certificates(*(directory / f"{field.name}.pem" for field in fields(Certificates)))
    authorities = []
    for path in (paths.ca, paths.other_ca):
        key = ec.generate_private_key(ec.SECP256R1())
        authorities.append((_certificate(path.stem, key, None, key), key))
        path.write_bytes(_pem(authorities[-1][0]))
    for path, key_path, (ca, ca_key) in (
        (paths.server, paths.server_key, authorities[0]),
        (paths.client, paths.client_key, authorities[0]),
        (paths.other_client, paths.other_key, authorities[1]),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        path.write_bytes(_pem(_certificate(path.stem, key, ca, ca_key)))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    return paths


def _certificate(
    name: str, key: Key, issuer: x509.Certificate | None, issuer_key: Key
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=10))
        .add_extension(x509.BasicConstraints(issuer is None, None), critical=True)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
