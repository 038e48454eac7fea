"""The otlp exporter: what is joined and cut, what every answer means, over gRPC and HTTP."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
import zstandard
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from pydantic import ValidationError
from tests.deliver.exporters.backend import Backend, answer
from tests.deliver.exporters.sending import context, event, send, with_exporter
from tests.grpc.harness import served
from tests.patience import PATIENCE_S, until_async
from tests.ports import free_port
from tests.support.certificates import Certificates, make_certificates
from tests.support.collector import Collector

from holdfast.deliver.exporter import Answer, Exporter, FailureClass
from holdfast.deliver.exporters import http_client, otlp
from holdfast.deliver.exporters.otlp_transport import failure_of_call
from holdfast.grpc.status import CallFailed, StatusCode, trailers_of
from holdfast.receive.listening import ListenerTls
from holdfast.signals.event import Event
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.signal import Form

Code = grpc.StatusCode
KB = 1024


def traces(*names: str, padding: int = 0) -> bytes:
    """Return a request with one resource for each name."""
    request = ExportTraceServiceRequest()
    for name in names:
        span = request.resource_spans.add().scope_spans.add().spans.add()
        span.name, span.trace_state = name, "x" * padding
    return request.SerializeToString()


def logs(text: str) -> bytes:
    request = ExportLogsServiceRequest()
    request.resource_logs.add().scope_logs.add().log_records.add().severity_text = text
    return request.SerializeToString()


def names_of(body: bytes) -> list[str]:
    request = ExportTraceServiceRequest.FromString(body)
    return [one.scope_spans[0].spans[0].name for one in request.resource_spans]


def unit(seq: int, payload: bytes, kind: OtlpKind = OtlpKind.TRACES, **headers: str) -> Event:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return event(seq, payload, slot=kind.slot, signal=kind.value, headers=given)


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.stop(None).wait()


def exporter(url: str, **config: Any) -> Exporter:
    return otlp.make(otlp.Config(url=url, **config), context())


def aborting(code: grpc.StatusCode, message: str = "no") -> Callable[..., bytes]:
    def decide(body: bytes, call: grpc.ServicerContext) -> bytes:
        call.abort(code, message)
        raise AssertionError

    return decide


# What goes out.


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_requests_that_follow_each_other_are_joined(collector: Collector, compression: str) -> None:
    first, second = traces("a", "b"), traces("c")
    made = exporter(collector.url, compression=compression)
    assert send(made, [unit(1, first), unit(2, second)]) == [Answer()]
    [(path, body, metadata)] = collector.seen
    assert path == OtlpKind.TRACES.grpc_path
    assert body == first + second
    assert names_of(body) == ["a", "b", "c"]
    assert metadata["user-agent"].startswith("holdfast/")


def test_only_equal_headers_and_signals_are_joined(collector: Collector) -> None:
    units = [
        unit(1, traces("a"), x_tenant="one", client="agent"),
        unit(2, traces("b"), x_tenant="one", client="other"),
        unit(3, traces("c"), x_tenant="two"),
        unit(4, logs("d"), OtlpKind.LOGS, x_tenant="two"),
    ]
    assert send(exporter(collector.url), units) == [Answer()]
    assert [(path, metadata.get("x-tenant")) for path, _, metadata in collector.seen] == [
        (OtlpKind.TRACES.grpc_path, "one"),
        (OtlpKind.TRACES.grpc_path, "two"),
        (OtlpKind.LOGS.grpc_path, "two"),
    ]
    assert names_of(collector.bodies[0]) == ["a", "b"]
    assert all("client" not in metadata for _, _, metadata in collector.seen)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_kept_header_that_cannot_be_sent_costs_its_own_events_alone(protocol: str) -> None:
    units = [unit(0, traces("a"), x_tenant="a\r\nb"), unit(1, traces("b"), x_tenant=" a")]
    (answer_,) = send(exporter("http://127.0.0.1:1", protocol=protocol), units)
    assert [one.kind for one in answer_.failed.values()] == [FailureClass.PERMANENT] * 2
    assert "header x-tenant" in answer_.failed[0].reason


def test_headers_of_the_configuration_stand_above_kept_ones(collector: Collector) -> None:
    made = exporter(
        collector.url,
        headers={"X-Tenant": "fixed"},
        auth={"type": "bearer", "token": "secret"},
        traces={"headers": {"X-Only": "traces"}},
    )
    send(made, [unit(1, traces("a"), x_tenant="kept"), unit(2, logs("b"), OtlpKind.LOGS)])
    assert [
        (one["authorization"], one["x-tenant"], one.get("x-only")) for _, _, one in collector.seen
    ] == [("Bearer secret", "fixed", "traces"), ("Bearer secret", "fixed", None)]


def test_a_request_over_the_limit_is_cut_between_resources(collector: Collector) -> None:
    body = traces(*"abcdefgh", padding=10 * KB)
    made = exporter(collector.url, max_request_size="32KB", compression="none")
    assert send(made, [unit(1, body)]) == [Answer()]
    assert len(collector.bodies) > 2
    assert max(map(len, collector.bodies)) <= 32 * KB
    assert b"".join(collector.bodies) == body


def test_a_request_that_the_backend_calls_too_large_is_cut_until_it_fits(
    collector: Collector,
) -> None:
    def decide(body: bytes, call: grpc.ServicerContext) -> bytes:
        if len(body) > 15 * KB:
            call.abort(Code.RESOURCE_EXHAUSTED, "grpc: received message larger than max (9 vs. 4)")
        return b""

    collector.decide = decide
    body = traces(*"abcdefgh", padding=7 * KB)
    assert send(exporter(collector.url), [unit(1, body)]) == [Answer()]
    taken = [one for one in collector.bodies if len(one) <= 15 * KB]
    assert names_of(b"".join(taken)) == list("abcdefgh")


def test_one_resource_that_is_too_large_is_told(collector: Collector) -> None:
    made = exporter(collector.url, max_request_size="8KB")
    [answer_1] = send(made, [unit(1, traces("a", padding=10 * KB))])
    assert answer_1.failed[0].kind is FailureClass.TOO_LARGE
    collector.decide = aborting(Code.RESOURCE_EXHAUSTED, "message too large")
    [answer_2] = send(exporter(collector.url), [unit(1, traces("a"))])
    assert answer_2.failed[0].kind is FailureClass.TOO_LARGE
    # Of several, the loop sends fewer: none of them is cut.
    collector.seen.clear()
    [answer_3] = send(exporter(collector.url), [unit(1, traces("a")), unit(2, traces("b"))])
    assert set(answer_3.failed) == {0, 1}
    assert len(collector.seen) == 1


# What comes back.


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (StatusCode.INVALID_ARGUMENT, "", FailureClass.PERMANENT),
        (StatusCode.RESOURCE_EXHAUSTED, "message larger than max", FailureClass.TOO_LARGE),
        (StatusCode.OUT_OF_RANGE, "message length too large: found 9", FailureClass.TOO_LARGE),
        (StatusCode.RESOURCE_EXHAUSTED, "quota", FailureClass.TRANSIENT),
        (StatusCode.UNAUTHENTICATED, "", FailureClass.AUTH),
        (StatusCode.PERMISSION_DENIED, "", FailureClass.AUTH),
        *(
            (code, "larger than", FailureClass.TRANSIENT)
            for code in StatusCode
            if code.name
            not in "OK INVALID_ARGUMENT RESOURCE_EXHAUSTED OUT_OF_RANGE UNAUTHENTICATED "
            "PERMISSION_DENIED"
        ),
    ],
)
def test_every_code_has_its_class(code: StatusCode, message: str, kind: FailureClass) -> None:
    failure = failure_of_call(CallFailed(code, message, retry_after_s=3.0))
    assert (failure.kind, failure.code) == (kind, code.name)
    assert not message or message not in failure.reason
    if kind is FailureClass.TRANSIENT:
        assert (failure.retry_after_s, failure.maybe_delivered) == (3.0, False)


def test_a_connection_that_ended_is_not_called_an_answer() -> None:
    ended = CallFailed(StatusCode.UNAVAILABLE, "the connection ended", maybe_done=True)
    failure = failure_of_call(ended)
    assert (failure.kind, failure.maybe_delivered) == (FailureClass.TRANSIENT, True)
    assert failure.reason == "no usable answer: the connection ended"


def test_what_a_backend_asks_to_wait_is_passed_on(collector: Collector) -> None:
    def decide(body: bytes, call: grpc.ServicerContext) -> bytes:
        import base64

        trailers = dict(trailers_of(CallFailed(StatusCode.UNAVAILABLE, "later", retry_after_s=7.5)))
        details = base64.b64decode(trailers[b"grpc-status-details-bin"] + b"==")
        call.set_trailing_metadata((("grpc-status-details-bin", details),))
        call.abort(Code.UNAVAILABLE, "later")
        raise AssertionError

    collector.decide = decide
    [got] = send(exporter(collector.url), [unit(1, traces("a"))])
    assert (got.failed[0].kind, got.failed[0].retry_after_s) == (FailureClass.TRANSIENT, 7.5)


def test_nothing_overtakes_what_was_not_delivered(collector: Collector) -> None:
    collector.decide = aborting(Code.UNAVAILABLE)
    [got] = send(exporter(collector.url), [unit(1, traces("a")), unit(2, logs("b"), OtlpKind.LOGS)])
    assert set(got.failed) == {0, 1}
    assert len(collector.seen) == 1
    # A refusal is about its own request: the next one is sent.
    collector.seen.clear()
    collector.decide = aborting(Code.INVALID_ARGUMENT)
    [got] = send(exporter(collector.url), [unit(1, traces("a")), unit(2, logs("b"), OtlpKind.LOGS)])
    assert set(got.failed) == {0, 1}
    assert len(collector.seen) == 2


def test_a_partial_success_is_counted_and_not_repeated(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    partial = ExportTracePartialSuccess(rejected_spans=3, error_message="secret text")
    response = ExportTraceServiceResponse(partial_success=partial).SerializeToString()
    collector.decide = lambda body, call: response
    made = exporter(collector.url)
    sends = [[unit(1, traces("a"))], [unit(2, traces("b"))]]
    assert send(made, *sends) == [Answer({}, {"traces": 3})] * 2
    assert len(collector.seen) == 2
    assert "left out 3 spans" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    "answered",
    [b"", b"\xff\xff", b"\x0a\x0b\x08" + b"\xff" * 9 + b"\x01"],
    ids=["nothing", "no protobuf", "a negative number"],
)
def test_an_answer_that_says_nothing_is_a_success(collector: Collector, answered: bytes) -> None:
    collector.decide = lambda body, call: answered
    assert send(exporter(collector.url), [unit(1, traces("a"))]) == [Answer()]


def test_no_backend_is_transient() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        [got] = send(exporter(f"http://127.0.0.1:{port}"), [unit(1, traces("a"))])
        assert (got.failed[0].kind, got.failed[0].code) == (FailureClass.TRANSIENT, "connect")
        assert "refused" in got.failed[0].reason
    [got] = send(exporter("http://no-such-host.invalid:4317"), [unit(1, traces("a"))])
    assert (got.failed[0].kind, got.failed[0].code) == (FailureClass.TRANSIENT, "dns")


def test_a_backend_that_hangs_ends_in_time(collector: Collector) -> None:
    go = threading.Event()

    def decide(body: bytes, call: grpc.ServicerContext) -> bytes:
        go.wait(PATIENCE_S)
        return b""

    async def use(started: Exporter) -> Answer:
        async def is_taken() -> bool:
            return await started.send([unit(1, traces("a"))]) == Answer()

        # So that it is connected: on a busy machine that alone may take as long.
        await until_async(is_taken)
        collector.decide = decide
        return await started.send([unit(1, traces("a"))])

    made = exporter(collector.url, total_timeout="200ms", connect_timeout="200ms")
    got = with_exporter(made, use)
    go.set()
    assert (got.failed[0].code, got.failed[0].maybe_delivered) == ("DEADLINE_EXCEEDED", True)


def test_a_backend_that_was_away_is_found_again() -> None:
    # On a port that the kernel gives to nobody while it is away.
    collector = Collector(free_port())
    made = exporter(collector.url)

    async def use() -> list[Answer]:
        await made.start()
        try:
            answers = [await made.send([unit(1, traces("a"))])]
            await asyncio.to_thread(collector.server.stop(None).wait)
            answers.append(await made.send([unit(2, traces("b"))]))
            again = grpc.server(futures.ThreadPoolExecutor(2), [collector])
            assert again.add_insecure_port(f"127.0.0.1:{collector.port}") == collector.port
            again.start()
            answers.append(await made.send([unit(2, traces("b"))]))
            await asyncio.to_thread(again.stop(None).wait)
            return answers
        finally:
            await made.close()

    before, while_away, after = asyncio.run(use())
    assert not before.failed
    assert while_away.failed[0].kind is FailureClass.TRANSIENT
    assert not after.failed
    assert [names_of(body) for body in collector.bodies] == [["a"], ["b"]]


# TLS.


def test_certificates_are_checked_on_both_sides(certificates: Certificates, tmp_path: Path) -> None:
    tls = ListenerTls(
        cert_file=str(certificates.server),
        key_file=str(certificates.server_key),
        client_ca_file=str(certificates.ca),
    )
    ours = {"cert_file": str(certificates.client), "key_file": str(certificates.client_key)}
    trusted = {"ca_file": str(certificates.ca)}
    with served(tmp_path, tls=tls) as server:
        url = f"https://{server.address}"
        codes = []
        for settings in ({}, trusted, trusted | ours):
            [got] = send(exporter(url, tls=settings), [unit(1, traces("a"))])
            codes.append((got.failed[0].kind.value, got.failed[0].code))
    # The last one is let in; there is no such method.
    assert codes[0] == ("auth", "tls")
    assert codes[1][0] in ("auth", "transient")
    assert codes[2] == ("transient", "UNIMPLEMENTED")


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_certificates_that_are_replaced_are_used_without_a_restart(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setattr(http_client, "LOOK_AGAIN_S", 0.0)
    others, ours = tmp_path / "others", tmp_path / "ours"
    others.mkdir()
    ours.mkdir()
    foreign = make_certificates(others)
    names = {"ca_file": "ca", "cert_file": "client", "key_file": "client_key"}
    settings = {key: str(ours / name) for key, name in names.items()}

    def put(which: Certificates, *only: str) -> None:
        for name in only or names.values():
            (ours / "new").write_bytes(getattr(which, name).read_bytes())
            (ours / "new").rename(ours / name)

    async def use(url: str) -> list[str]:
        made = exporter(url, protocol=protocol, tls=settings)
        await made.start()
        codes = []
        try:
            # Foreign ones; then ours, of which the key is late; then foreign ones again, beside an
            # open connection.
            for which, only in (
                (foreign, ()),
                (certificates, ("ca", "client")),
                (certificates, ("client_key",)),
                (foreign, ()),
            ):
                put(which, *only)
                failed = (await made.send([unit(1, traces("a"))])).failed
                codes.append(failed[0].code if failed else "taken")
            return codes
        finally:
            await made.close()

    put(foreign)
    if protocol == "http":
        with Backend(tls=certificates.server_context(mutual=True)) as backend:
            codes = asyncio.run(use(backend.url))
    else:
        pem = str(certificates.whole_server)
        tls = ListenerTls(cert_file=pem, key_file=pem, client_ca_file=str(certificates.ca))
        with served(tmp_path, tls=tls) as server:
            codes = asyncio.run(use(f"https://{server.address}"))
    # Over gRPC it is let in, and there is no such method.
    taken = "taken" if protocol == "http" else "UNIMPLEMENTED"
    assert codes == ["tls", "tls", taken, "tls"]


# HTTP.


def http_exporter(backend: Backend, **config: Any) -> Exporter:
    return exporter(backend.url, **{"protocol": "http", **config})


def test_over_http_each_signal_has_its_path(backend: Backend) -> None:
    made = http_exporter(backend, compression="zstd", logs={"path": "/other"})
    send(made, [unit(1, traces("a"), x_tenant="t"), unit(2, logs("b"), OtlpKind.LOGS)])
    first, second = backend.requests
    assert (first.target, second.target) == ("/v1/traces", "/other")
    assert first.headers["content-type"] == "application/x-protobuf"
    assert (first.headers["content-encoding"], first.headers["x-tenant"]) == ("zstd", "t")
    assert zstandard.ZstdDecompressor().decompress(first.raw_body) == traces("a")


@pytest.mark.parametrize(
    ("preset", "kind", "target"),
    [
        ("loki", OtlpKind.LOGS, "/otlp/v1/logs"),
        ("prometheus", OtlpKind.METRICS, "/api/v1/otlp/v1/metrics"),
        ("mimir", OtlpKind.METRICS, "/otlp/v1/metrics"),
    ],
)
def test_presets_know_their_paths(preset: Any, kind: OtlpKind, target: str) -> None:
    config = otlp.Config(url="http://there:1/", preset=preset)
    assert otlp.endpoint_of(config, kind).path == target
    assert otlp.takes(config).signals == frozenset({kind.value})
    whole = otlp.Config(url=f"http://there:1{target}", preset=preset)
    assert otlp.endpoint_of(whole, kind).path == target


def test_an_address_without_a_path_to_add_is_taken_to_the_letter() -> None:
    logs_only = otlp.EndpointSettings(url="http://there:1/all/of/it/", path="")
    config = otlp.Config(url="http://other:1", protocol="http", logs=logs_only)
    assert str(otlp.endpoint_of(config, OtlpKind.LOGS)) == "http://there:1/all/of/it/"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, FailureClass.PERMANENT),
        (401, FailureClass.AUTH),
        (404, FailureClass.TRANSIENT),
        (408, FailureClass.TRANSIENT),
        (413, FailureClass.TOO_LARGE),
        (429, FailureClass.TRANSIENT),
        (500, FailureClass.TRANSIENT),
        (503, FailureClass.TRANSIENT),
    ],
)
def test_every_status_has_its_class(backend: Backend, status: int, kind: FailureClass) -> None:
    backend.steps = [answer(status, Retry_After="9")] * 3
    [got] = send(http_exporter(backend), [unit(1, traces("a"))])
    assert got.failed[0].kind is kind
    if kind is FailureClass.TRANSIENT:
        assert got.failed[0].retry_after_s == 9.0


# The configuration.


def test_other_spellings_are_understood() -> None:
    for key in ("endpoint", "grpc_endpoint"):
        config = otlp.Config.model_validate(
            {key: "http://there:4317", "compression_method": "zstd", "timeout": "9s"}
        )
        assert (config.url, config.compression) == ("http://there:4317", "zstd")
        assert config.total_timeout == 9.0
    with pytest.raises(ValidationError, match="are the same"):
        otlp.Config.model_validate({"url": "http://a", "endpoint": "http://b"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "there:4317"},
        {"url": "http://a", "traces": {"path": "/x"}},
        {"url": "http://a", "proxy": {"url": "http://proxy:1"}},
        {"url": "http://a", "headers": {"content-type": "x"}},
        {"url": "http://a", "protocol": "udp"},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        otlp.Config.model_validate(wrong)


def test_it_takes_telemetry_and_nothing_else() -> None:
    takes = otlp.takes(otlp.Config(url="http://there:4317"))
    assert takes.forms == frozenset({Form.PROTOBUF})
    assert takes.signals == frozenset({"traces", "metrics", "logs"})
