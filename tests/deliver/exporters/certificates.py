"""Certificates for the tests: an authority, servers (also an expired one), and a client."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

KEY_PASSWORD = "of-the-key"


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files."""

    ca: Path
    server: Path
    expired: Path
    wrong_host: Path
    client: Path
    client_key: Path
    client_locked_key: Path

    def server_context(self, which: Path | None = None, *, mutual: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(which or self.server)
        if mutual:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def make_certificates(directory: Path) -> Certificates:
    """Make all of them; elliptic curves, because their keys are quick to make."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _certificate("Test authority", ca_key, None, ca_key, days=10)
    paths = Certificates(
        *(
            directory / f"{name}.pem"
            for name in (
                *("ca", "server", "expired", "wrong_host"),
                *("client", "client_key", "client_locked_key"),
            )
        )
    )
    paths.ca.write_bytes(_pem(ca))
    for path, host, days in (
        (paths.server, "127.0.0.1", 10),
        (paths.expired, "127.0.0.1", -1),
        (paths.wrong_host, "127.0.0.9", 10),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        path.write_bytes(_pem(_certificate(host, key, ca, ca_key, days=days)) + _key_pem(key))
    key = ec.generate_private_key(ec.SECP256R1())
    paths.client.write_bytes(_pem(_certificate("127.0.0.2", key, ca, ca_key, days=10)))
    paths.client_key.write_bytes(_key_pem(key))
    paths.client_locked_key.write_bytes(_key_pem(key, KEY_PASSWORD))
    return paths


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    days: int,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=30))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer is not None:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(name))])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey, password: str | None = None) -> bytes:
    encryption: serialization.KeySerializationEncryption = (
        serialization.BestAvailableEncryption(password.encode())
        if password
        else serialization.NoEncryption()
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )
