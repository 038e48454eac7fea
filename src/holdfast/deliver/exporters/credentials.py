"""Credentials for HTTP backends: API key, bearer token, basic, and OAuth2 client credentials.

A secret is read at the moment a header is made. It is in no reason, no `repr` and no log line:
whatever a token endpoint answers is judged by its status and its fields, and never quoted.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol
from urllib.parse import quote_plus, urlencode

import orjson
from pydantic import AfterValidator, Field, field_validator
from yarl import URL

from holdfast.deliver.exporter import Failure, FailureClass
from holdfast.deliver.exporters.classify import SendFailed, failure_of_status, is_success
from holdfast.deliver.exporters.http_client import (
    CheckedUrl,
    HttpClient,
    basic_authorization,
)
from holdfast.deliver.exporters.http_connections import HttpAnswer
from holdfast.errors import BadConfig
from holdfast.seam.clock import Clock
from holdfast.settings import DurationS, Secret, Settings

# A token without `expires_in` is asked for again after this time.
UNKNOWN_LIFETIME_S = 300.0
# No token is trusted for longer, whatever its endpoint says.
LONGEST_LIFETIME_S = 86_400.0
# A token is renewed this long before it ends; one that lives for less than five minutes, after nine
# tenths of its time.
RENEW_BEFORE_S = 30.0
RENEW_AFTER_PART = 0.9

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# What the client itself sets; a second one would make another request of it.
_OWN_HEADERS = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "host"}
    | {"proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"}
)


def _checked_header_name(name: str) -> str:
    """Return a name that a header may have, and that is not ours to set."""
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a header")
    if name.lower() in _OWN_HEADERS:
        raise ValueError(f"the header {name!r} is set by the exporter itself")
    return name


def _with_checked_names(headers: dict[str, Secret]) -> dict[str, Secret]:
    for name in headers:
        _checked_header_name(name)
    return headers


HeaderName = Annotated[str, AfterValidator(_checked_header_name)]
# The names are checked together, not as the type of a key: a mistake is then reported for
# `headers`, which is in the file, and not for a key of it.
ExtraHeaders = Annotated[
    dict[str, Secret], Field(max_length=64), AfterValidator(_with_checked_names)
]


class ApiKeyAuth(Settings):
    """A key in a header of its own."""

    type: Literal["api_key"]
    key: Secret
    """The key."""
    header: HeaderName = "X-API-Key"
    """Name of the header."""


class BearerAuth(Settings):
    """A token in `Authorization: Bearer`."""

    type: Literal["bearer"]
    token: Secret
    """The token."""


class BasicAuth(Settings):
    """A user and a password in `Authorization: Basic`."""

    type: Literal["basic"]
    username: str
    """The user."""
    password: Secret
    """The password."""

    @field_validator("username")
    @classmethod
    def _has_no_colon(cls, value: str) -> str:
        if ":" in value:
            raise ValueError("a user name for basic authentication cannot hold a colon")
        return value


class OAuth2Auth(Settings):
    """OAuth2 client credentials: a token is fetched, kept until shortly before it ends, renewed."""

    type: Literal["oauth2"]
    token_url: CheckedUrl
    """Address of the token endpoint."""
    client_id: str
    """Our name there."""
    client_secret: Secret
    """Our password there."""
    scope: str | None = None
    """Scopes to ask for, separated by spaces."""
    audience: str | None = None
    """Audience to ask for, where the endpoint wants one."""
    client_auth: Literal["basic", "body"] = "basic"
    """Where name and password are sent: in the Authorization header, or in the body."""
    timeout: DurationS = Field(default=15.0, gt=0)
    """How long the token endpoint may take."""


AuthSettings = Annotated[
    ApiKeyAuth | BearerAuth | BasicAuth | OAuth2Auth, Field(discriminator="type")
]


class Credentials(Protocol):
    """What a request needs to be let in."""

    async def headers(self) -> dict[str, str]:
        """Return the headers for the next request; raises SendFailed if they cannot be had."""

    def refused(self, headers: Mapping[str, str]) -> bool:
        """Take note that these were answered with 401; True if trying once more makes sense."""


class FixedCredentials:
    """Headers that never change.

    A 401 is final for these: the same header would be refused again, and some backends lock an
    account after a few tries.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = dict(headers)

    async def headers(self) -> dict[str, str]:
        return dict(self._headers)

    def refused(self, headers: Mapping[str, str]) -> bool:
        return False


class OAuth2Credentials:
    """A bearer token from a token endpoint, shared by all requests of one exporter."""

    def __init__(self, settings: OAuth2Auth, client: HttpClient, clock: Clock) -> None:
        self._settings = settings
        self._client = client
        self._clock = clock
        self._token = ""
        self._renew_at_s = -math.inf
        self._fetching = asyncio.Lock()

    async def headers(self) -> dict[str, str]:
        async with self._fetching:  # several lanes wait for one token, and do not fetch one each
            if not self._token or self._clock.monotonic_s() >= self._renew_at_s:
                await self._fetch()
            return {"Authorization": f"Bearer {self._token}"}

    def refused(self, headers: Mapping[str, str]) -> bool:
        # Compared, because several sends may be refused with the same old token: the second of
        # them must not throw away the new one that the first has fetched.
        if headers.get("Authorization") == f"Bearer {self._token}":
            self._token = ""
        return True

    async def _fetch(self) -> None:
        # Before the request: the lifetime began somewhere between asking and hearing the answer,
        # and the earlier moment is the safe one.
        asked_at_s = self._clock.monotonic_s()
        try:
            async with asyncio.timeout(self._settings.timeout):
                reply = await self._client.post(
                    URL(self._settings.token_url, encoded=True),
                    urlencode(self._form()).encode(),
                    self._request_headers(),
                    needs_body=True,
                )
        except TimeoutError:
            raise _no_token("did not answer in time", FailureClass.TRANSIENT) from None
        except SendFailed as failed:
            kind = failed.failure.kind
            raise _no_token(f"cannot be reached: {failed.failure.reason}", kind) from None
        self._token, lifetime_s = _token_of(reply)
        kept_s = max(lifetime_s * RENEW_AFTER_PART, lifetime_s - RENEW_BEFORE_S)
        self._renew_at_s = asked_at_s + kept_s

    def _form(self) -> dict[str, str]:
        form = {"grant_type": "client_credentials"}
        if self._settings.scope:
            form["scope"] = self._settings.scope
        if self._settings.audience:
            form["audience"] = self._settings.audience
        if self._settings.client_auth == "body":
            form["client_id"] = self._settings.client_id
            form["client_secret"] = self._settings.client_secret.get_secret_value().strip()
        return form

    def _request_headers(self) -> dict[str, str]:
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        if self._settings.client_auth == "basic":
            # RFC 6749, 2.3.1: both are form-encoded before they are joined.
            secret = self._settings.client_secret.get_secret_value().strip()
            headers["Authorization"] = basic_authorization(
                quote_plus(self._settings.client_id), quote_plus(secret)
            )
        return headers


def make_credentials(
    settings: AuthSettings | None, extra: Mapping[str, Secret], client: HttpClient, clock: Clock
) -> tuple[dict[str, str], Credentials]:
    """Return the headers of every request, and what lets it in."""
    headers = {name: _header_value(f"headers.{name}", value) for name, value in extra.items()}
    if isinstance(settings, OAuth2Auth):
        return headers, OAuth2Credentials(settings, client, clock)
    return headers, FixedCredentials(_fixed_headers(settings))


def _fixed_headers(settings: ApiKeyAuth | BearerAuth | BasicAuth | None) -> dict[str, str]:
    if isinstance(settings, ApiKeyAuth):
        return {settings.header: _header_value("auth.key", settings.key)}
    if isinstance(settings, BearerAuth):
        return {"Authorization": f"Bearer {_header_value('auth.token', settings.token)}"}
    if isinstance(settings, BasicAuth):
        password = settings.password.get_secret_value().rstrip("\r\n")
        return {"Authorization": basic_authorization(settings.username, password)}
    return {}


def _header_value(key: str, secret: Secret) -> str:
    """Return a secret for use in a header; a line break at the end comes from a file."""
    value = secret.get_secret_value().strip()
    if not value or any(character < " " or character == "\x7f" for character in value):
        raise BadConfig(
            f"`{key}` is empty or holds characters that no header can hold",
            hint="check the variable or the file it is read from",
        )
    return value


def _token_of(reply: HttpAnswer) -> tuple[str, float]:
    """Return token and lifetime in seconds.

    Judged by status and fields, never quoted: an error of a token endpoint often repeats the
    request, and the request holds the secret.
    """
    if not is_success(reply.status):
        failure = failure_of_status(reply.status, who="the token endpoint")
        # 400 is how OAuth2 says invalid_client and invalid_scope.
        transient = failure.kind is FailureClass.TRANSIENT
        kind = FailureClass.TRANSIENT if transient else FailureClass.AUTH
        raise _no_token(f"answered {reply.status}", kind, str(reply.status))
    fields = _fields(reply.body)
    if fields is None:
        raise _no_token("did not answer with JSON", FailureClass.TRANSIENT)
    token, lifetime = fields.get("access_token"), fields.get("expires_in")
    if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
        raise _no_token("answered without a usable `access_token`", FailureClass.AUTH)
    if str(fields.get("token_type", "bearer")).lower() != "bearer":
        raise _no_token("gave a token that is no bearer token", FailureClass.AUTH)
    return token, _lifetime_s(lifetime)


def _lifetime_s(given: Any) -> float:
    try:
        lifetime_s = float(given)
    except (TypeError, ValueError):
        return UNKNOWN_LIFETIME_S
    if math.isnan(lifetime_s):
        return UNKNOWN_LIFETIME_S
    return min(max(lifetime_s, 0.0), LONGEST_LIFETIME_S)


def _fields(body: bytes | None) -> dict[str, Any] | None:
    try:
        fields = orjson.loads(body or b"")
    except orjson.JSONDecodeError:
        return None
    return fields if isinstance(fields, dict) else None


def _no_token(why: str, kind: FailureClass, code: str = "") -> SendFailed:
    """Nothing but AUTH or TRANSIENT: no trouble with a token may ever look like a fault of the
    event, which would end as a dead letter.
    """
    kind = kind if kind is FailureClass.AUTH else FailureClass.TRANSIENT
    return SendFailed(Failure(kind, f"no token: the token endpoint {why}", f"token{code}"))
