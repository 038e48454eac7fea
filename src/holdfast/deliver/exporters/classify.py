"""Telling failures of HTTP apart: by status, by Retry-After, and by what broke underneath.

| what happened                                   | class       | about           |
|-------------------------------------------------|-------------|-----------------|
| 2xx                                             | delivered   |                 |
| 400, 422                                        | `permanent` | the event       |
| 413                                             | `too_large` | the event       |
| 401, 403, 407, a certificate                    | `auth`      | the destination |
| anything else: 3xx (never followed), other 4xx, | `transient` | the destination |
| 5xx, no answer, half an answer                  |             |                 |

A 404 or 409 is as little about one event as a 503 is: an ingress in a rolling update says it to
all of them.

Reasons are made from the status and from our own words only. What a backend writes into its answer
may repeat the event, or our credentials, so it is never quoted.
"""

from __future__ import annotations

import email.utils
import http
import math
import os
import socket
import ssl
from datetime import UTC

from yarl import URL

from holdfast.deliver.exporter import Failure, FailureClass
from holdfast.deliver.exporters.http_failures import (
    HttpConnectionEnded,
    HttpConnectTimedOut,
    HttpFailed,
    HttpNotConnected,
    HttpProxyRefused,
    HttpTimedOut,
)

AUTH_STATUSES = frozenset({401, 403, 407})
TOO_LARGE_STATUS = 413
PERMANENT_STATUSES = frozenset({400, 422})
# A gateway says this of a server behind it, which may have done the work anyway.
UNKNOWN_OUTCOME_STATUSES = frozenset({502, 504})

LOCATION_CHARACTERS_MAX = 200

_UNKNOWN_HOST = "the host name is not known here; check `url`"

# How OpenSSL names it when one side does not like the other's certificate.
_CERTIFICATE_REASONS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "DECRYPT_ERROR")


class SendFailed(Exception):
    """A request that got no usable answer; `failure` is for the loop."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def is_success(status: int) -> bool:
    """Whether a status says that the request was taken."""
    return 200 <= status < 300  # noqa: PLR2004


def failure_of_status(
    status: int, *, who: str = "the backend", location: str = "", retry_after_s: float | None = None
) -> Failure:
    """Return what a status other than 2xx means."""
    code, said = str(status), f"{who} answered {status}{_phrase(status)}"
    if status in AUTH_STATUSES:
        return Failure(FailureClass.AUTH, f"{said}; check the credentials", code)
    if status == TOO_LARGE_STATUS:
        return Failure(FailureClass.TOO_LARGE, said, code)
    if status in PERMANENT_STATUSES:
        return Failure(FailureClass.PERMANENT, said, code)
    return Failure(
        FailureClass.TRANSIENT,
        said + _hint(status, location),
        code,
        retry_after_s=retry_after_s,
        maybe_delivered=status in UNKNOWN_OUTCOME_STATUSES,
    )


def parse_retry_after_s(value: str | None, now_ns: int, most_s: float) -> float | None:
    """Return how long a Retry-After header asks to wait, at most `most_s`; None if it is none."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = _seconds_until(value, now_ns)
    if math.isnan(seconds):
        return None
    return min(max(seconds, 0.0), most_s)


def failure_of_exception(error: HttpFailed) -> Failure:
    """Return what a failed request means.

    `maybe_delivered` is set from the moment in which the request may have been read.
    """
    if isinstance(error, HttpProxyRefused):
        return _refused_by_proxy(error.status)
    if isinstance(error.cause, ssl.SSLError):
        return _tls_failure(error.cause, connected=not isinstance(error, HttpNotConnected))
    if isinstance(error, HttpConnectTimedOut):
        return _transient("no connection within `connect_timeout`", "connect_timeout")
    if isinstance(error, HttpNotConnected):
        return _not_connected(error)
    if isinstance(error, HttpTimedOut):
        return _transient("no answer in time", "timeout", maybe_delivered=True)
    if isinstance(error, HttpConnectionEnded):
        reason = "the connection ended before the answer was complete"
        return _transient(reason, "disconnected", maybe_delivered=True)
    return _transient("the answer is not HTTP", "not_http", maybe_delivered=True)


def failure_of_connecting(error: OSError) -> Failure:
    """Return what it means that there is no connection, where no HTTP client stands between."""
    if isinstance(error, ssl.SSLError):
        return _tls_failure(error, connected=False)
    return _not_connected(HttpNotConnected(error))


def _not_connected(error: HttpNotConnected) -> Failure:
    if isinstance(error.cause, socket.gaierror):
        return _transient(_UNKNOWN_HOST, "dns")
    why = _why(getattr(error.cause, "errno", None))
    if error.to_proxy:
        return _transient(f"no connection to the proxy{why}", "proxy_connect")
    return _transient(f"no connection{why}", "connect")


def _why(number: int | None) -> str:
    return f": {os.strerror(number)}" if number else ""


def _transient(reason: str, code: str, maybe_delivered: bool = False) -> Failure:
    return Failure(FailureClass.TRANSIENT, reason, code, maybe_delivered=maybe_delivered)


def _phrase(status: int) -> str:
    try:
        return f" {http.HTTPStatus(status).phrase}"
    except ValueError:
        return ""


def _hint(status: int, location: str) -> str:
    if 300 <= status < 400:  # noqa: PLR2004
        where = f"put the final address{_shown(location)} into `url`"
        return f"; redirects are never followed, {where}"
    if status in (404, 405):
        return "; check `url` and `path`"
    if status == 415:  # noqa: PLR2004
        return "; check `dialect` and `compression`"
    return ""


def _shown(location: str) -> str:
    """Return a Location without what may be secret in it: no user, no query, no fragment."""
    try:
        url = URL(location[: LOCATION_CHARACTERS_MAX * 4])
        shown = f"{url.origin()}{url.raw_path}" if url.is_absolute() else url.raw_path
    except ValueError:
        return ""
    if not shown.isascii() or not shown.isprintable():
        return ""
    return f" ({shown[:LOCATION_CHARACTERS_MAX]})" if shown else ""


def _seconds_until(date: str, now_ns: int) -> float:
    try:
        moment = email.utils.parsedate_to_datetime(date)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp() - now_ns / 1e9
    except (ValueError, OverflowError):
        return math.nan


def _refused_by_proxy(status: int) -> Failure:
    if status in AUTH_STATUSES:
        return failure_of_status(status, who="the proxy")
    return _transient(f"the proxy answered {status}{_phrase(status)}", f"proxy_{status}")


def _tls_failure(error: ssl.SSLError, *, connected: bool) -> Failure:
    reason = (error.reason or "").upper()
    if isinstance(error, ssl.SSLCertVerificationError):
        # The text of the check ("certificate has expired") is OpenSSL's, and speaks of no secret.
        why = error.verify_message or "verification failed"
        hint = "check `tls.ca_file`, the host in `url` and the clock"
        return Failure(
            FailureClass.AUTH, f"the server's certificate is not accepted: {why}; {hint}", "tls"
        )
    if any(word in reason for word in _CERTIFICATE_REASONS):
        hint = "check `tls.cert_file` and `tls.key_file`"
        why = f"the server does not accept our certificate, or wants one ({reason})"
        return Failure(FailureClass.AUTH, f"{why}; {hint}", "tls")
    hint = "does the port of `url` speak TLS, and in a version we know?"
    return _transient(f"TLS failed ({reason or 'closed'}); {hint}", "tls", connected)
