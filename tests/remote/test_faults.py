"""Errors on the wire: the class, the words and the numbers arrive; a stack trace does not."""

from __future__ import annotations

import contextlib
import inspect
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight
from tests.patience import PATIENCE_S, SCALE, until
from tests.remote.serving import Served, in_thread, numbers, serving

from holdfast import errors
from holdfast.errors import (
    BadInput,
    DataLoss,
    HoldfastError,
    NotAccepted,
    Overloaded,
    OwnerGone,
    ReaderError,
)
from holdfast.quiver import Quiver
from holdfast.remote import ClientSettings, RemoteQuiver
from holdfast.remote.wire import (
    Fields,
    answering,
    calling,
    decode_ticket,
    encode,
    from_flight,
    to_flight,
)

ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, HoldfastError)
]


def example(kind: type[HoldfastError]) -> HoldfastError:
    if issubclass(kind, DataLoss):
        return kind("lost", hint="go on", ranges=[(1, 3, "dropped"), (7, 8, "expired")])
    if issubclass(kind, NotAccepted):
        return kind("no", hint="later", path="/x", stored="maybe", retry_after_s=2.5)
    return kind("what ä", hint="do", path="/somewhere")


class Raising(flight.FlightServerBase):  # type: ignore[misc]
    """Raises whatever a test puts into it."""

    error: BaseException = HoldfastError("none", hint="none")

    @answering
    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        raise self.error

    @answering
    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.RecordBatchStream:
        raise self.error


@pytest.fixture(scope="module")
def raising() -> Iterator[tuple[Raising, flight.FlightClient]]:
    with Raising(("127.0.0.1", 0)) as server:
        with flight.connect(("127.0.0.1", server.port)) as client:
            yield server, client
        server.shutdown()


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_arrives_as_it_was_raised(
    raising: tuple[Raising, flight.FlightClient], kind: type[HoldfastError]
) -> None:
    server, client = raising
    server.error = sent = example(kind)
    for call in (
        lambda: list(client.do_action(flight.Action("any", b""))),
        lambda: client.do_get(flight.Ticket(b"")).read_all(),
    ):
        with pytest.raises(flight.FlightError) as told:
            call()
        received = from_flight(told.value)
        assert type(received) is kind
        assert vars(received) == vars(sent)


def test_what_else_goes_wrong_is_told_without_its_stack(
    raising: tuple[Raising, flight.FlightClient], caplog: pytest.LogCaptureFixture
) -> None:
    server, client = raising
    server.error = KeyError("a secret")
    with pytest.raises(flight.FlightError) as told:
        list(client.do_action(flight.Action("any", b"")))
    assert "secret" not in str(told.value)
    assert from_flight(told.value).message == "the server failed: KeyError"
    assert "secret" in caplog.text, "the server's log has it"


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (flight.FlightTimedOutError("x"), "did not answer in time"),
        (flight.FlightUnavailableError("x"), "cannot be reached"),
        (flight.FlightCancelledError("x"), "cannot be reached"),
        (flight.FlightUnauthenticatedError("x"), "refused the caller"),
        (flight.FlightServerError("x", b"no json"), "the call failed: FlightServerError"),
        (flight.FlightServerError("x", b'{"error": "BadInput"}'), "the call failed"),
        (pa.ArrowInvalid("x"), "the call failed: ArrowInvalid"),
    ],
)
def test_what_no_holdfast_server_says_is_told_too(raised: BaseException, expected: str) -> None:
    assert expected in from_flight(raised).message


def test_an_error_of_a_newer_server_is_at_least_an_error() -> None:
    sent = to_flight(BadInput("new", hint="h"))
    fields = {**json.loads(sent.extra_info), "error": "NotInventedYet"}
    received = from_flight(flight.FlightServerError("x", json.dumps(fields).encode()))
    assert (type(received), received.message) == (HoldfastError, "new")


def test_nobody_listens_and_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        location = f"grpc://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(OwnerGone):
            RemoteQuiver.open(location, "main", ClientSettings(timeout=0.2))
    with pytest.raises(OwnerGone):
        RemoteQuiver.open(location, "main", ClientSettings(timeout=PATIENCE_S))


def test_a_call_that_takes_too_long_is_given_up(served: Served) -> None:
    remote = served.connect(timeout=1.0 * SCALE)
    cursor = remote.cursor("spark")
    hanging = served.quiver._engine.ledger.lock  # as if the disk hung
    with hanging, pytest.raises(OwnerGone, match="did not answer in time"):
        cursor.plan()
    until(lambda: served.server.statistics().calls == 0)
    assert cursor.plan() is None


# ------------------------------------------------------------------------ strange requests

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
NAMES = st.sampled_from(
    (
        *("quiver", "subscriber", "generation", "start", "end", "through", "max_events"),
        *("max_bytes", "claim_us", "position", "wait_s", "outcome", "options", "on_data_loss"),
        *("seen", "reason", "producer", "watermark_ns"),
    )
)
ACTIONS = (
    *("attach", "plan", "replan", "commit", "statement", "wait", "position", "detach"),
    *("accept_losses", "unregister", "heartbeat", "nothing"),
)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Quiver, flight.FlightClient]]:
    directory = tmp_path_factory.mktemp("asked")
    with serving(directory, max_wait=0.001) as served:
        served.quiver.append(numbers(1))
        served.quiver.cursor("spark")
        with flight.connect(served.server.location) as client:
            yield served.quiver, client


@given(action=st.sampled_from(ACTIONS), fields=st.dictionaries(NAMES, ANYTHING, max_size=6))
def test_no_request_makes_a_server_fail(
    asked: tuple[Quiver, flight.FlightClient], action: str, fields: dict[str, Any]
) -> None:
    _, client = asked
    known = {"quiver": "main", "subscriber": "spark", "generation": 1, "start": [0, 0]}
    body = encode({**known, "end": [1, 0], "max_events": 1, "max_bytes": 1, **fields})
    with contextlib.suppress(BadInput, ReaderError, Overloaded), calling():
        list(client.do_action(flight.Action(action, body)))


@given(st.binary(max_size=50) | ANYTHING.map(lambda value: json.dumps(value).encode()))
def test_what_is_not_a_document_is_refused(data: bytes) -> None:
    with pytest.raises(BadInput):
        Fields.decode(data)
    with pytest.raises(BadInput):
        decode_ticket(data)


def test_a_request_of_another_version_is_refused(served: Served) -> None:
    client = flight.connect(served.server.location)
    with client, pytest.raises(BadInput, match="version 2"), calling():
        list(client.do_action(flight.Action("quivers", b'{"v": 2}')))


def test_a_request_beyond_its_bound_is_refused(tmp_path: Path) -> None:
    body = encode({"quiver": "x" * 1000})
    with serving(tmp_path, max_message=1000) as served:
        client = flight.connect(served.server.location)
        with client, pytest.raises(BadInput, match="a request of"), calling():
            list(client.do_action(flight.Action("flush", body)))


# ----------------------------------------------------------------------------- calls at once


def test_calls_beyond_the_bound_are_refused_and_half_of_them_may_wait(tmp_path: Path) -> None:
    with serving(tmp_path, max_calls=4) as served:
        remote = served.connect()
        seen = remote.wait()
        waits = [in_thread(lambda: remote.wait(seen, wait_s=PATIENCE_S)) for _ in range(2)]
        until(lambda: served.server.statistics().calls == 2)
        assert remote.wait(seen, wait_s=PATIENCE_S) == seen, "the third does not wait"
        with served.quiver._engine.ledger.lock:  # as if the disk hung
            stuck = [in_thread(lambda: remote.cursor("spark")) for _ in range(2)]
            until(lambda: served.server.statistics().calls == 4)
            with pytest.raises(Overloaded, match="4 calls are going on") as refused:
                remote.statement()
            assert refused.value.retry_after_s == 1.0
            assert served.server.statistics().refused_total == 1
        for thread, _ in stuck:
            thread.join(PATIENCE_S)
        served.quiver.append(numbers(1))
        for thread, results in waits:
            thread.join(PATIENCE_S)
            assert results[0] > seen
        until(lambda: served.server.statistics().calls == 0)
        remote.statement()
