"""What every protocol over HTTP has in common, shown with one that only counts bytes."""

from __future__ import annotations

import ast
import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.receive.harness import Place, Reply, call

from holdfast.receive import http_app
from holdfast.receive.admission import Tokens, TokenSettings
from holdfast.receive.body import RequestLimits
from holdfast.receive.http_app import HttpApp, HttpRequest, RequestCounts
from holdfast.receive.responses import Reason, Refused, Response
from holdfast.seam import Seam
from holdfast.settings import Secret

PLAIN = {"content-type": "text/plain", "authorization": "Bearer secret"}


class CountBytes:
    """Answers how long a body is; nothing is appended."""

    is_counted = True

    def check_type(self, content_type: bytes) -> None:
        if content_type != b"text/plain":
            raise Refused(Reason.CONTENT_TYPE, "not plain", "send text/plain")

    async def handle(self, request: HttpRequest, body: bytes) -> Response:
        if body == b"fail":
            raise RuntimeError(body)
        return Response(200, b"%d bytes of %s" % (len(body), request.client.name.encode()))


async def nothing() -> None:
    pass


@pytest.fixture
def app(tmp_path: Path) -> Iterator[HttpApp]:
    place = Place(tmp_path)
    yield HttpApp(
        place.context(),
        RequestCounts(),
        endpoints={"/count": CountBytes()},
        pages={"/about": Response(200, b"counts bytes")},
        limits=RequestLimits(max_body_bytes=100),
        tokens=Tokens([TokenSettings(name="me", token=Secret("secret"))], Seam()),
        not_found_hint="send text to /count",
        on_close=nothing,
    )
    place.close()


def ask(app: HttpApp, body: bytes = b"", path: str = "/count", **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return call(app, body, path, {**PLAIN, **named})


def test_a_body_is_handed_to_the_endpoint_of_its_path(app: HttpApp) -> None:
    assert ask(app, b"abc").body == b"3 bytes of me"
    assert ask(app, b"abc", "/count/").body == b"3 bytes of me"
    assert ask(app, b"abc", "//count").body == b"3 bytes of me"
    assert ask(app, gzip.compress(b"abc"), content_encoding="gzip").body == b"3 bytes of me"
    assert call(app, path="/about", method="GET").body == b"counts bytes"


@pytest.mark.parametrize(
    ("reply_of", "status", "reason"),
    [
        (lambda app: ask(app, authorization="Bearer other"), 401, "unauthorized"),
        (lambda app: ask(app, content_type="text/html"), 415, "content_type"),
        (lambda app: ask(app, content_encoding="br"), 415, "encoding"),
        (lambda app: ask(app, b"x" * 101), 413, "too_large"),
        (lambda app: ask(app, path="/other"), 404, "not_found"),
        (lambda app: ask(app, b"fail"), 503, "unavailable"),
    ],
    ids=["token", "type", "encoding", "size", "path", "fault"],
)
def test_what_is_refused_is_counted_by_reason(
    app: HttpApp, reply_of: object, status: int, reason: str
) -> None:
    assert callable(reply_of)
    reply = reply_of(app)
    assert (reply.status, reply.document["reason"]) == (status, reason)
    statistics = app.statistics()
    assert statistics.rejected == {reason: 1}
    assert statistics.received == 1
    assert statistics.in_flight_requests == statistics.in_flight_bytes == 0


def test_a_method_that_a_path_does_not_know_is_answered(app: HttpApp) -> None:
    assert call(app, path="/count", method="GET").headers["allow"] == "POST"
    assert call(app, path="/about", method="POST").headers["allow"] == "GET, HEAD"


def test_an_endpoint_without_a_fast_path_is_never_asked_for_one(app: HttpApp) -> None:
    assert app.fast_targets == {}


def test_it_knows_no_signal() -> None:
    assert http_app.__file__ is not None
    folder = Path(http_app.__file__).parent
    for name in (
        "http_app",
        "admission",
        "responses",
        "body",
        "connection",
        "http_server",
    ):
        tree = ast.parse((folder / f"{name}.py").read_text())
        imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
        assert not [module for module in imported if module.startswith("holdfast.signals")], name
