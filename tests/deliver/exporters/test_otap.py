"""The otap exporter: a status for each batch, what each means, and streams that begin anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import grpc
import pytest
from pydantic import ValidationError
from tests.deliver.exporters.sending import QUIVER_ID, context, event, send
from tests.gateway.telemetry import otlp_request
from tests.support.otap import Tables, tables_of

from holdfast.deliver.exporter import Answer, Exporter, FailureClass
from holdfast.deliver.exporters import otap
from holdfast.deliver.exporters.otlp_transport import failure_of_call
from holdfast.grpc.status import CallFailed, StatusCode
from holdfast.quiver import Position
from holdfast.signals.event import ArrowData, Unit
from holdfast.signals.otap.messages import GRPC_PATHS, status
from holdfast.signals.otap.problem import BatchCode, StreamTooLarge
from holdfast.signals.otap.stream_decoder import OtapBatch, StreamDecoder
from holdfast.signals.otap_units import HEADERS_SLOT, headers_table
from holdfast.signals.otlp.kinds import OtlpKind

IDS = [f"{number:016x}" for number in range(1, 6)]
# Returns what is said when a batch has come. May abort the call, or raise `Ends`.
Decide = Callable[[OtapBatch, grpc.ServicerContext], Sequence[bytes]]


class Ends(Exception):
    """The backend ends a stream well."""


def takes_it(batch: OtapBatch, call: grpc.ServicerContext) -> Sequence[bytes]:
    return [status(batch.batch_id)]


class Backend(grpc.GenericRpcHandler):
    """grpcio's server as a backend that reads OTAP."""

    def __init__(self) -> None:
        self.decide: Decide = takes_it
        self.streams: list[tuple[OtlpKind, dict[str, Any]]] = []
        self.taken: list[OtapBatch] = []
        self.server = grpc.server(futures.ThreadPoolExecutor(8), [self])
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def service(self, details: Any) -> Any:
        (kind,) = [kind for kind, path in GRPC_PATHS.items() if path == details.method]

        def talk(messages: Iterator[bytes], call: grpc.ServicerContext) -> Iterator[bytes]:
            metadata: Any = call.invocation_metadata()
            self.streams.append((kind, dict(metadata)))
            decoder = StreamDecoder(kind)
            for message in messages:
                batch = decoder.decode(message)
                try:
                    said = self.decide(batch, call)
                except Ends:
                    return
                if status(batch.batch_id) in said:
                    self.taken.append(batch)
                yield from said

        return grpc.stream_stream_rpc_method_handler(talk)

    def names(self) -> list[list[str]]:
        """Return the names of the spans that were taken, batch by batch."""
        return [batch.tables["otap_spans"].column("name").to_pylist() for batch in self.taken]


@pytest.fixture
def backend() -> Iterator[Backend]:
    made = Backend()
    yield made
    made.server.stop(None).wait()


def exporter(backend: Backend, **config: Any) -> Exporter:
    return otap.make(otap.Config(url=f"http://127.0.0.1:{backend.port}", **config), context())


def unit(seq: int, tables: Tables, kind: OtlpKind = OtlpKind.TRACES, **headers: str) -> ArrowData:
    kept = {name.replace("_", "-"): value for name, value in headers.items()}
    slots = {**tables, HEADERS_SLOT: headers_table(kept)} if kept else tables
    return ArrowData(QUIVER_ID, Position(seq), slots, 0, kind.value, kept)


def spans(seq: int, **headers: str) -> ArrowData:
    return unit(seq, tables_of(OtlpKind.TRACES, IDS[:seq]), OtlpKind.TRACES, **headers)


def code_of(answer: Answer) -> list[tuple[str, str]]:
    return [(failure.kind.value, failure.code) for failure in answer.failed.values()]


@pytest.mark.parametrize("packed", ["none", "gzip"])
def test_bundles_arrive_as_they_are_stored_each_signal_on_a_stream_of_its_own(
    backend: Backend, packed: str
) -> None:
    batches = [
        [unit(number, tables_of(kind, IDS[:number]), kind) for number in (1, 2, 3)]
        for kind in OtlpKind
    ]
    made = exporter(backend, compression=packed, arrow={"payload_compression": "zstd"})
    assert send(made, *batches) == [Answer()] * 3
    sent = [dict(one.slots) for batch in batches for one in batch]
    assert [dict(batch.tables) for batch in backend.taken] == sent
    assert Counter(kind for kind, _ in backend.streams) == dict.fromkeys(OtlpKind, 1)


def test_kept_headers_are_told_with_their_batch_and_credentials_with_the_stream(
    backend: Backend,
) -> None:
    made = exporter(
        backend,
        compression="none",
        auth={"type": "bearer", "token": "geheim"},
        headers={"x-site": "north"},
    )
    units = [spans(1, x_tenant="one", client="agent"), spans(2), spans(3, x_tenant="two")]
    assert send(made, units) == [Answer()]
    assert [batch.headers for batch in backend.taken] == [
        {"x-tenant": "one"},
        {},
        {"x-tenant": "two"},
    ]
    assert all(HEADERS_SLOT not in batch.tables for batch in backend.taken)
    ((_, metadata),) = backend.streams
    assert (metadata["authorization"], metadata["x-site"]) == ("Bearer geheim", "north")


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (BatchCode.INVALID_ARGUMENT, "no", FailureClass.PERMANENT),
        (BatchCode.RESOURCE_EXHAUSTED, "quota", FailureClass.TRANSIENT),
        (BatchCode.UNAVAILABLE, "later", FailureClass.TRANSIENT),
        (BatchCode.CANCELED, "bye", FailureClass.TRANSIENT),
        (BatchCode.INTERNAL, "oops", FailureClass.TRANSIENT),
        (BatchCode.UNAUTHENTICATED, "who?", FailureClass.AUTH),
    ],
)
def test_what_a_status_means_is_about_its_batch_alone(
    backend: Backend, code: BatchCode, message: str, kind: FailureClass
) -> None:
    def decide(batch: OtapBatch, call: grpc.ServicerContext) -> Sequence[bytes]:
        is_second = batch.tables["otap_spans"].num_rows == 2
        return [status(batch.batch_id, *((code, message) if is_second else ()))]

    backend.decide = decide
    (answer,) = send(exporter(backend, compression="none"), [spans(1), spans(2), spans(3)])
    assert {place: failure.kind for place, failure in answer.failed.items()} == {1: kind}
    assert len(backend.streams) == 1, "the stream goes on"


@pytest.mark.parametrize("said", ["larger than 1 byte", "the limit is 1: send smaller batches"])
def test_a_batch_that_is_too_large_goes_out_in_parts(backend: Backend, said: str) -> None:
    """As small as the backend takes it; a single item that is too large is what is refused."""
    tolerated = 1

    def decide(batch: OtapBatch, call: grpc.ServicerContext) -> Sequence[bytes]:
        if batch.tables["otap_spans"].num_rows > tolerated:
            return [status(batch.batch_id, BatchCode.RESOURCE_EXHAUSTED, said)]
        return [status(batch.batch_id)]

    backend.decide = decide
    units = [spans(1), spans(5, x_tenant="one")]
    assert send(exporter(backend, compression="none"), units) == [Answer()]
    names = [name for batch in backend.names() for name in batch]
    assert sorted(names) == sorted(f"item {one}" for one in [IDS[0], *IDS])
    assert [batch.headers for batch in backend.taken].count({"x-tenant": "one"}) == len(IDS)
    tolerated = 0
    (answer,) = send(exporter(backend, compression="none"), [spans(3)])
    assert {failure.kind for failure in answer.failed.values()} == {FailureClass.TOO_LARGE}


def test_what_our_own_receiver_says_of_a_large_batch_is_understood() -> None:
    refused = StreamTooLarge("a batch has 4 rows", "rows_max", 3)
    told = failure_of_call(CallFailed(StatusCode.RESOURCE_EXHAUSTED, refused.reason))
    assert told.kind is FailureClass.TOO_LARGE
    # What a stream has gathered is about no batch: another stream takes it.
    gathered = StreamTooLarge("dictionaries", "dictionary_bytes_max", 3, breaks=True)
    told = failure_of_call(CallFailed(StatusCode.RESOURCE_EXHAUSTED, gathered.reason))
    assert told.kind is FailureClass.TRANSIENT


def test_statuses_come_in_any_order(backend: Backend) -> None:
    held: list[bytes] = []

    def decide(batch: OtapBatch, call: grpc.ServicerContext) -> Sequence[bytes]:
        code = BatchCode.UNAVAILABLE if batch.tables["otap_spans"].num_rows == 1 else BatchCode.OK
        held.insert(0, status(batch.batch_id, code))
        return held if len(held) == 3 else ()

    backend.decide = decide
    (answer,) = send(exporter(backend, compression="none"), [spans(1), spans(2), spans(3)])
    assert list(answer.failed) == [0]


def test_a_batch_without_a_status_is_in_doubt(backend: Backend) -> None:
    backend.decide = lambda batch, call: ()
    made = exporter(backend, compression="none", total_timeout="1s", connect_timeout="1s")
    (answer,) = send(made, [spans(1), spans(2)])
    assert code_of(answer) == [("transient", "timeout")] * 2
    assert all(failure.maybe_delivered for failure in answer.failed.values())


def test_a_stream_that_ends_well_is_followed_by_another_and_nothing_fails(
    backend: Backend,
) -> None:
    def decide(batch: OtapBatch, call: grpc.ServicerContext) -> Sequence[bytes]:
        if len(backend.streams) == 1 and len(backend.taken) == 1:
            raise Ends
        return [status(batch.batch_id)]

    backend.decide = decide
    made = exporter(backend, compression="none")
    assert send(made, [spans(1)], [spans(2)], [spans(3)]) == [Answer()] * 3
    assert len(backend.streams) == 2
    assert [len(names) for names in backend.names()] == [1, 2, 3]


def test_a_stream_that_is_cut_leaves_its_batches_in_doubt_and_the_next_begins_anew(
    backend: Backend,
) -> None:
    def decide(batch: OtapBatch, call: grpc.ServicerContext) -> Sequence[bytes]:
        if len(backend.streams) == 1 and len(backend.taken) == 1:
            call.abort(grpc.StatusCode.INTERNAL, "no")
        return [status(batch.batch_id)]

    backend.decide = decide
    made = exporter(backend, compression="none")
    first, second, third = send(made, [spans(1)], [spans(2)], [spans(2)])
    assert (first, third) == (Answer(), Answer())
    assert code_of(second) == [("transient", "INTERNAL")]
    assert [len(names) for names in backend.names()] == [1, 2]


def test_streams_are_replaced_when_they_are_old(backend: Backend) -> None:
    made = exporter(backend, compression="none", max_stream_lifetime="1ms")
    assert send(made, [spans(1)], [spans(2)], [spans(3)]) == [Answer()] * 3
    assert len(backend.streams) == 3
    assert [len(names) for names in backend.names()] == [1, 2, 3]


def test_a_backend_that_is_away_is_tried_again(backend: Backend) -> None:
    backend.server.stop(None).wait()
    (answer,) = send(exporter(backend), [spans(1)])
    assert [one[0] for one in code_of(answer)] == ["transient"]


def test_other_spellings_and_wrong_settings() -> None:
    written: dict[str, Any] = {
        "grpc_endpoint": "http://127.0.0.1:1235",
        "compression_method": "zstd",
        "timeout": "15s",
        "arrow": {"payload_compression": "none"},
    }
    config = otap.Config(**written)
    assert (config.url, config.compression, config.total_timeout) == (
        "http://127.0.0.1:1235",
        "zstd",
        15.0,
    )
    wrongs: tuple[dict[str, Any], ...] = (
        {"url": "http://a:1", "endpoint": "http://b:1"},
        {"url": "http://a:1", "proxy": {"url": "http://p:1"}},
    )
    for wrong in wrongs:
        with pytest.raises(ValidationError):
            otap.Config(**wrong)


def test_requests_of_otlp_are_made_into_batches_several_into_one(backend: Backend) -> None:
    made = exporter(backend, compression="none")
    bodies = [otlp_request(OtlpKind.TRACES, [one]) for one in IDS]
    units: list[Unit] = [
        event(seq, body, slot=OtlpKind.TRACES.slot, signal="traces")
        for seq, body in enumerate(bodies)
    ]
    units.insert(3, spans(2))
    bad = event(9, b"\xff", slot=OtlpKind.TRACES.slot, signal="traces", headers={"x": "y"})
    (answer,) = send(made, [*units, bad])
    assert {place: one.kind for place, one in answer.failed.items()} == {6: FailureClass.PERMANENT}
    counts = sorted(batch.tables["otap_spans"].num_rows for batch in backend.taken)
    assert counts == [2, 2, 3]
    ids = [one for batch in backend.taken for one in batch.tables["otap_spans"]["span_id"]]
    assert Counter(one.as_py().hex() for one in ids) == Counter([*IDS, *IDS[:2]])
