"""Certificates for the tests: two authorities, servers (one expired, one elsewhere), clients."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

KEY_PASSWORD = "of-the-key"
_PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Identity:
    """A key with its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(_PEM)

    def key_pem(self, password: str | None = None) -> bytes:
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        return self.key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, encryption)

    def write(self, folder: Path, name: str, password: str | None = None) -> None:
        (folder / f"{name}.pem").write_bytes(self.pem)
        (folder / f"{name}.key").write_bytes(self.key_pem(password))


def identity(
    name: str, issuer: Identity | None = None, *, host: str = "127.0.0.1", days: int = 10
) -> Identity:
    """Make a certificate, of an authority if no issuer is given.

    On elliptic curves, because their keys are quick to make.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    address = x509.IPAddress(ipaddress.ip_address(host))
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=30))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
    )
    return Identity(key, builder.sign(issuer.key if issuer else key, hashes.SHA256()))


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files."""

    ca: Path
    other_ca: Path
    server: Path
    server_key: Path
    # These have their key in the same file.
    whole_server: Path
    expired: Path
    wrong_host: Path
    client: Path
    client_key: Path
    client_locked_key: Path
    other_client: Path
    other_key: Path

    def server_context(self, which: Path | None = None, *, mutual: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(which or self.whole_server)
        if mutual:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def make_certificates(directory: Path) -> Certificates:
    """Make all of them."""
    paths = Certificates(*(directory / f"{field.name}.pem" for field in fields(Certificates)))
    authority, other = identity("authority"), identity("another authority")
    server, client = identity("server", authority), identity("client", authority)
    stranger = identity("client", other)
    expired = identity("server", authority, days=-1)
    elsewhere = identity("server", authority, host="127.0.0.9")
    for path, content in (
        (paths.ca, authority.pem),
        (paths.other_ca, other.pem),
        (paths.server, server.pem),
        (paths.server_key, server.key_pem()),
        (paths.whole_server, server.pem + server.key_pem()),
        (paths.expired, expired.pem + expired.key_pem()),
        (paths.wrong_host, elsewhere.pem + elsewhere.key_pem()),
        (paths.client, client.pem),
        (paths.client_key, client.key_pem()),
        (paths.client_locked_key, client.key_pem(KEY_PASSWORD)),
        (paths.other_client, stranger.pem),
        (paths.other_key, stranger.key_pem()),
    ):
        path.write_bytes(content)
    return paths
