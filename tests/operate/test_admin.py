"""The admin port's app: health, readiness with its reasons, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import orjson
import pytest

from holdfast.operate.metrics import Sample
from holdfast.operate.monitoring import AdminApp, AdminPort


class Watched:
    """What a test says of a gateway."""

    def __init__(self, *reasons: str) -> None:
        self._reasons = reasons

    async def not_ready(self) -> list[str]:
        return list(self._reasons)

    async def records(self) -> list[Sample]:
        return [Sample("gateway.process.uptime_seconds", {"worker": "0"}, 1.5)]


def ask(path: str, *reasons: str, method: str = "GET") -> tuple[int, dict[bytes, bytes], bytes]:
    said: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        said.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": method, "path": path}
    asyncio.run(AdminApp(Watched(*reasons))(scope, receive, send))
    start, body = said
    return start["status"], dict(start["headers"]), body["body"]


def test_health_is_that_it_answers() -> None:
    status, _, body = ask("/healthz", "not ready at all")
    assert (status, orjson.loads(body)) == (200, {"status": "ok"})


def test_readiness_says_why_not() -> None:
    status, _, body = ask("/readyz")
    assert (status, orjson.loads(body)) == (200, {"ready": True, "reasons": []})
    status, _, body = ask("/readyz", "the gateway is replaying")
    assert status == 503
    assert orjson.loads(body) == {"ready": False, "reasons": ["the gateway is replaying"]}


def test_metrics_are_prometheus_text() -> None:
    status, headers, body = ask("/metrics")
    assert status == 200
    assert headers[b"content-type"].startswith(b"text/plain; version=0.0.4")
    assert int(headers[b"content-length"]) == len(body)
    assert b'\ngateway_process_uptime_seconds{worker="0"} 1.5\n' in body


def test_anything_else_is_told() -> None:
    assert ask("/")[0] == 404
    status, headers, _ = ask("/metrics", method="POST")
    assert (status, headers[b"allow"]) == (405, b"GET, HEAD")
    assert ask("/healthz", method="HEAD")[0] == 200


@pytest.mark.parametrize(
    ("listens", "reached"),
    [("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]"), ("10.0.0.5", "10.0.0.5")],
)
def test_the_address_of_the_console_is_one_that_a_browser_can_go_to(
    listens: str, reached: str
) -> None:
    port = AdminPort([f"http://{listens}:8480"], "a-token")
    assert port.console({}) == {"address": f"http://{reached}:8480", "token": "a-token"}
