"""One POST with everything bounded: connections, times, and how much answer is read.

A backend is not trusted to end anything. Redirects are not followed, cookies are not kept, answers
are asked for uncompressed and read up to `max_response_size`. How requests and answers go over a
connection is `http_connections`'s business; here are the settings, the certificates, the head of a
request, and what a failure means.
"""

from __future__ import annotations

import base64
import logging
import ssl
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, Self

from pydantic import AfterValidator, Field, field_validator, model_validator
from yarl import URL

from holdfast import __version__
from holdfast.deliver.exporter import ExporterContext
from holdfast.deliver.exporters.classify import SendFailed, failure_of_exception
from holdfast.deliver.exporters.http_connections import (
    HttpAnswer,
    HttpConnections,
    HttpLimits,
    HttpProxy,
    HttpRoute,
)
from holdfast.deliver.exporters.http_failures import HttpFailed
from holdfast.errors import BadConfig
from holdfast.settings import DurationS, FileSettings, LocalPath, Secret, Settings, SizeBytes
from holdfast.watched_files import WatchedFiles

# How often certificates are looked at.
LOOK_AGAIN_S = 1.0

# Addresses whose first lines are remembered; a key in the query makes another one of each request.
KNOWN_ADDRESSES_MAX = 64

# What is said unless the configuration says otherwise.
_OWN_LINES = {
    "user-agent": f"User-Agent: holdfast/{__version__}",
    "accept": "Accept: */*",
    "accept-encoding": "Accept-Encoding: identity",
}


def _checked_url(value: str, schemes: tuple[str, ...] = ("http", "https")) -> str:
    try:
        url = URL(value)
        usable = url.scheme in schemes and bool(url.host)
    except ValueError:
        url, usable = URL(), False
    if url.user is not None or url.password is not None:
        raise ValueError("an address must not hold a user or a password; there are keys for them")
    if not usable:
        raise ValueError(f"not an address that begins with {' or '.join(schemes)}://")
    return value


def _checked_path(value: str) -> str:
    if value and not value.startswith("/"):
        raise ValueError("a path begins with `/`")
    return value


# An address that has a scheme, a host and no password in it.
CheckedUrl = Annotated[str, AfterValidator(_checked_url)]
# What is added to an address; empty if the address has all of it.
EndpointPath = Annotated[str, AfterValidator(_checked_path)]

log = logging.getLogger("holdfast.deliver")


class ClientTls(Settings):
    """Certificates for https."""

    ca_file: LocalPath | None = None
    """PEM file of certificate authorities to trust, besides those of the system."""

    cert_file: LocalPath | None = None
    """PEM file with our own certificate (mutual TLS), and those that signed it."""

    key_file: LocalPath | None = None
    """PEM file with the key of `cert_file`; not needed if the key is in `cert_file`."""

    key_password: Secret | None = None
    """Password of the key."""

    @model_validator(mode="after")
    def _key_belongs_to_a_certificate(self) -> Self:
        if self.cert_file is None and (self.key_file or self.key_password):
            raise ValueError("`key_file` and `key_password` need a `cert_file`")
        return self


class ProxySettings(Settings):
    """An HTTP proxy between us and the backend."""

    url: str
    """Address of the proxy, `http://host:port`."""

    username: str | None = None
    """User, if the proxy asks for one."""

    password: Secret | None = None
    """Password of the user."""

    @field_validator("url")
    @classmethod
    def _is_plain_http(cls, value: str) -> str:
        return _checked_url(value, schemes=("http",))


class HttpClientSettings(FileSettings):
    """How to connect, and how long to wait."""

    connect_timeout: DurationS = Field(default=5.0, gt=0)
    """How long connecting may take: name, TCP, proxy and TLS."""

    read_timeout: DurationS = Field(default=20.0, gt=0)
    """How long the backend may send nothing."""

    total_timeout: DurationS = Field(default=25.0, gt=0)
    """How long a request may take altogether. Shorter than the destination's `send_timeout`, so
    that the reason is told."""

    max_connections: int = Field(default=8, ge=1, le=1000)
    """How many connections may be open at once."""

    max_response_bytes: SizeBytes = Field(default=2**20, ge=1024)
    """How much of an answer is read."""

    tls: ClientTls = ClientTls()
    """Certificates for https; files that are replaced are read again, without a restart."""

    proxy: ProxySettings | None = None
    """An HTTP proxy; those of the environment are not used."""

    @model_validator(mode="after")
    def _total_is_the_longest(self) -> Self:
        if self.connect_timeout > self.total_timeout:
            raise ValueError("`connect_timeout` must not be longer than `total_timeout`")
        return self


# Other spellings of keys, as other collectors have them.
_ALIASES = {
    "endpoint": "url",
    "grpc_endpoint": "url",
    "compression_method": "compression",
    "timeout": "total_timeout",
}


def in_our_spelling(value: Any) -> Any:
    """Return settings under our names; raises `ValueError` if one is given twice."""
    if not isinstance(value, dict):
        return value
    ours: dict[str, Any] = {}
    for key, item in value.items():
        name = _ALIASES.get(key, str(key))
        if name in ours:
            raise ValueError(f"{key!r} and {name!r} are the same; keep one of them")
        ours[name] = item
    return ours


def endpoint_url(address: str, path: str) -> URL:
    """Return where an endpoint is: the path behind that of the address, with the address's query.

    An address that ends with the path already is the whole one, and an address without a path to
    add is taken to the letter: a path twice, or a slash less, would be a 404 for everything.
    """
    url = URL(address)
    whole = url.raw_path
    if path:
        before = whole.rstrip("/")
        whole = before if before.endswith(path) else before + path
    query = f"?{url.raw_query_string}" if url.raw_query_string else ""
    return URL(f"{url.origin()}{whole}{query}", encoded=True)


class _KnownAddress(NamedTuple):
    """What an address means for a request."""

    host: str
    port: int
    is_tls: bool
    # The first line, and that of the host.
    lines: str


class _KnownLines(NamedTuple):
    """The lines of a head that say the same in most requests, and what they were made of."""

    headers: Mapping[str, str]
    # The header that says something else each time, if there is one.
    key_name: str
    text: str


class HttpClient:
    """Connections to one backend (and to the token endpoint in front of it)."""

    def __init__(self, settings: HttpClientSettings, context: ExporterContext) -> None:
        self._settings = settings
        # At once, so that a certificate that cannot be read is an error of the configuration, with
        # its path, and not a failed connection hours later.
        self._certificates = ClientCertificates(settings.tls, context)
        self._proxy = _proxy_of(settings.proxy)
        self._addresses: dict[URL, _KnownAddress] = {}
        self._lines = _known_lines({}, "")
        self._connections: HttpConnections | None = None

    async def start(self) -> None:
        """Get ready; connects to nobody yet."""
        settings = self._settings
        self._connections = HttpConnections(
            HttpLimits(
                connect_s=settings.connect_timeout,
                silence_s=settings.read_timeout,
                total_s=settings.total_timeout,
                connections_max=settings.max_connections,
                answer_bytes_max=settings.max_response_bytes,
            )
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._connections is not None:
            await self._connections.close()
            self._connections = None

    async def post(
        self,
        url: URL,
        body: bytes,
        headers: Mapping[str, str],
        *,
        needs_body: bool,
        key: tuple[str, str] = ("", ""),
    ) -> HttpAnswer:
        """Send one request and return its answer, whatever its status; or raise SendFailed.

        `needs_body`: a 2xx counts only with its whole body. Of other answers the status is enough.
        `key`: the one header whose value is another in each request; it counts before `headers`.
        """
        if self._connections is None:
            raise AssertionError("BUG: the client was not started")
        address = self._addresses.get(url) or self._remember(url)
        # Connections that were made with other certificates are not used again.
        tls = self._certificates.current() if address.is_tls else None
        route = HttpRoute(address.host, address.port, tls, self._proxy)
        head = self._head(address, headers, key, len(body))
        try:
            return await self._connections.send(route, head, body, needs_body=needs_body)
        except HttpFailed as error:
            raise SendFailed(failure_of_exception(error)) from None

    def _remember(self, url: URL) -> _KnownAddress:
        assert url.raw_host is not None, "BUG: an address without a host"
        assert url.port is not None, "BUG: an address without a port"
        is_tls = url.scheme == "https"
        # A proxy without a tunnel is told the whole address.
        is_whole = self._proxy is not None and not is_tls
        target = str(url.with_fragment(None)) if is_whole else url.raw_path_qs
        lines = f"POST {target} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n"
        if len(self._addresses) >= KNOWN_ADDRESSES_MAX:
            self._addresses.clear()
        address = self._addresses[url] = _KnownAddress(url.raw_host, url.port, is_tls, lines)
        return address

    def _head(
        self,
        address: _KnownAddress,
        headers: Mapping[str, str],
        key: tuple[str, str],
        body_bytes: int,
    ) -> bytes:
        """Return the head of a request."""
        name, value = key
        lines = self._lines
        if lines.headers != headers or lines.key_name != name:
            lines = self._lines = _known_lines(headers, name)
        said = f"{lines.text}{_line(name, value)}\r\n" if name else lines.text
        head = f"{address.lines}{said}Content-Length: {body_bytes}\r\n".encode()
        if self._proxy is not None and not address.is_tls:
            head += self._proxy.lines  # no tunnel: the proxy reads the head of the request itself
        return head + b"\r\n"


def _line(name: str, value: str) -> str:
    line = f"{name}: {value}"
    assert "\n" not in line, "BUG: a header of two lines"
    assert "\r" not in line, "BUG: a header of two lines"
    return line


def _known_lines(headers: Mapping[str, str], key_name: str) -> _KnownLines:
    lines = _OWN_LINES | {name.lower(): _line(name, value) for name, value in headers.items()}
    lines.pop(key_name.lower(), None)
    return _KnownLines(dict(headers), key_name, "".join(f"{line}\r\n" for line in lines.values()))


def _proxy_of(settings: ProxySettings | None) -> HttpProxy | None:
    if settings is None:
        return None
    url = URL(settings.url)
    assert url.raw_host is not None, "BUG: an address without a host"
    assert url.port is not None, "BUG: an address without a port"
    lines = b""
    if settings.username is not None:
        password = settings.password.get_secret_value().rstrip("\r\n") if settings.password else ""
        authorization = basic_authorization(settings.username, password)
        lines = f"Proxy-Authorization: {authorization}\r\n".encode()
    return HttpProxy(url.raw_host, url.port, lines)


def basic_authorization(username: str, password: str) -> str:
    """Return the value of a header that holds a user and a password."""
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode("ascii")


class ClientCertificates:
    """The TLS of a client, which follows its files: new connections use what is in them now."""

    def __init__(
        self, settings: ClientTls, context: ExporterContext, protocols: tuple[str, ...] = ()
    ) -> None:
        """Read the files, or raise `BadConfig`. `protocols` are offered by ALPN."""
        self._settings = settings
        self._context = context
        self._protocols = protocols
        names = (settings.ca_file, settings.cert_file, settings.key_file)
        self._files = WatchedFiles(context.base_dir / name for name in names if name is not None)
        self._clock = context.seam.clock
        self._looked_s = self._clock.monotonic_s()
        # The system's authorities alone are read when they are needed: most addresses are plain.
        self._newest = self._load() if self._files.paths else None

    def current(self) -> ssl.SSLContext:
        """Return the context for the next connection; another one if the files have changed."""
        if self._newest is None:
            self._newest = self._load()
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s < LOOK_AGAIN_S:
            return self._newest
        self._looked_s = now_s
        if self._files.have_changed():
            try:
                self._newest = self._load()
            except BadConfig as error:
                log.warning("%s: certificates are not changed: %s", self._context.name, error)
            else:
                log.info("%s: certificates were read again", self._context.name)
        return self._newest

    def _load(self) -> ssl.SSLContext:
        tls = _client_context(self._settings, self._context)
        if self._protocols:
            tls.set_alpn_protocols(list(self._protocols))
        return tls


def _client_context(settings: ClientTls, context: ExporterContext) -> ssl.SSLContext:
    tls = ssl.create_default_context()
    if settings.ca_file is not None:
        path = context.base_dir / settings.ca_file
        try:
            tls.load_verify_locations(path)
        except (OSError, ValueError) as error:
            raise _unusable("ca_file", str(path), error) from None
    if settings.cert_file is not None:
        path = context.base_dir / settings.cert_file
        key_path = context.base_dir / settings.key_file if settings.key_file else None
        secret = settings.key_password
        try:
            # Always with a password: without one, OpenSSL would ask for it on the terminal.
            tls.load_cert_chain(path, key_path, lambda: secret.get_secret_value() if secret else "")
        except (OSError, ValueError) as error:
            raise _unusable("cert_file", str(path), error) from None
    return tls


def _unusable(key: str, path: str, error: Exception) -> BadConfig:
    why = error.strerror or type(error).__name__ if isinstance(error, OSError) else "not PEM"
    if isinstance(error, ssl.SSLError):
        why = (error.reason or "not PEM").replace("_", " ").lower()
    return BadConfig(
        f"`tls.{key}` cannot be used: {why}",
        hint="it must be a readable PEM file; a key needs its own certificate and password",
        path=path,
    )
