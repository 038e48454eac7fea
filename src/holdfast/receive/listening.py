"""Where to listen: addresses as people write them, and TLS."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator

from holdfast.errors import BadConfig
from holdfast.settings import LocalPath, Secret, Settings

PORT_MAX = 65535


class Address(NamedTuple):
    """A host (a name, or an IP address without brackets) and a port; 0: any that is free."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Return the address that `127.0.0.1:5000`, `[::1]:5000`, `name:5000` or `:5000` means."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r} is not an address; write an IPv6 host as [::1]:5000")
    if not colon or not port.isdecimal() or int(port) > PORT_MAX:
        raise ValueError(f"{text!r} is not an address; write host:port")
    return Address(host or "0.0.0.0", int(port))


def _is_address(text: str) -> str:
    parse_address(text)
    return text


AddressText = Annotated[str, AfterValidator(_is_address)]


class ListenerTls(Settings):
    """TLS for a listening port. Paths are relative to the configuration file."""

    cert_file: LocalPath
    """The certificate, with its chain, as PEM."""
    key_file: LocalPath
    """Its private key, as PEM."""
    key_password: Secret | None = None
    """The password of the key, if it has one."""
    client_ca_file: LocalPath | None = None
    """Authorities (PEM) of client certificates; if given, every client must present one."""
    min_version: Literal["1.2", "1.3"] = "1.2"
    """The oldest version of TLS that is spoken."""


def server_context(tls: ListenerTls, base_dir: Path) -> ssl.SSLContext:
    """Return the TLS context of a server, or raise `BadConfig`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    versions = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
    context.minimum_version = versions[tls.min_version]
    password = tls.key_password.get_secret_value() if tls.key_password else ""
    option = "tls.cert_file"
    try:
        # A password that is always given: without one OpenSSL would ask the terminal.
        cert_file, key_file = str(base_dir / tls.cert_file), str(base_dir / tls.key_file)
        context.load_cert_chain(cert_file, key_file, password=lambda: password)
        if tls.client_ca_file is not None:
            option = "tls.client_ca_file"
            context.load_verify_locations(str(base_dir / tls.client_ca_file))
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise BadConfig(
            f"TLS cannot be set up: {error}",
            hint=f"check {option} (PEM), its key and password, and that the gateway may read them",
        ) from error
    return context
