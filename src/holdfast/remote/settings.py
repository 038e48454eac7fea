"""What can be set of a Flight server and of its clients.

There are three rights, because three kinds of programs call. A dashboard reads rows and changes
nothing. A pipeline subscribes: what it has committed may be removed, so a stranger who subscribes
could lose data for others. A producer appends, and need not see what the others sent.
"""

from __future__ import annotations

import ipaddress
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from holdfast.settings import DurationS, LocalPath, Secret, Settings, SizeBytes

MB = 1024 * 1024

Right = Literal["read", "subscribe", "append"]
ALL_RIGHTS: tuple[Right, ...] = ("read", "subscribe", "append")


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of `127.0.0.1:8815`, `[::1]:8815`, `name:8815` or `:8815`.

    Compared with what was given afterwards: a path, a query or a user in it would otherwise be
    dropped without a word.
    """
    wrong = ValueError(f"{text!r} is not an address; write host:port, and IPv6 as [::1]:8815")
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError:
        raise wrong from None
    if port is None or parts.netloc != text or "@" in text:
        raise wrong
    return parts.hostname or "0.0.0.0", port


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class FlightToken(Settings):
    """One client that may call."""

    name: str = Field(min_length=1, max_length=64)
    """Stands in logs; not secret."""
    token: Secret = Field(min_length=1)
    """What it sends as `authorization: Bearer …`; use `${env:NAME}` or `${file:PATH}`."""
    rights: tuple[Right, ...] = ALL_RIGHTS
    """`read` rows and statements, `subscribe` (plan and commit), `append`."""


class FlightTls(Settings):
    """TLS for the listening ports. Paths are relative to the configuration file."""

    cert_file: LocalPath
    """The certificate, with its chain, as PEM."""
    key_file: LocalPath
    """Its private key, as PEM, without a password."""
    client_ca_file: LocalPath | None = None
    """Authorities (PEM) of client certificates; if given, every client must present one."""


class FlightSettings(Settings):
    """A Flight server: the owner's port, and the port of the process that serves sealed data."""

    listen: str = "127.0.0.1:8815"
    """Where the owner answers. Port 0: any that is free."""
    reader_port: int = Field(default=0, ge=0, le=65535)
    """Where sealed data is served, on the same host. 0: any that is free, kept over restarts."""
    advertise_host: str | None = None
    """The host that tickets name; by default the one it listens on."""
    tokens: tuple[FlightToken, ...] = ()
    """Who may call. Without any, everybody who reaches the port: loopback or mutual TLS only."""
    tls: FlightTls | None = None
    """Encrypt, and with `client_ca_file` let only known certificates in."""
    max_calls: int = Field(default=64, ge=2)
    """Calls at once, for each of the two processes; more are refused."""
    max_wait: DurationS = 30.0
    """The longest that a plan or a wait keeps its caller; at most half of all calls may wait."""
    max_message: SizeBytes = 64 * MB
    """The largest request, and all rows of one put."""
    read_message: SizeBytes = 4 * MB
    """Rows are sent in messages of about this size; one larger row is sent as it is."""
    max_attachments: int = Field(default=256, ge=1)
    """Subscribers that are attached at once."""
    detach_after: DurationS = Field(default=600.0, gt=0)
    """A subscriber that did not call for so long counts as absent; its next call attaches it."""
    restart_min: DurationS = 0.1
    """Pause before the serving process is started again: doubles from this …"""
    restart_max: DurationS = 10.0
    """… to this, and starts over once it ran that long."""

    @field_validator("listen")
    @classmethod
    def _is_address(cls, text: str) -> str:
        split_address(text)
        return text


class ClientSettings(Settings):
    """How a client calls. Whether it encrypts is said by the location: `grpc+tls://host:port`."""

    token: Secret | None = None
    """Its bearer token."""
    ca_file: LocalPath | None = None
    """Authorities (PEM) that may have signed the server's certificate; default: the system's."""
    cert_file: LocalPath | None = None
    """The client's own certificate (PEM), where the server asks for one."""
    key_file: LocalPath | None = None
    """Its private key (PEM)."""
    timeout: DurationS = 60.0
    """How long a call may take, waits not counted."""
    read_timeout: DurationS = 600.0
    """How long reading one range may take."""
    max_message: SizeBytes = 64 * MB
    """The largest message that is sent or taken."""
