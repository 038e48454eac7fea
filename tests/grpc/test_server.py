"""The gRPC server with grpcio's client, unmodified."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import zstandard
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hyperframe.frame import DataFrame, GoAwayFrame, HeadersFrame, PingFrame
from tests.grpc.harness import (
    CALLER,
    ECHO,
    FAIL,
    FAST,
    SLOW,
    RawPeer,
    Served,
    ask,
    channel_to,
    headers_of,
    method_of,
    refused,
    served,
)
from tests.patience import PATIENCE_S, SCALE, until
from tests.support.certificates import Identity, identity

from holdfast.grpc.settings import GrpcSettings
from holdfast.receive.admission import TokenSettings
from holdfast.receive.body import RequestLimits
from holdfast.receive.listening import ListenerTls
from holdfast.settings import Secret

MB = 1024 * 1024
Code = grpc.StatusCode


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("plain")) as one:
        yield one


@pytest.fixture
def channel(plain: Served) -> Iterator[grpc.Channel]:
    with channel_to(plain.address) as one:
        yield one


@pytest.mark.parametrize("size_bytes", [0, 1, 100, 65_535, 70_000, 5 * MB])
def test_messages_of_any_size_come_back(
    channel: grpc.Channel, plain: Served, size_bytes: int
) -> None:
    body = bytes(range(256)) * (size_bytes // 256 + 1)
    assert ask(channel, ECHO, body[:size_bytes]) == body[:size_bytes]
    plain.until_empty()


def test_many_calls_at_once_share_a_connection(channel: grpc.Channel, plain: Served) -> None:
    with ThreadPoolExecutor(8) as pool:
        bodies = [b"%d" % number * 100 for number in range(300)]
        assert list(pool.map(lambda body: ask(channel, ECHO, body), bodies)) == bodies
    plain.until_empty()


def test_a_fast_method_takes_what_it_can(channel: grpc.Channel) -> None:
    assert ask(channel, FAST, b"call") == b"fast call"
    assert ask(channel, FAST, b"not now") == b"not now"


def test_gzip_of_grpcio_is_understood(plain: Served) -> None:
    with channel_to(plain.address, compression=grpc.Compression.Gzip) as channel:
        body = b"compressible" * 10_000
        assert ask(channel, ECHO, body) == body
        assert ask(channel, FAST, body) == body


def test_zstd_is_understood(plain: Served) -> None:
    body = b"compressible" * 5_000
    packed = zstandard.compress(body)
    message = b"\1" + len(packed).to_bytes(4, "big") + packed
    with RawPeer(plain.address) as peer:
        peer.send(
            peer.begin(1, headers_of(grpc_encoding="zstd")),
            DataFrame(1, message, flags=["END_STREAM"]),
        )
        came = b""
        while len(came) < 5 + len(body):
            came += peer.until_frame(DataFrame).data
        assert came[5:] == body


@pytest.mark.parametrize(
    ("packed", "encoding", "code"),
    [
        (gzip.compress(b"x" * 100)[:-4], "gzip", Code.INVALID_ARGUMENT),
        (b"not gzip at all", "gzip", Code.INVALID_ARGUMENT),
        (zstandard.compress(b"x" * 100)[:-2], "zstd", Code.INVALID_ARGUMENT),
        (b"x", "snappy", Code.UNIMPLEMENTED),
        (b"x", "", Code.INVALID_ARGUMENT),
        (gzip.compress(b"\0" * 40 * MB), "gzip", Code.RESOURCE_EXHAUSTED),
        (zstandard.compress(b"\0" * 40 * MB), "zstd", Code.RESOURCE_EXHAUSTED),
    ],
    ids=["cut", "no gzip", "cut zstd", "snappy", "not said how", "bomb", "zstd bomb"],
)
def test_what_cannot_be_unpacked_is_refused(
    plain: Served, packed: bytes, encoding: str, code: grpc.StatusCode
) -> None:
    headers = headers_of(grpc_encoding=encoding) if encoding else headers_of()
    message = b"\1" + len(packed).to_bytes(4, "big") + packed
    with RawPeer(plain.address) as peer:
        peer.send(peer.begin(1, headers))
        for start in range(0, len(message), 16_000):
            ends = ["END_STREAM"] if start + 16_000 >= len(message) else []
            peer.send(DataFrame(1, message[start : start + 16_000], flags=ends))
        assert peer.status_of(1) == code
        # The connection lives on.
        peer.call(3)
        assert peer.status_of(3) == Code.OK
    plain.until_empty()


def test_a_message_over_the_bound_is_refused_at_once(channel: grpc.Channel) -> None:
    error = refused(channel, ECHO, bytes(33 * MB))
    assert error.code() == Code.RESOURCE_EXHAUSTED
    assert "smaller" in str(error.details())
    assert ask(channel, ECHO, b"next") == b"next"


def test_an_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    assert refused(channel, "/test.Service/Other").code() == Code.UNIMPLEMENTED


def test_a_failing_method_is_never_internal(channel: grpc.Channel, plain: Served) -> None:
    error = refused(channel, FAIL, b"bug")
    assert error.code() == Code.UNAVAILABLE
    assert "secret" not in str(error.details())
    assert retry_info_of(error) == 1.0
    plain.until_empty()


def test_a_client_is_told_when_to_send_again(channel: grpc.Channel) -> None:
    error = refused(channel, FAIL)
    assert (error.code(), error.details()) == (Code.UNAVAILABLE, "später, 100 %")
    assert retry_info_of(error) == 2.5


def retry_info_of(error: grpc.RpcError) -> float:
    """Read the details of a status with protobuf's own parser."""
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name="status.proto", package="t", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *fields: tuple[str, int, Any, str]) -> None:
        one = file.message_type.add(name=name)
        for key, number, kind, type_name in fields:
            repeated = field.LABEL_REPEATED if key == "details" else field.LABEL_OPTIONAL
            one.field.add(
                name=key, number=number, type=kind, label=repeated, type_name=type_name or None
            )

    message("Duration", ("seconds", 1, field.TYPE_INT64, ""), ("nanos", 2, field.TYPE_INT32, ""))
    message("RetryInfo", ("retry_delay", 1, field.TYPE_MESSAGE, ".t.Duration"))
    message("Any", ("type_url", 1, field.TYPE_STRING, ""), ("value", 2, field.TYPE_BYTES, ""))
    message(
        "Status",
        ("code", 1, field.TYPE_INT32, ""),
        ("message", 2, field.TYPE_STRING, ""),
        ("details", 3, field.TYPE_MESSAGE, ".t.Any"),
    )
    pool.Add(file)
    made = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}"))
        for name in ("Status", "RetryInfo")
    }
    trailers: Any = error.trailing_metadata()
    details = dict(trailers)["grpc-status-details-bin"]
    status: Any = made["Status"].FromString(details)
    assert (status.code, status.message) == (error.code().value[0], error.details())
    [one] = status.details
    assert one.type_url == "type.googleapis.com/google.rpc.RetryInfo"
    info: Any = made["RetryInfo"].FromString(one.value)
    return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)


def test_a_deadline_ends_a_call_on_both_sides(plain: Served) -> None:
    begun, cancelled = plain.slow.begun, plain.slow.cancelled
    with RawPeer(plain.address) as peer:
        peer.send(
            # Long enough to begin, though the server be stopped for a moment.
            peer.begin(1, headers_of(SLOW, grpc_timeout=f"{round(200 * SCALE)}m")),
            DataFrame(1, b"\0\0\0\0\0", flags=["END_STREAM"]),
        )
        assert peer.status_of(1) == Code.DEADLINE_EXCEEDED
    until(lambda: plain.slow.cancelled == cancelled + 1, "the method was stopped")
    assert plain.slow.begun == begun + 1
    plain.until_empty()


def test_a_call_taken_back_ends_its_method(channel: grpc.Channel, plain: Served) -> None:
    begun, cancelled = plain.slow.begun, plain.slow.cancelled
    call = method_of(channel, SLOW).future(b"")
    until(lambda: plain.slow.begun == begun + 1, "the method began")
    call.cancel()
    until(lambda: plain.slow.cancelled == cancelled + 1, "the method was stopped")
    plain.until_empty()


@pytest.mark.parametrize(
    ("name", "value", "status"), [(":method", "GET", "405"), ("content-type", "text/plain", "415")]
)
def test_what_is_not_grpc_gets_an_answer_of_http(
    plain: Served, name: str, value: str, status: str
) -> None:
    headers = [(key, value if key == name else old) for key, old in headers_of()]
    with RawPeer(plain.address) as peer:
        peer.send(peer.begin(1, headers))
        frame = peer.until_frame(HeadersFrame, 1)
        assert "END_STREAM" in frame.flags
        assert peer.fields_of(frame) == {":status": status}


def test_a_client_of_http_1_is_told_what_is_spoken_here(plain: Served) -> None:
    with RawPeer(plain.address, greets=False) as peer:
        peer.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
        peer.until_gone()
        [goaway] = [frame for frame in peer.frames if isinstance(frame, GoAwayFrame)]
        assert b"gRPC" in goaway.additional_data


def test_health_is_told(channel: grpc.Channel, plain: Served) -> None:
    check = "/grpc.health.v1.Health/Check"
    assert ask(channel, check) == b"\x08\x01"
    assert ask(channel, check, b"\x0a\x0ctest.Service") == b"\x08\x01"
    assert refused(channel, check, b"\x0a\x05other").code() == Code.NOT_FOUND
    assert refused(channel, check, b"\xff").code() == Code.INVALID_ARGUMENT


def test_tokens_are_asked_for_and_may_change(tmp_path: Path) -> None:
    from holdfast.receive.admission import Tokens
    from holdfast.seam import Seam

    one = TokenSettings(name="one", token=Secret("first"))
    with served(tmp_path, tokens=(one,)) as server, channel_to(server.address) as channel:
        assert refused(channel, CALLER).code() == Code.UNAUTHENTICATED
        assert ask(channel, CALLER, metadata=[("authorization", "Bearer first")]) == b"one"
        assert ask(channel, "/grpc.health.v1.Health/Check") == b"\x08\x01"
        two = TokenSettings(name="two", token=Secret("second"))
        server.gate.tokens = Tokens([two], Seam())
        error = refused(channel, CALLER, metadata=[("authorization", "Bearer first")])
        assert error.code() == Code.UNAUTHENTICATED
        assert ask(channel, CALLER, metadata=[("authorization", "Bearer second")]) == b"two"
        assert server.rejected == {"unauthorized": 2}


def test_a_rate_is_held(tmp_path: Path) -> None:
    slow = TokenSettings(name="one", token=Secret("x"), events_per_s=0.001, burst_events=1)
    metadata = [("authorization", "Bearer x")]
    with served(tmp_path, tokens=(slow,)) as server, channel_to(server.address) as channel:
        ask(channel, ECHO, metadata=metadata)
        error = refused(channel, ECHO, metadata=metadata)
        assert error.code() == Code.UNAVAILABLE
        assert retry_info_of(error) > 1.0


def test_too_many_calls_are_asked_to_come_again(tmp_path: Path) -> None:
    with (
        served(tmp_path, limits=RequestLimits(max_requests=2)) as server,
        channel_to(server.address) as channel,
    ):
        first = [method_of(channel, SLOW).future(b"") for _ in range(2)]
        until(lambda: server.slow.begun == 2, "two calls are under way")
        error = refused(channel, ECHO)
        assert (error.code(), retry_info_of(error)) == (Code.UNAVAILABLE, 1.0)
        server.release()
        assert [call.result(PATIENCE_S) for call in first] == [b"", b""]
        assert ask(channel, ECHO, b"now") == b"now"


def test_calls_under_way_are_finished_at_the_end(tmp_path: Path) -> None:
    with served(tmp_path) as server, channel_to(server.address) as channel:
        call = method_of(channel, SLOW).future(b"late")
        until(lambda: server.slow.begun == 1, "the call is under way")
        stopping = threading.Thread(target=server.stop, args=(PATIENCE_S,))
        stopping.start()
        until(lambda: server.gate.is_stopping, "it stops")
        assert refused(channel, ECHO).code() == Code.UNAVAILABLE
        server.release()
        assert call.result(PATIENCE_S) == b"late"
        stopping.join(PATIENCE_S)
        assert not stopping.is_alive()


def test_an_old_connection_is_told_to_go_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.grpc.server._LEAVE_GRACE_S", PATIENCE_S)
    settings = GrpcSettings(max_age_s=0.1)
    with served(tmp_path, settings) as server, channel_to(server.address) as channel:
        with RawPeer(server.address) as peer:
            first = peer.until_frame(GoAwayFrame)
            assert (first.last_stream_id, first.error_code) == (2**31 - 1, 0)
            # A call that was sent before the client knew is taken.
            peer.call(1)
            peer.until_answered(1)
            ping = peer.until_frame(PingFrame) if not pings(peer) else pings(peer)[0]
            peer.send(PingFrame(0, ping.opaque_data, flags=["ACK"]))
            last = peer.until_frame(GoAwayFrame)
            assert (last.last_stream_id, last.error_code) == (1, 0)
            assert peer.until_gone() == 0
        for number in range(50):
            assert ask(channel, ECHO, b"%d" % number, wait_for_ready=True) == b"%d" % number


def pings(peer: RawPeer) -> list[PingFrame]:
    return [frame for frame in peer.frames if isinstance(frame, PingFrame)]


@pytest.fixture(scope="module")
def authority() -> Identity:
    return identity("authority")


def test_certificates_rotate_without_a_restart(tmp_path: Path, authority: Identity) -> None:
    server_1, client = identity("localhost", authority), identity("client", authority)
    authority.write(tmp_path, "ca")
    server_1.write(tmp_path, "server")
    client.write(tmp_path, "client")
    tls = ListenerTls(
        cert_file="server.pem", key_file="server.key", client_ca_file="ca.pem", min_version="1.3"
    )
    # The certificates are looked at as often as the shortest time-out asks for. Not that of the
    # handshake: it may take its time.
    settings = GrpcSettings(drain_timeout_s=2.0)

    def call(root: str, name: str) -> bytes:
        credentials = grpc.ssl_channel_credentials(
            (tmp_path / f"{root}.pem").read_bytes(),
            (tmp_path / f"{name}.key").read_bytes(),
            (tmp_path / f"{name}.pem").read_bytes(),
        )
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.secure_channel(server.address, credentials, options) as channel:
            return ask(channel, ECHO, b"safe")

    with served(tmp_path, settings, tls=tls) as server:
        assert call("ca", "client") == b"safe"
        # Another authority altogether: of the server, and of its clients.
        other = identity("other authority")
        other.write(tmp_path, "other")
        identity("client", other).write(tmp_path, "new")
        identity("localhost", other).write(tmp_path, "server")
        other.write(tmp_path, "ca")

        def is_new() -> bool:
            try:
                return call("other", "new") == b"safe"
            except grpc.RpcError:
                return False

        until(is_new, "the new certificates are used")
        with pytest.raises(grpc.RpcError):
            call("other", "client")
