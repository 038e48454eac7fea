"""The way to a data node over Arrow Flight, and the form of a part's bytes on the wire.

    offer, health, not_owned,
    parts, scrub                actions, with JSON in and out
    put                         DoPut: the parts in the descriptor, then their slices, a row each;
                                an answer for each part comes back as soon as it is settled
    fetch                       DoGet: the part in the schema's metadata, then its slices

A put cannot be cancelled, so each has a deadline by its bytes (`put_timeout_s`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import flight

from holdfast.errors import BadInput, OwnerGone
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.remote.connection import Connection
from holdfast.remote.settings import ClientSettings
from holdfast.remote.wire import Fields, calling, encode, from_flight
from holdfast.replica.messages import (
    HealthPage,
    ListedPart,
    NodeHealth,
    PartAnswer,
    ScrubPage,
    decode_part,
    documents,
    interval_fields,
    page_fields,
    part_fields,
)
from holdfast.replica.part import Part, PartId, Slice
from holdfast.replica.transport import PUT_PATIENCE_S, FetchedPart, OutgoingPart, put_timeout_s

# One row is one slice. `part` is the place in the list of the put's descriptor.
SLICE_SCHEMA = pa.schema(
    [("part", pa.int32()), ("file", pa.int32()), ("offset", pa.int64()), ("data", pa.binary())]
)
PART_KEY = b"holdfast.part"


def slice_batch(part: int, piece: Slice) -> pa.RecordBatch:
    """Return a slice as it is sent; its bytes are not copied."""
    ends = pa.array([0, len(piece.data)], pa.int32()).buffers()[1]
    data = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(piece.data)])
    numbers = [
        pa.array([number], kind)
        for number, kind in zip(
            (part, piece.file, piece.offset_bytes), SLICE_SCHEMA.types[:3], strict=True
        )
    ]
    return pa.record_batch([*numbers, data], schema=SLICE_SCHEMA)


def batch_slices(batch: pa.RecordBatch) -> Iterator[tuple[int, Slice]]:
    """Yield the slices in what was received, each with the place of its part."""
    if not batch.schema.equals(SLICE_SCHEMA) or any(column.null_count for column in batch.columns):
        raise BadInput("the stream does not hold slices", hint="see docs/format/replica.md")
    part, file, offset = (batch.column(place).to_pylist() for place in range(3))
    for row, data in enumerate(batch.column(3)):
        yield part[row], Slice(file[row], offset[row], memoryview(data.as_buffer()))


def described(part: Part) -> pa.Schema:
    """Return the schema of a fetched part, which says what it is."""
    return SLICE_SCHEMA.with_metadata({PART_KEY: json.dumps(part_fields(part)).encode()})


class FlightTransport:
    """The way to the data node at one location. Safe to use from several threads."""

    def __init__(
        self,
        location: str,
        settings: ClientSettings | None = None,
        *,
        put_patience_s: float = PUT_PATIENCE_S,
        health_timeout_s: float | None = None,
    ) -> None:
        self._put_patience_s = put_patience_s
        # Of one page of a statement; None: as long as any other action.
        self._health_timeout_s = health_timeout_s
        self._settings = settings or ClientSettings()
        self._connection = Connection(location, self._settings)

    def offer(self, node_id: str, parts: Sequence[Part]) -> list[PartAnswer]:
        """Say what there is; return an answer for each part, in order."""
        offered = [part_fields(part) for part in parts]
        answer = self._act("offer", node_id=node_id, parts=offered)
        with _reading_answer():
            found = [PartAnswer.from_fields(one) for one in documents(answer, "answers")]
            _require_same(found, [part.id for part in parts])
        return found

    def send(self, node_id: str, parts: Sequence[OutgoingPart | FetchedPart]) -> list[PartAnswer]:
        """Send parts; return the answers that came, in order: see `Transport.send`."""
        command = encode({"node_id": node_id, "parts": [part_fields(one.part) for one in parts]})
        size_bytes = sum(one.part.size_bytes for one in parts)
        timeout_s = put_timeout_s(size_bytes, self._put_patience_s)
        failed: pa.ArrowException | None = None
        with calling():
            writer, reader = self._connection.begin_put(command, SLICE_SCHEMA, timeout_s)
        try:
            for place, one in enumerate(parts):
                for piece in one.slices:
                    writer.write_batch(slice_batch(place, piece))
            writer.done_writing()
        except pa.ArrowException as error:
            failed = error  # what it answered before still counts
        except BaseException:
            _hang_up(writer)
            raise
        answers: list[PartAnswer] = []
        try:
            while len(answers) < len(parts) and (body := reader.read()) is not None:
                with _reading_answer():
                    answers.append(PartAnswer.from_fields(Fields.decode(body.to_pybytes())))
                    _require_same(answers, [one.part.id for one in parts[: len(answers)]])
        except pa.ArrowException as error:
            failed = failed or error
        finally:
            # It is here that a node's own error is told; before, only that the stream broke.
            failed = _hang_up(writer) or failed
        if not answers and parts:
            raise from_flight(failed) if failed else _silent()
        return answers

    def tell_not_owned(self, node_id: str, quiver_id: str, ranges: IntervalSet) -> None:
        """Say which seqs are none of the node's."""
        told = interval_fields(ranges)
        self._act("not_owned", node_id=node_id, quiver_id=quiver_id, ranges=told)

    def health(self, page: HealthPage | None = None, known_digest: str = "") -> NodeHealth:
        """Return a page of its statement; without holdings if they are those of the digest."""
        begin = None if page is None else page_fields(page)
        answer = self._connection.act(
            "health", timeout_s=self._health_timeout_s, page=begin, known_digest=known_digest
        )
        with _reading_answer():
            return NodeHealth.from_fields(answer)

    def parts(self, node_id: str, quiver_id: str, ranges: IntervalSet) -> list[ListedPart]:
        """Return the parts that have seqs of some ranges, in order: `PARTS_LISTED_MAX` at most."""
        asked = interval_fields(ranges)
        answer = self._act("parts", node_id=node_id, quiver_id=quiver_id, ranges=asked)
        with _reading_answer():
            found = [ListedPart.from_fields(one) for one in documents(answer, "parts")]
            if any(one.part.id.quiver_id != quiver_id for one in found):
                raise BadInput("the answer is about another quiver", hint="is it a data node?")
        return found

    def scrub(self, node_id: str, after: PartId | None = None) -> ScrubPage:
        """Have the node read every byte of some parts, behind one; it takes about a second."""
        behind = None if after is None else list(after)
        answer = self._act("scrub", node_id=node_id, after=behind)
        with _reading_answer():
            return ScrubPage.from_fields(answer)

    def fetch(self, node_id: str, part_id: PartId) -> FetchedPart:
        """Return the bytes of a part that the node has; raise `UnknownPosition` if it has not."""
        ticket = encode({"node_id": node_id, "part": list(part_id)})
        with calling():
            stream = self._connection.begin_get(ticket, self._settings.read_timeout)
            schema = stream.schema
        with _reading_answer():
            metadata = (schema.metadata or {}).get(PART_KEY, b"{}")
            part = decode_part(Fields(json.loads(metadata)))
        if part.id != part_id:
            raise _odd(f"it gave part {part.id} for {part_id}")
        return FetchedPart(part, _fetched_slices(stream))

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _act(self, name: str, **fields: Any) -> Fields:
        return self._connection.act(name, **fields)


def _fetched_slices(stream: flight.FlightStreamReader) -> Iterator[Slice]:
    with calling(), _reading_answer():
        for chunk in stream:
            for _, piece in batch_slices(chunk.data):
                yield piece


def _hang_up(writer: flight.FlightStreamWriter) -> pa.ArrowException | None:
    """End a put; return why it ended, if it did not end well."""
    try:
        writer.close()
    except pa.ArrowException as error:
        return error
    return None


def _require_same(answers: Sequence[PartAnswer], asked: Iterable[PartId]) -> None:
    """Refuse answers about other parts: a part must not be settled by a mix-up."""
    if [one.part for one in answers] != list(asked):
        raise BadInput("the answers are about other parts", hint="is it a data node?")


@contextlib.contextmanager
def _reading_answer() -> Iterator[None]:
    """Turn what is wrong with a node's answer into an error about the node."""
    try:
        yield
    except (BadInput, ValueError, KeyError, TypeError) as error:
        raise _odd(str(error)) from error


def _odd(what: str) -> OwnerGone:
    return OwnerGone(
        f"the node's answer cannot be read: {what}",
        hint="is a data node of the same version at that address?",
    )


def _silent() -> OwnerGone:
    return OwnerGone("the node ended the call without an answer", hint="offer the parts again")
