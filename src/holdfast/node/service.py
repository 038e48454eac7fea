"""The Flight service of a data node: offers, puts and health; and rows, through a child process.

What senders ask is answered here. Readers find the replicas as if they were quivers: `quivers`,
`segments` and `reader` are those of `remote`, and rows come from the same reading process, so that
a Spark job does not share the interpreter that adopts parts.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from queue import Queue
from typing import Any, Self

import pyarrow as pa
from pyarrow import flight

from holdfast.errors import BadConfig, BadInput, HoldfastError, OwnerGone
from holdfast.node import layout
from holdfast.node.data_node import DataNode
from holdfast.quiver.read.scan import TimeRange
from holdfast.remote.reader import (
    GATE,
    Gate,
    Secrets,
    ServedQuivers,
    client_of,
    location,
    require_free,
)
from holdfast.remote.server import STOP_PATIENCE_S, ReaderProcess, require_protected
from holdfast.remote.settings import FlightSettings, Right, split_address
from holdfast.remote.stored import stored_segments
from holdfast.remote.wire import Fields, answering, encode, reporting
from holdfast.replica.flight import batch_slices, described, slice_batch
from holdfast.replica.messages import (
    PARTS_LISTED_MAX,
    PartAnswer,
    decode_intervals,
    decode_page,
    decode_part_id,
    decode_parts,
    require_meant,
)
from holdfast.replica.part import Part, Slice
from holdfast.seam import Seam

_KEY_BYTES = 32
# Of one put: parts that are stored at the same time, and slices (of 1 MiB) of each that wait to be
# written. So much memory it takes at most.
PARTS_AT_ONCE = 4
SLICES_WAITING_MAX = 4

log = logging.getLogger("holdfast.node")

NodeAction = Callable[[Fields], dict[str, Any]]


class NodeService(flight.FlightServerBase):  # type: ignore[misc]
    """Answers for one data node.

    What a sender says or asks of parts names the `node_id` it is meant for. The address may have
    been given to another node since the sender last looked, and then an acknowledgement would count
    for a node that has nothing.
    """

    def __init__(
        self,
        node: DataNode,
        settings: FlightSettings,
        gate: Gate,
        secrets: Secrets,
        reader: Callable[[], str],
    ) -> None:
        """`reader` returns the location of the process that serves rows."""
        self._node = node
        self._settings = settings
        self._reader = reader
        self._actions: dict[str, tuple[Right, NodeAction]] = {
            "offer": ("append", self._offer),
            "not_owned": ("append", self._not_owned),
            "health": ("read", self._health),
            "parts": ("read", self._parts),
            "quivers": ("read", self._quivers),
            "reader": ("read", lambda _: {"location": self._reader()}),
            "segments": ("read", self._segments),
            "scrub": ("append", self._scrub),
        }
        where = location(*split_address(settings.listen), encrypted=secrets.certificate is not None)
        super().__init__(where, middleware={GATE: gate}, **secrets.tls)

    @answering
    def do_action(
        self, context: flight.ServerCallContext, action: flight.Action
    ) -> list[flight.Result]:
        """Do what an action asks for."""
        known = self._actions.get(action.type)
        if known is None:
            raise BadInput(
                f"a data node has no action {action.type!r}",
                hint=f"there are {', '.join(self._actions)}; quivers are served by `holdfast up`",
            )
        right, act = known
        client_of(context).require(right)
        return [flight.Result(encode(act(self._decode(action.body))))]

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        """Name the actions."""
        return [(name, f"needs the right {right!r}") for name, (right, _) in self._actions.items()]

    @answering
    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Take parts in; each is answered as soon as it is settled."""
        client_of(context).require("append")
        fields = self._decode(descriptor.command or b"")
        parts = decode_parts(fields)

        answer = answers_by(writer)
        pieces = (
            one for chunk in reader if chunk.data is not None for one in batch_slices(chunk.data)
        )
        refused = self._node.misdirected(fields.text("node_id"), parts)
        if refused:
            for _ in pieces:
                pass  # a stream that ends early would break the call before its answers are read
            for one in refused:
                answer(one)
            return
        with PutReceiver(self._node, parts, answer) as receiver:
            for place, piece in pieces:
                receiver.take(place, piece)
            receiver.finish()

    @answering
    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.GeneratorStream:
        """Send the bytes of a part, for a node that lacks it."""
        client_of(context).require("read")
        fields = self._decode(ticket.ticket)
        if "part" not in fields.values:
            raise BadInput(
                "rows are served by another process", hint=f"send the ticket to {self._reader()}"
            )
        require_meant(self._node.node_id, fields.text("node_id"))
        part, pieces = self._node.fetch(decode_part_id(fields.values["part"]))
        return flight.GeneratorStream(described(part), _batches(pieces))

    # ------------------------------------------------------------------ actions

    def _offer(self, fields: Fields) -> dict[str, Any]:
        parts = decode_parts(fields)
        answers = self._node.misdirected(fields.text("node_id"), parts) or self._node.offer(parts)
        return {"answers": [one.to_fields() for one in answers]}

    def _not_owned(self, fields: Fields) -> dict[str, Any]:
        require_meant(self._node.node_id, fields.text("node_id"))
        ranges = decode_intervals(fields.values.get("ranges"))
        self._node.tell_not_owned(fields.text("quiver_id"), ranges)
        return {}

    def _health(self, fields: Fields) -> dict[str, Any]:
        page = decode_page(fields.values.get("page"))
        return self._node.health(page, fields.text("known_digest", "")).to_fields()

    def _parts(self, fields: Fields) -> dict[str, Any]:
        # One page of them. The caller asks again behind the last one; an answer without an end
        # would grow with the node.
        require_meant(self._node.node_id, fields.text("node_id"))
        ranges = decode_intervals(fields.values.get("ranges"))
        listed = self._node.listed(fields.text("quiver_id"), ranges)
        return {"parts": [one.to_fields() for one in islice(listed, PARTS_LISTED_MAX)]}

    def _scrub(self, fields: Fields) -> dict[str, Any]:
        require_meant(self._node.node_id, fields.text("node_id"))
        after = fields.values.get("after")
        page = self._node.scrub(None if after is None else decode_part_id(after))
        return page.to_fields()

    def _quivers(self, fields: Fields) -> dict[str, Any]:
        """List the replicas as a server of quivers does; each is called by its id."""
        return {
            "quivers": [
                {
                    "name": one.quiver_id,
                    "quiver_id": one.quiver_id,
                    "directory": str(one.folder),
                    "subscribers": [],
                }
                for one in self._node.replicas()
            ]
        }

    def _segments(self, fields: Fields) -> dict[str, Any]:
        times = TimeRange(fields.whole_or_none("since_us"), fields.whole_or_none("until_us"))
        segments = self._node.replica(fields.text("quiver")).segments()
        start, end = fields.position_or_none("start"), fields.position_or_none("end")
        found = stored_segments(segments, fields.text("slot"), times, start, end)
        return {"segments": [segment.to_fields() for segment in found]}

    def _decode(self, body: bytes | pa.Buffer) -> Fields:
        if len(body) > self._settings.max_message:
            raise BadInput(
                f"a request of {len(body)} bytes", hint="send less, or raise flight.max_message"
            )
        return Fields.decode(memoryview(body))


def answers_by(writer: flight.FlightMetadataWriter) -> Callable[[PartAnswer], None]:
    """Return how the parts of a put are answered."""

    def answer(one: PartAnswer) -> None:
        try:
            writer.write(encode(one.to_fields()))
        except OSError as error:
            # It gave up, or died. What was adopted stays so, and is told when it is offered again.
            raise OwnerGone(
                f"the sender hung up before it was told {one.kind} for part {one.part}",
                hint="offer the part again",
            ) from error

    return answer


class PutReceiver:
    """One put: parts come one after the other, and the next is written while others are synced.

    A disk syncs several files in hardly more time than one, and a sender that waits for each sync
    leaves the network idle. Answers are given in the order of the parts all the same.
    """

    def __init__(
        self, node: DataNode, parts: list[Part], answer: Callable[[PartAnswer], None]
    ) -> None:
        self._node = node
        self._parts = parts
        self._answer = answer
        self._place = -1
        # Those that are not settled yet; of the last one slices still come.
        self._intakes: deque[_PartIntake] = deque()

    def take(self, place: int, piece: Slice) -> None:
        """Hand a slice over. The first one of the next part ends the part before it.

        So a call that breaks costs the part that was under way and no other.
        """
        if place == self._place + 1 and place < len(self._parts):
            self._begin(place)
        if place != self._place or not self._intakes:
            raise BadInput(
                f"a slice of part {place} came where part {self._place} is sent",
                hint="send parts one after the other, in the order of the descriptor",
            )
        self._intakes[-1].take(piece)

    def _begin(self, place: int) -> None:
        self._place = place
        if self._intakes:
            self._intakes[-1].end(is_whole=True)
        while len(self._intakes) >= PARTS_AT_ONCE:
            self._intakes.popleft().wait()
        before = self._intakes[-1] if self._intakes else None
        self._intakes.append(_PartIntake(self._node, self._parts[place], self._answer, before))

    def finish(self) -> None:
        """Settle the last parts. A stream that ended before is no answer: offer them again."""
        if self._place != len(self._parts) - 1:
            raise BadInput(
                f"the put ended after {self._place + 1} parts of {len(self._parts)}",
                hint="offer the others again",
            )
        if self._intakes:
            self._intakes[-1].end(is_whole=True)
        while self._intakes:
            self._intakes.popleft().wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """After a failure: give up what came in part, and let what came whole be stored."""
        if self._intakes:
            self._intakes[-1].end(is_whole=False)
        for one in self._intakes:
            one.join()


class _PartIntake:
    """One part of a put. Its slices go to a thread of its own, which stores it, and answers."""

    def __init__(
        self,
        node: DataNode,
        part: Part,
        answer: Callable[[PartAnswer], None],
        before: _PartIntake | None,
    ) -> None:
        """`before` is the part that is answered before this one."""
        self._node = node
        self._part = part
        self._answer = answer
        self._before = before
        self._arrived: Queue[Slice | None] = Queue(SLICES_WAITING_MAX)
        self._is_ended = self._is_whole = False
        self._failure: BaseException | None = None
        # A daemon: a sender that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="node-part", daemon=True)
        self._thread.start()

    def take(self, piece: Slice) -> None:
        """Hand over a slice; waits while too many of them are not written yet."""
        self._arrived.put(piece)

    def end(self, *, is_whole: bool) -> None:
        """No more slices come: these are all of them, or it is given up. The first call counts."""
        if not self._is_ended:
            self._is_ended, self._is_whole = True, is_whole
            self._arrived.put(None)

    def join(self) -> None:
        """Wait until nothing is done any more."""
        self._thread.join()

    def wait(self) -> None:
        """Wait until it is settled; raise what kept it from being answered."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        pieces = iter(self._arrived.get, None)
        try:
            answer = self._stored(pieces)
            for _ in pieces:
                pass  # of a part that is refused
            if self._before is not None:
                self._before.join()
                self._before = None
            if answer is not None:
                self._answer(answer)
        except BaseException as error:
            self._failure = error
            for _ in pieces:
                pass

    def _stored(self, pieces: Iterator[Slice]) -> PartAnswer | None:
        """Take a part in; return the answer for it, None if it did not come whole."""
        with self._node.receiving(self._part) as incoming:
            if isinstance(incoming, PartAnswer):
                return incoming
            try:
                for piece in pieces:
                    incoming.write(piece)
            except (HoldfastError, OSError) as error:
                return self._node.fail(incoming, error)
            return self._node.commit(incoming) if self._is_whole else None


def _batches(pieces: Iterator[Slice]) -> Iterator[pa.RecordBatch]:
    with reporting():
        for piece in pieces:
            yield slice_batch(0, piece)


class NodeServer:
    """Serves a data node until it is stopped: senders, readers, and its own retention."""

    def __init__(self, node: DataNode, secrets: Secrets, *, seam: Seam | None = None) -> None:
        """Do not listen yet. The secrets are those of `node.settings.flight` (`secrets_of`)."""
        self._node = node
        self._settings = node.settings.flight
        seam = seam or Seam()
        self._host, self._port = split_address(self._settings.listen)
        self._secrets = secrets
        require_protected(self._settings, self._secrets)
        key = seam.randomness.randbytes(_KEY_BYTES)
        self._gate = Gate(self._secrets.credentials, self._settings.max_calls, key)
        orders = ServedQuivers(
            directories={},
            host=self._host,
            port=self._settings.reader_port,
            max_calls=self._settings.max_calls,
            message_bytes=self._settings.read_message,
            secrets=self._secrets,
            replicas=str(node.root / layout.REPLICAS_DIR),
        )
        restarts = self._settings.restart_min, self._settings.restart_max
        self.reader = ReaderProcess(orders, seam.clock, *restarts)
        self._service: NodeService | None = None
        self._stopping = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="node-sweeper", daemon=True)

    def start(self) -> None:
        """Listen, and start the reading process."""
        require_free(self._host, self._port)
        try:
            self._service = NodeService(
                self._node, self._settings, self._gate, self._secrets, self._reader_location
            )
        except pa.ArrowException as error:
            raise BadConfig(
                f"{self._settings.listen} cannot be served",
                hint="do certificate and key in tls belong together?",
            ) from error
        try:
            self.reader.start()
            self._sweeper.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all calls, and the reading process."""
        self._stopping.set()
        if self._service is not None:
            # It waits for all calls, and a client that hangs must not keep the process from ending.
            ending = threading.Thread(
                target=self._service.shutdown, name="node-shutdown", daemon=True
            )
            ending.start()
            ending.join(STOP_PATIENCE_S)
            if ending.is_alive():
                log.warning("calls were still going on when the data node was stopped")
            self._service = None
        self.reader.stop()
        # Waited for without a limit: it may be between the cold tier's commit and `seen`. It looks
        # at `_stopping` as it goes.
        if self._sweeper.is_alive():
            self._sweeper.join()

    @property
    def location(self) -> str:
        """Where it answers, as senders write it."""
        assert self._service is not None, "it is not started"
        return self._at(self._service.port)

    def _reader_location(self) -> str:
        return self._at(self.reader.port(patience_s=self._settings.max_wait))

    def _at(self, port: int) -> str:
        host = self._settings.advertise_host or self._host
        return location(host, port, encrypted=self._secrets.certificate is not None)

    def _sweep(self) -> None:
        while not self._stopping.wait(self._node.settings.sweep_interval):
            self._node.sweep(self._stopping.is_set)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
