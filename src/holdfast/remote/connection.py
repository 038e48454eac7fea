"""A client's connection to a server: to the owner, and to the process that serves its rows.

Two addresses, because reading is served by a process of its own that may be restarted on another
port. The owner knows where it is; it is asked once, and again only after a read found nobody
there.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from holdfast.errors import BadInput, BundleTooLarge, NotAccepted, OwnerGone
from holdfast.quiver import Receipt
from holdfast.remote.settings import ClientSettings
from holdfast.remote.wire import Fields, calling, decode_receipt, encode

# gRPC waits up to two minutes before it connects again; and shares that between all clients.
_CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]

_Answer = TypeVar("_Answer")


class Connection:
    """Calls to one server: to the owner, and to the process that serves its sealed data.

    Nothing is tried again here but finding the reader: whether a call may be repeated depends on
    what it does, and only the caller knows that.
    """

    def __init__(self, location: str, settings: ClientSettings) -> None:
        self.location = location
        self.settings = settings
        self._lock = threading.Lock()
        self._owner = self._connect(location)
        self._reader: flight.FlightClient | None = None

    def _connect(self, location: str) -> flight.FlightClient:
        settings = self.settings
        try:
            return flight.FlightClient(
                location,
                tls_root_certs=_pem(settings.ca_file),
                cert_chain=_pem(settings.cert_file),
                private_key=_pem(settings.key_file),
                write_size_limit_bytes=settings.max_message,
                generic_options=[
                    *_CHANNEL_OPTIONS,
                    ("grpc.max_receive_message_length", settings.max_message),
                ],
            )
        except (pa.ArrowException, OSError) as error:
            raise BadInput(
                f"{location!r} cannot be connected to: {type(error).__name__}",
                hint="write grpc://host:port or grpc+tls://host:port; are the PEM files there?",
            ) from error

    def _options(self, timeout_s: float) -> flight.FlightCallOptions:
        headers = []
        if self.settings.token is not None:
            token = self.settings.token.get_secret_value()
            headers.append((b"authorization", f"Bearer {token}".encode()))
        return flight.FlightCallOptions(timeout=timeout_s, headers=headers)

    def act(
        self, name: str, wait_s: float = 0.0, *, timeout_s: float | None = None, **fields: Any
    ) -> Fields:
        """Call an action; it may take as long as the settings say, or as `timeout_s` does."""
        body = encode({"wait_s": wait_s, **fields})
        # The wait is the server's to end: a client that gave up first could not tell "nothing came"
        # from "nobody answers".
        options = self._options((timeout_s or self.settings.timeout) + wait_s)
        with calling():
            results = list(self._owner.do_action(flight.Action(name, body), options))
        try:
            return Fields.decode(results[0].body.to_pybytes())
        except (IndexError, BadInput) as error:
            raise OwnerGone(
                f"{self.location} gave no answer that can be read",
                hint="is it a Holdfast server, of the same version?",
            ) from error

    def put(self, batches: Sequence[pa.RecordBatch], **fields: Any) -> Receipt:
        """Send record batches, and return the receipt."""
        command = encode({"batches": len(batches), **fields})
        descriptor = flight.FlightDescriptor.for_command(command)
        try:
            with calling():
                answer = self._put(descriptor, batches)
        except OwnerGone as gone:
            # The one call whose repetition matters: whether the rows are stored is not known. With
            # producer and epoch repeating it is safe, and the receipt of the first time comes
            # back.
            raise NotAccepted(
                f"the append was not answered: {gone.message}",
                hint="repeat it if it had producer and epoch; else it may be there twice then",
                stored="maybe",
            ) from gone
        return decode_receipt(Fields.decode(answer))

    def _put(self, descriptor: flight.FlightDescriptor, batches: Sequence[pa.RecordBatch]) -> bytes:
        options = self._options(self.settings.timeout)
        writer, reader = self._owner.do_put(descriptor, batches[0].schema, options)
        try:
            for batch in batches:
                writer.write_batch(batch)
        except flight.FlightWriteSizeExceededError as error:
            with contextlib.suppress(flight.FlightError):
                writer.close()  # the server sees half a put, and says so
            raise BundleTooLarge(
                f"a record batch is larger than {self.settings.max_message} bytes",
                hint="append less in one call, or raise max_message on both sides",
            ) from error
        # Before the answer is read: the server appends only when the whole stream is there.
        writer.done_writing()
        answer = reader.read()
        writer.close()
        if answer is None:
            raise OwnerGone("the server closed the stream", hint="try again")
        body: bytes = answer.to_pybytes()
        return body

    def begin_put(
        self, command: bytes, schema: pa.Schema, timeout_s: float
    ) -> tuple[flight.FlightStreamWriter, flight.FlightMetadataReader]:
        """Begin a put of many messages; its errors are Flight's."""
        descriptor = flight.FlightDescriptor.for_command(command)
        writer, reader = self._owner.do_put(descriptor, schema, self._options(timeout_s))
        return writer, reader

    def begin_get(self, ticket: bytes, timeout_s: float) -> flight.FlightStreamReader:
        """Begin to read what the owner itself serves; its errors are Flight's."""
        return self._owner.do_get(flight.Ticket(ticket), self._options(timeout_s))

    def get(self, ticket: bytes) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return schema and record batches behind a ticket."""

        def ask(
            reader: flight.FlightClient, options: flight.FlightCallOptions
        ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
            stream = reader.do_get(flight.Ticket(ticket), options)
            # It is only here that an answer is waited for.
            return stream.schema, _batches(stream)

        return self._ask_reader(ask)

    def schema(self, ticket: bytes) -> pa.Schema:
        """Return the columns of what is behind a ticket."""
        descriptor = flight.FlightDescriptor.for_command(ticket)
        # Not GetSchema: pyarrow forgets the details of its errors.
        return self._ask_reader(
            lambda reader, options: reader.get_flight_info(descriptor, options).schema
        )

    def _ask_reader(
        self, ask: Callable[[flight.FlightClient, flight.FlightCallOptions], _Answer]
    ) -> _Answer:
        """Ask the reading process; a second time if it went, and came back elsewhere."""
        for fresh in (False, True):
            reader = self._reader_client(fresh=fresh)
            try:
                with calling():
                    return ask(reader, self._options(self.settings.read_timeout))
            except OwnerGone:
                if fresh:
                    raise
        raise AssertionError("BUG: the second time returns or raises")

    def _reader_client(self, *, fresh: bool) -> flight.FlightClient:
        """Return the client of the reading process; where that is may have changed."""
        with self._lock:
            if self._reader is None or fresh:
                location = self.act("reader").text("location")
                # The old one is not closed: another thread may still read from it.
                self._reader = self._connect(location)
            return self._reader

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            self._owner.close()
            if self._reader is not None:
                self._reader.close()


def _batches(stream: flight.FlightStreamReader) -> Iterator[pa.RecordBatch]:
    try:
        with calling():
            for chunk in stream:
                yield chunk.data
    finally:
        stream.cancel()  # if whoever reads stopped before the end


def _pem(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
