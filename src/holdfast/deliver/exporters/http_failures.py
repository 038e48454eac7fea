"""Why a request over HTTP has no answer, as far as a connection can tell."""

from __future__ import annotations


class HttpFailed(Exception):
    """A request without an answer. `cause` is what broke underneath, if anything is known."""

    def __init__(self, cause: BaseException | None = None) -> None:
        super().__init__(str(cause or ""))
        self.cause = cause


class HttpNotConnected(HttpFailed):
    """There was no connection to send anything on."""

    def __init__(self, cause: BaseException | None = None, *, to_proxy: bool = False) -> None:
        super().__init__(cause)
        self.to_proxy = to_proxy


class HttpConnectTimedOut(HttpFailed):
    """Connecting took too long."""


class HttpProxyRefused(HttpFailed):
    """The proxy does not lead where we want to go."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


class HttpTimedOut(HttpFailed):
    """The answer did not come in time."""


class HttpConnectionEnded(HttpFailed):
    """The connection ended before the answer did."""


class NotHttp(HttpFailed):
    """What came is not an answer, or has a head without an end."""
