"""Who may look, and who may act.

Figures are as open as `/metrics` is: they are on the same port. Events are not: whatever shows a
payload, and whatever changes something, needs the token, on loopback, too, because every user of a
machine can reach its loopback.

A browser is a second way in: any page that its user visits may send requests to 127.0.0.1. So

    the host      must be an address, `localhost`, or a name from the configuration. A name that an
                  attacker made resolve to 127.0.0.1 is none of these (DNS rebinding).
    the origin    must be our own, where a browser tells it, and `Sec-Fetch-Site` must not say that
                  another site asks. Following a link to a page is allowed: it changes nothing, and
                  no page may be shown inside of another.
    the token     is sent in a header by our own script. There is no cookie, so that nothing is sent
                  along by itself, and another origin cannot send that header unasked.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
import secrets
import stat
from collections.abc import Collection, Iterable
from pathlib import Path

from holdfast.receive.responses import Scope

TOKEN_FILE = "console.token"
TOKEN_BYTES = 24
# The longest token that is read from the file; a longer one was not written by us.
TOKEN_CHARACTERS_MAX = 256
CONTENT_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (
        b"content-security-policy",
        CONTENT_POLICY,
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)

log = logging.getLogger("holdfast.console")


class ConsoleGate:
    """Judges requests by their headers."""

    def __init__(self, token: str, host_names: Iterable[str] = ()) -> None:
        self._token = token.encode()
        self._host_names = frozenset({"localhost", *(name.lower() for name in host_names)})

    def stranger(self, scope: Scope) -> str | None:
        """Say why a request does not come from a user of this console; None if it does."""
        hosts = header(scope, b"host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return (
                "this name is not one of the console's: use an address or localhost, "
                "or add the name to admin.hosts"
            )
        origins = header(scope, b"origin")
        ours = {f"http://{hosts[0]}", f"https://{hosts[0]}"}
        if any(origin not in ours for origin in origins):
            return "a page of another origin asked"
        sites = header(scope, b"sec-fetch-site")
        if any(site not in ("same-origin", "none") for site in sites) and not _is_link(scope):
            return "a page of another site asked"
        return None

    def has_token(self, scope: Scope) -> bool:
        """Whether a request carries the token."""
        sent = header(scope, b"authorization")
        if len(sent) != 1:
            return False
        scheme, _, token = sent[0].partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.encode(), self._token)

    def _is_ours(self, host: str) -> bool:
        name = _without_port(host)
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.lower().rstrip(".") in self._host_names
        return True


def header(scope: Scope, name: bytes) -> list[str]:
    """Return the values of a header, as they came."""
    found: Collection[tuple[bytes, bytes]] = scope.get("headers") or ()
    return [value.decode("latin-1") for key, value in found if key == name]


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_link(scope: Scope) -> bool:
    """Whether somebody followed a link to a page."""
    modes, targets = header(scope, b"sec-fetch-mode"), header(scope, b"sec-fetch-dest")
    return scope["method"] == "GET" and modes == ["navigate"] and targets == ["document"]


def token_of(data_dir: Path) -> str:
    """Return the token in the data directory, making one that only its owner can read.

    It stays over restarts, so that a browser need not be told again. One that others can read is
    replaced: it may be known by now.
    """
    path = data_dir / TOKEN_FILE
    try:
        with path.open(encoding="ascii") as file:
            known = file.read(TOKEN_CHARACTERS_MAX + 1).strip()
            is_private = not os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        if is_private and known and len(known) <= TOKEN_CHARACTERS_MAX:
            return known
        log.warning("console: %s is replaced: others could read it, or it was empty", path)
    except FileNotFoundError:
        pass
    except UnicodeDecodeError:
        log.warning("console: %s is replaced: it is not text", path)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    data_dir.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token + "\n")
    new.replace(path)
    return token
