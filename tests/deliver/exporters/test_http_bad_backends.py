"""Backends that hang, close, drip, flood or talk nonsense: a clear verdict, and nothing grows."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
from typing import Any

import pytest
import uvloop
from tests.deliver.exporters import sending
from tests.deliver.exporters.backend import (
    Backend,
    Step,
    answer,
    close_at_once,
    close_mid_body,
    endless_body,
    endless_headers,
    hang_after_headers,
    hang_before_headers,
    raw,
    slow_drip,
)
from tests.deliver.exporters.sending import context, event, events, send, send_one, with_exporter
from tests.patience import PATIENCE_S, SCALE, until
from tests.ports import free_port

from holdfast.deliver.exporter import Answer, Exporter, Failure, FailureClass
from holdfast.deliver.exporters import http

PATIENT = {
    "connect_timeout": PATIENCE_S,
    "read_timeout": PATIENCE_S,
    "total_timeout": PATIENCE_S,
}
# For what never comes; anything else may take its time.
SHORT = {**PATIENT, "read_timeout": 1.0 * SCALE}


def exporter(url: str, **config: Any) -> Exporter:
    return http.make(http.Config(url=url, **config), context())


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (hang_before_headers, "timeout"),
        (close_at_once, "disconnected"),
        (raw(b"\x16\x03\x01 not http at all\r\n\r\n"), "not_http"),
        (raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "not_http"),
        (raw(b"HTTP/1.1 banana\r\n\r\n"), "not_http"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n"), "not_http"),
        (raw(b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n"), "not_http"),
        (raw(b"HTTP/1.1 200 OK\r\nX: y"), "disconnected"),
        (raw(b"\x00" * 100_000), "not_http"),
        (endless_headers, "not_http"),
        (
            raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnot a size\r\n"),
            "not_http",
        ),
    ],
)
def test_no_answer_is_transient_and_may_have_been_delivered(
    backend: Backend, step: Step, code: str
) -> None:
    backend.steps = [step, answer(201)]
    times = SHORT if code == "timeout" else PATIENT
    failed, then = send(exporter(backend.url, **times), [event()], [event()])
    failure = failed.failed[0]
    assert (failure.kind, failure.code) == (FailureClass.TRANSIENT, code)
    assert failure.maybe_delivered
    assert then == Answer()


@pytest.mark.parametrize(
    "step",
    [
        hang_after_headers(201, b"{"),
        close_mid_body(200),
        endless_body(200),
        slow_drip(200),
        answer(200, b"xyz", Content_Encoding="gzip"),
    ],
)
def test_a_status_is_enough_for_a_single_event(backend: Backend, step: Step) -> None:
    backend.steps = [step, answer(201)]
    assert send(exporter(backend.url), [event()], [event()]) == [Answer(), Answer()]
    assert backend.bodies == [sending.PAYLOAD] * 2


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (hang_after_headers(200, b"{"), "timeout"),
        (close_mid_body(200), "disconnected"),
        (endless_body(200), "batch_answer"),
        (answer(200, b"xyz", Content_Encoding="gzip"), "batch_answer"),
    ],
)
def test_a_batch_needs_the_whole_answer(backend: Backend, step: Step, code: str) -> None:
    backend.steps = [step]
    times = SHORT if code == "timeout" else PATIENT
    (result,) = send(exporter(backend.url, dialect="batch_array", **times), events(2))
    assert set(result.failed) == {0, 1}
    failure = result.failed[1]
    assert failure.kind is FailureClass.TRANSIENT
    assert failure.maybe_delivered
    assert failure.code == code


def test_an_answer_that_never_ends_is_cut_by_the_total_time(backend: Backend) -> None:
    backend.steps = [slow_drip(200)]
    times = {
        "connect_timeout": 0.5 * SCALE,
        "read_timeout": "60s",
        "total_timeout": 0.5 * SCALE,
    }
    (result,) = send(exporter(backend.url, dialect="batch_array", **times), events(1))
    assert result.failed[0].code == "timeout"


@pytest.mark.parametrize("step", [hang_after_headers(503), endless_body(503), close_mid_body(503)])
def test_a_refusal_counts_whatever_becomes_of_its_body(backend: Backend, step: Step) -> None:
    backend.steps = [step]
    (result,) = send(exporter(backend.url, dialect="batch_array"), events(1))
    assert result.failed[0].code == "503"


def test_of_an_endless_answer_only_so_much_is_read(backend: Backend) -> None:
    backend.steps = [endless_body(200)]

    async def use(started: Exporter) -> None:
        for _ in range(20):
            await started.send([event()])
        await asyncio.to_thread(until, lambda: backend.open_connections <= 2)

    with_exporter(exporter(backend.url, max_response_bytes="64KB", max_connections=2), use)
    # What is read, and what the kernel holds for both ends: per send.
    assert backend.sent_endlessly_bytes < 20 * 16 * 2**20


def test_a_gzip_bomb_in_an_answer_stays_small(backend: Backend) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    backend.steps = [answer(200, bomb, Content_Encoding="gzip")]
    (result,) = send(exporter(backend.url, dialect="batch_array"), events(1))
    assert result.failed[0].code == "batch_answer"


def test_a_body_that_nobody_reads_ends_with_the_total_time() -> None:
    times = {
        "connect_timeout": 0.5 * SCALE,
        "read_timeout": "60s",
        "total_timeout": 0.5 * SCALE,
    }

    async def use(started: Exporter) -> list[Failure]:
        before = len(os.listdir("/proc/self/fd"))
        failures = [(await started.send([huge])).failed[0] for _ in range(3)]
        # Nor does a connection stay behind that waits for somebody to read.
        await asyncio.to_thread(until, lambda: len(os.listdir("/proc/self/fd")) <= before)
        return failures

    huge = event(payload=b" " * 30_000_000)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # it never accepts
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        failures = with_exporter(exporter(url, **times), use)
    assert {(f.code, f.maybe_delivered) for f in failures} == {("timeout", True)}


def test_no_connection_is_certainly_not_delivered() -> None:
    failure = send_one(exporter(f"http://127.0.0.1:{free_port()}"))
    assert failure is not None
    assert (failure.kind, failure.code) == (FailureClass.TRANSIENT, "connect")
    assert not failure.maybe_delivered
    assert "refused" in failure.reason


def test_an_unknown_host_is_transient() -> None:
    failure = send_one(exporter("http://no-such-host.invalid"))
    assert failure is not None
    assert (failure.kind, failure.code) == (FailureClass.TRANSIENT, "dns")
    assert not failure.maybe_delivered


def test_connecting_has_its_own_time() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        waiting = []
        try:
            for _ in range(8):  # fill the backlog, so that no further connection is taken
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(address)
                waiting.append(filler)
            failure = send_one(exporter(f"http://127.0.0.1:{address[1]}", connect_timeout="200ms"))
        finally:
            for filler in waiting:
                filler.close()
    assert failure is not None
    assert (failure.kind, failure.code) == (FailureClass.TRANSIENT, "connect_timeout")
    assert not failure.maybe_delivered


def test_start_does_not_need_the_backend() -> None:
    async def use(started: Exporter) -> None:
        pass

    with_exporter(exporter(f"http://127.0.0.1:{free_port()}"), use)


def test_a_backend_that_closes_after_each_answer(backend: Backend) -> None:
    backend.steps = [raw(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")]
    assert send(exporter(backend.url), *([e] for e in events(3))) == [Answer()] * 3
    assert backend.accepted == 3


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (answer(201), None),
        (hang_before_headers, FailureClass.TRANSIENT),
        (close_at_once, FailureClass.TRANSIENT),
        (endless_body(200), None),
        (raw(b"nonsense\r\n\r\n"), FailureClass.TRANSIENT),
    ],
)
def test_the_same_under_uvloop(backend: Backend, step: Step, kind: FailureClass | None) -> None:
    backend.steps = [step]

    async def one() -> Failure | None:
        made = exporter(backend.url, **(SHORT if step is hang_before_headers else PATIENT))
        await made.start()
        result = await made.send([event()])
        await made.close()
        return result.failed.get(0)

    failure = uvloop.run(one())
    assert (failure.kind if failure else None) is kind


def test_a_cancelled_send_leaves_no_connection(backend: Backend) -> None:
    backend.steps = [hang_before_headers, answer(201)]

    async def use(started: Exporter) -> Answer:
        sending_one = asyncio.create_task(started.send([event()]))
        await asyncio.to_thread(until, lambda: bool(backend.requests))
        sending_one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending_one
        return await started.send([event()])

    assert with_exporter(exporter(backend.url, max_connections=1), use) == Answer()
    assert backend.bodies[1] == sending.PAYLOAD
