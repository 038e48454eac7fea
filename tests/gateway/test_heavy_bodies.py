"""Bodies that are made to be heavy: others are served meanwhile, and memory is bounded.

How long others waited is printed (`pytest -s`), not asserted: that depends on the machine. That no
work is done in one piece is what tests/receive/test_batches.py and test_checks.py see to.
"""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import NamedTuple

import orjson
import pytest
from tests.gateway.conftest import MakeBackend, MakeGateway
from tests.gateway.processes import Gateway, exporter
from tests.signals.events import run_event

MB = 1024 * 1024


class Heavy(NamedTuple):
    """A body, what it is answered with, and how much more memory it may take."""

    path: str
    body: bytes
    status: int
    more_bytes_max: int


def brackets() -> Heavy:
    """32 MB; gzipped they are 32 kB."""
    body = b"[" * 16_000_001 + b"]" * 16_000_001
    return Heavy("/api/v1/lineage/batch", body, 400, 100 * MB)


def bad_facets() -> Heavy:
    """23 MB."""
    event = run_event()
    event["run"]["facets"] = {f"f{number}": 1 for number in range(1_500_000)}
    return Heavy("/api/v1/lineage", orjson.dumps(event), 400, 100 * MB)


def long_text() -> Heavy:
    """30 MB, and nothing wrong with it: it is stored, and sent."""
    event = run_event()
    facet = {"_producer": "https://example.com/", "_schemaURL": "https://example.com/"}
    event["run"]["facets"] = {"own": {**facet, "text": "x" * (30 * MB)}}
    return Heavy("/api/v1/lineage", orjson.dumps(event), 200, 200 * MB)


@pytest.mark.slow
@pytest.mark.parametrize("heavy", [brackets, bad_facets, long_text])
def test_one_heavy_body_costs_others_little(
    heavy: Callable[[], Heavy], make_gateway: MakeGateway, make_backend: MakeBackend
) -> None:
    gateway = make_gateway({"backend": exporter(make_backend().url)})
    path, body, status, more_bytes_max = heavy()
    good = orjson.dumps(run_event())
    post(gateway, "/api/v1/lineage", good)
    before_bytes = gateway.metric("gateway_process_resident_bytes")
    waits_s: list[float] = []
    largest_bytes = before_bytes
    over = threading.Event()

    def others() -> None:
        nonlocal largest_bytes
        while not over.is_set():
            began_s = time.monotonic()
            assert post(gateway, "/api/v1/lineage", good) == 200
            waits_s.append(time.monotonic() - began_s)
            found_bytes = gateway.metric("gateway_process_resident_bytes")
            largest_bytes = max(largest_bytes, found_bytes)

    beside = threading.Thread(target=others)
    beside.start()
    assert post(gateway, path, body) == status
    over.set()
    beside.join()
    more_bytes = largest_bytes - before_bytes
    longest_ms = max(waits_s) * 1000
    print(f"longest wait {longest_ms:.0f} ms, {more_bytes / 2**20:.0f} MB more")  # noqa: T201
    assert more_bytes < more_bytes_max


def post(gateway: Gateway, path: str, body: bytes) -> int:
    """Return the status that a body is answered with."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{gateway.url}{path}", body, headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
