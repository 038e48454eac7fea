"""The Flight service of the process that serves sealed data: tickets in, record batches out.

It has no lock, no ledger and no say: it reads the segments a ticket names, and sends the rows it
asks for. What it holds in memory is bounded by `max_calls` times a few messages: rows go from the
file to the socket in slices of `read_message` bytes (at any moment one record
batch per call is in memory), and nothing is kept between calls. So a segment that was removed is
not held on disk either, once its last reader is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

import pyarrow as pa
from pyarrow import flight

from holdfast.errors import BadInput
from holdfast.quiver.read.sealed import scan_sealed
from holdfast.remote.faults import answering, told
from holdfast.remote.gate import GATE, CallerToken, Gate, client_of
from holdfast.remote.wire import decode_ticket
from holdfast.seam.disk import Disk


@dataclass(frozen=True)
class Secrets:
    """What the two processes of a server share: who may call, and the keys of TLS."""

    credentials: tuple[CallerToken, ...] = ()
    # Certificate and key, as PEM.
    certificate: tuple[str, str] | None = None
    client_ca: str | None = None

    @property
    def tls(self) -> dict[str, object]:
        """What `FlightServerBase` wants to know of TLS."""
        if self.certificate is None:
            return {}
        return {
            "tls_certificates": [self.certificate],
            "verify_client": self.client_ca is not None,
            "root_certificates": self.client_ca,
        }


def location(host: str, port: int, *, encrypted: bool) -> str:
    """Return the location of a server as Flight writes it."""
    shown = f"[{host}]" if ":" in host else host
    return f"{'grpc+tls' if encrypted else 'grpc'}://{shown}:{port}"


class ReaderService(flight.FlightServerBase):  # type: ignore[misc]
    """Serves sealed rows of some quivers, by name."""

    def __init__(
        self,
        disk: Disk,
        directories: Mapping[str, PurePath],
        address: tuple[str, int],
        gate: Gate,
        secrets: Secrets,
        message_bytes: int,
    ) -> None:
        self._disk = disk
        self._directories = directories
        self._message_bytes = message_bytes
        where = location(*address, encrypted=secrets.certificate is not None)
        super().__init__(where, middleware={GATE: gate}, **secrets.tls)

    @answering
    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.GeneratorStream:
        """Send the rows that a ticket asks for."""
        reader = self._scan(context, ticket.ticket)
        return flight.GeneratorStream(reader.schema, self._messages(context, reader))

    @answering
    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Return the columns of what a ticket asks for; it is the descriptor's command."""
        reader = self._scan(context, descriptor.command or b"", nulls_for_unknown=False)
        return flight.FlightInfo(reader.schema, descriptor, [], -1, -1)

    def _scan(
        self, context: flight.ServerCallContext, ticket: bytes, *, nulls_for_unknown: bool = True
    ) -> pa.RecordBatchReader:
        client_of(context).require("read")
        name, wanted = decode_ticket(ticket)
        directory = self._directories.get(name)
        if directory is None:
            raise BadInput(
                f"no quiver {name!r} is served",
                hint=f"there are {', '.join(self._directories) or 'none'}",
            )
        return scan_sealed(self._disk, directory, wanted, nulls_for_unknown=nulls_for_unknown)

    def _messages(
        self, context: flight.ServerCallContext, reader: pa.RecordBatchReader
    ) -> Iterator[pa.RecordBatch]:
        with told():
            for batch in reader:
                for part in sliced(batch, self._message_bytes):
                    if context.is_cancelled():
                        return
                    yield part


def sliced(batch: pa.RecordBatch, message_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in parts of about so many bytes, each with a row at least."""
    # Of a slice this counts the whole; then its parts come out smaller, never larger.
    size_bytes = max(1, batch.get_total_buffer_size())
    rows = max(1, batch.num_rows * message_bytes // size_bytes)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
