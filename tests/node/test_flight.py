"""Senders and a data node over real sockets: puts, lost answers, bad peers, tokens, TLS, rows."""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight
from tests.node.handing_over import hand_over, some_parts
from tests.node.serving import connected, served
from tests.support.certificates import Certificates, make_certificates

from holdfast.errors import (
    BadConfig,
    BadInput,
    HoldfastError,
    NotAllowed,
    OwnerGone,
    UnknownPosition,
)
from holdfast.node.data_node import DataNode
from holdfast.node.replica import Incoming
from holdfast.node.service import NodeServer, answers_by
from holdfast.node.settings import DataNodeSettings
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.read.sealed import SealedRead
from holdfast.remote import FlightSettings, FlightTls, FlightToken, RemoteQuiver
from holdfast.remote.reader import Secrets
from holdfast.remote.wire import encode, reporting
from holdfast.replica.flight import SLICE_SCHEMA, slice_batch
from holdfast.replica.messages import AnswerKind, PartAnswer, part_fields
from holdfast.replica.part import PartId, slices
from holdfast.replica.transport import OutgoingPart, all_parts, whole_health
from holdfast.seam.disk import RealDisk
from holdfast.settings import Secret


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_parts_are_offered_sent_and_answered_one_by_one(tmp_path: Path) -> None:
    parts = some_parts()
    with served(tmp_path) as (node, location), connected(location) as transport:
        answers = transport.offer(node.node_id, [one.part for one in parts])
        assert [one.kind for one in answers] == ["need"] * 4
        assert [one.kind for one in transport.send(node.node_id, parts[:2])] == ["ack"] * 2
        answers = transport.send(node.node_id, parts)
        assert [one.kind for one in answers] == ["have", "have", "ack", "ack"]
        health = whole_health(transport)
        assert health.node_id == node.node_id
        assert health.holdings[0].stored.covers(parts[0].part.id.first_seq, 7)
        assert transport.health(known_digest=health.digest).holdings == ()
        assert node.scrub().damaged == ()


def test_ranges_that_a_node_does_not_own_are_told(tmp_path: Path) -> None:
    part = some_parts()[0].part.id
    with served(tmp_path) as (node, location), connected(location) as transport:
        transport.tell_not_owned(node.node_id, part.quiver_id, IntervalSet([(0, 7), (9, 12)]))
        (holding,) = transport.health().holdings
        assert list(holding.seen) == [(0, 7), (9, 12)]
        assert not holding.stored
        with pytest.raises(BadInput):
            transport.tell_not_owned(node.node_id, "../x", IntervalSet([(0, 7)]))


def test_a_part_is_fetched_by_its_range(tmp_path: Path) -> None:
    parts = some_parts()
    with served(tmp_path) as (node, location), connected(location) as transport:
        transport.send(node.node_id, parts[:1])
        fetched = transport.fetch(node.node_id, parts[0].part.id)
        assert fetched.part == parts[0].part
        sent = [piece.data for piece in slices(parts[0].disk, parts[0].folder, parts[0].part)]
        assert [bytes(piece.data) for piece in fetched.slices] == sent
        with pytest.raises(UnknownPosition):
            transport.fetch(node.node_id, parts[1].part.id)


def test_scenario_08_a_part_goes_from_one_node_to_another_without_a_disk_between(
    tmp_path: Path,
) -> None:
    parts, quiver_id = some_parts(), some_parts()[0].part.id.quiver_id
    with contextlib.ExitStack() as stack:
        nodes, ways = [], []
        for name in "ab":
            (tmp_path / name).mkdir()
            node, location = stack.enter_context(served(tmp_path / name))
            nodes.append(node)
            ways.append(stack.enter_context(connected(location)))
        ways[0].send(nodes[0].node_id, parts)
        everything = IntervalSet([(0, 100)])
        listed = list(all_parts(ways[0], nodes[0].node_id, quiver_id, everything))
        assert [one.part for one in listed] == [one.part for one in parts]
        last = parts[-1].part.id
        inside = IntervalSet([(last.first_seq, last.first_seq + 1)])
        wanted = ways[0].parts(nodes[0].node_id, quiver_id, inside)
        assert wanted == listed[-1:]
        fetched = ways[0].fetch(nodes[0].node_id, last)
        assert [one.kind for one in ways[1].send(nodes[1].node_id, [fetched])] == ["ack"]
        assert ways[1].parts(nodes[1].node_id, quiver_id, everything) == wanted
        assert ways[1].parts(nodes[1].node_id, str(uuid.uuid4()), everything) == []
        with pytest.raises(BadInput, match="was meant"):
            ways[1].parts("another", quiver_id, everything)
        # A source that goes in the middle, or whose disk lies, leaves nothing at the other.
        first = parts[0].part.id
        path = next((tmp_path / "a").rglob(parts[0].part.folder_name)) / "bundles.arrow"
        path.write_bytes(bytes(path.stat().st_size))
        (answer,) = ways[1].send(nodes[1].node_id, [ways[0].fetch(nodes[0].node_id, first)])
        assert answer.kind == "retry"
        assert "damaged" in answer.reason


def test_scenario_23_parts_that_are_meant_for_another_node_are_neither_taken_nor_settled(
    tmp_path: Path,
) -> None:
    parts = some_parts()
    quiver_id = parts[0].part.id.quiver_id
    with served(tmp_path) as (node, location), connected(location) as transport:
        transport.send(node.node_id, parts[:1])
        before = transport.health().digest
        for answers in (
            transport.offer("another", [one.part for one in parts]),  # it has the first
            transport.send("another", parts),
        ):
            assert [one.kind for one in answers] == [AnswerKind.WRONG_NODE] * 4
            assert all(node.node_id in one.reason for one in answers)
            assert all("another" in one.reason and "rebind" in one.reason for one in answers)
        with pytest.raises(BadInput, match=rf"{node.node_id} answers .* another was meant.*rebind"):
            transport.tell_not_owned("another", quiver_id, IntervalSet([(90, 99)]))
        with pytest.raises(BadInput, match=rf"{node.node_id} answers .* another was meant.*rebind"):
            transport.fetch("another", parts[0].part.id)
        assert transport.health().digest == before
        assert node.statistics().answers_total["wrong_node"] == 8


def test_scenario_11_one_refused_part_does_not_touch_the_others(tmp_path: Path) -> None:
    """Also defect 3: a failure of one of many is never turned into a success."""
    parts = list(some_parts())
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in parts[1].part.files:
        (damaged / file.name).write_bytes(parts[1].disk.read(parts[1].folder / file.name))
    (damaged / "bundles.arrow").write_bytes(bytes((damaged / "bundles.arrow").stat().st_size))
    sent = [parts[0], OutgoingPart(parts[1].part, RealDisk(), damaged), parts[2]]
    with served(tmp_path) as (node, location), connected(location) as transport:
        answers = transport.send(node.node_id, sent)
        assert [one.kind for one in answers] == ["ack", "retry", "ack"]
        answers = transport.send(node.node_id, parts)
        assert [one.kind for one in answers] == ["have", "ack", "have", "ack"]


def test_scenario_06_two_senders_at_once_store_a_part_once(tmp_path: Path) -> None:
    parts = some_parts()
    kinds: list[AnswerKind] = []
    with served(tmp_path) as (node, location):

        def send() -> None:
            with connected(location) as transport:
                kinds.extend(one.kind for one in transport.send(node.node_id, parts))

        senders = [threading.Thread(target=send) for _ in range(3)]
        for one in senders:
            one.start()
        for one in senders:
            one.join()
        assert kinds.count(AnswerKind.ACK) == 4
        assert set(kinds) <= {AnswerKind.ACK, AnswerKind.HAVE, AnswerKind.BUSY}
        assert node.statistics().adopted_total == 4


def test_scenario_04_a_sender_that_goes_midway_leaves_whole_parts_alone(tmp_path: Path) -> None:
    parts = some_parts()
    with served(tmp_path) as (node, location):
        client = flight.FlightClient(location)
        offered = [part_fields(one.part) for one in parts]
        command = encode({"node_id": node.node_id, "parts": offered})
        descriptor = flight.FlightDescriptor.for_command(command)
        writer, reader = client.do_put(descriptor, SLICE_SCHEMA)
        for place in (0, 1):
            pieces = list(slices(parts[place].disk, parts[place].folder, parts[place].part))
            for piece in pieces if place == 0 else pieces[:1]:
                writer.write_batch(slice_batch(place, piece))
        assert b'"ack"' in reader.read().to_pybytes()
        with pytest.raises(pa.ArrowException):
            writer.close()
        client.close()
        with connected(location) as transport:
            kinds = [one.kind for one in transport.offer(node.node_id, [one.part for one in parts])]
            assert kinds == ["have", "need", "need", "need"]
            answers = transport.send(node.node_id, parts)
            assert [one.kind for one in answers] == ["have", "ack", "ack", "ack"]
        staging = node.replica(parts[0].part.id.quiver_id).folder / "staging"
        assert not list(Path(staging).iterdir())


def test_a_range_that_somebody_sends_is_busy_over_the_wire(tmp_path: Path) -> None:
    (sent, *_) = some_parts()
    with served(tmp_path) as (node, location), connected(location) as transport:
        with node.receiving(sent.part) as incoming:
            assert isinstance(incoming, Incoming)
            (answer,) = transport.offer(node.node_id, [sent.part])
            assert answer.kind is AnswerKind.BUSY
            assert answer.retry_after_s == 1.0
        assert transport.send(node.node_id, [sent])[0].kind is AnswerKind.ACK


# ------------------------------------------------------------------------ bad peers

ONE = part_fields(some_parts()[0].part)


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        (b"{}", []),
        (b"nonsense", []),
        (encode({"parts": [ONE]}), []),
        (encode({"node_id": "MEANT", "parts": []}), [(0, 0, 0, b"x")]),
        (encode({"node_id": "MEANT", "parts": [ONE]}), []),
        (encode({"node_id": "MEANT", "parts": [ONE]}), [(7, 0, 0, b"x")]),
        (encode({"node_id": "MEANT", "parts": [ONE]}), [(-1, 0, 0, b"x")]),
        (encode({"node_id": "MEANT", "parts": [ONE]}), [(None, 0, 0, b"x")]),
    ],
)
def test_a_put_that_is_none_is_refused_with_words(
    tmp_path: Path, command: bytes, rows: list[tuple[Any, ...]]
) -> None:
    with served(tmp_path) as (node, location):
        client = flight.FlightClient(location)
        command = command.replace(b"MEANT", node.node_id.encode())
        writer, _ = client.do_put(flight.FlightDescriptor.for_command(command), SLICE_SCHEMA)
        with contextlib.suppress(flight.FlightError):  # the server may be quicker
            for row in rows:
                columns = zip(row, SLICE_SCHEMA.types, strict=True)
                arrays = [pa.array([value], kind) for value, kind in columns]
                writer.write_batch(pa.record_batch(arrays, schema=SLICE_SCHEMA))
            writer.done_writing()
        with pytest.raises(flight.FlightServerError) as refused:
            writer.close()
        assert b'"BadInput"' in (refused.value.extra_info or b"")
        client.close()
        assert node.statistics().parts == 0


def test_an_unknown_action_names_those_there_are(tmp_path: Path) -> None:
    with served(tmp_path) as (_, location), pytest.raises(BadInput, match="no quiver"):
        RemoteQuiver.open(location, "events")


class Liar(flight.FlightServerBase):  # type: ignore[misc]
    """Answers every action with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        super().__init__("grpc://127.0.0.1:0")

    def do_action(self, context: Any, action: Any) -> list[flight.Result]:
        return [flight.Result(self.answer)] if self.answer else []

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        for _ in reader:
            pass
        if self.answer:
            writer.write(self.answer)

    def do_get(self, context: Any, ticket: Any) -> flight.GeneratorStream:
        return flight.GeneratorStream(SLICE_SCHEMA, iter(()))


OTHERS = PartAnswer(PartId(some_parts()[0].part.id.quiver_id, 900, 901), AnswerKind.ACK).to_fields()


@pytest.mark.parametrize(
    "answer",
    [b"", b"nonsense", b"[]", encode({}), encode({"answers": [{}]}), encode({"answers": [OTHERS]})],
)
def test_a_node_that_lies_settles_nothing(answer: bytes) -> None:
    (sent, *_) = some_parts()
    with Liar(answer) as liar, connected(f"grpc://127.0.0.1:{liar.port}") as transport:
        for call in (
            lambda: transport.offer("n", [sent.part]),
            lambda: transport.send("n", [sent]),
            transport.health,
            lambda: transport.fetch("n", sent.part.id),
        ):
            with pytest.raises(OwnerGone) as error:
                call()
            assert error.value.hint


def test_scenario_13_a_refused_port_a_hanging_node_and_another_program_are_told() -> None:
    (sent, *_) = some_parts()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        refused = f"grpc://127.0.0.1:{silent.getsockname()[1]}"
        with connected(refused, timeout=2.0) as transport, pytest.raises(OwnerGone):
            transport.offer("n", [sent.part])
        silent.listen()  # it takes connections, and never answers
        with connected(refused, timeout=0.5) as transport, pytest.raises(OwnerGone):
            transport.health()
    with flight.FlightServerBase("grpc://127.0.0.1:0") as other:
        location = f"grpc://127.0.0.1:{other.port}"
        with connected(location) as transport, pytest.raises(OwnerGone):
            transport.health()


def test_scenario_05_a_sender_that_hangs_up_before_its_answer_is_no_failure_of_the_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (sent, *_) = some_parts()

    class Gone:
        def write(self, body: bytes) -> None:
            raise OSError("Unknown error writing metadata.")

    with pytest.raises(flight.FlightError, match="hung up"), reporting():
        answers_by(Gone())(PartAnswer(sent.part.id, AnswerKind.ACK))
    assert not caplog.records


# --------------------------------------------------------------------- who may call


def test_tokens_decide_who_may_do_what(tmp_path: Path) -> None:
    (sent, *_) = some_parts()
    tokens = (
        FlightToken(name="sender", token=Secret("s3nd"), rights=("append", "read")),
        FlightToken(name="reader", token=Secret("r3ad"), rights=("read",)),
    )
    with served(tmp_path, tokens=tokens) as (node, location):
        with connected(location) as transport, pytest.raises(NotAllowed):
            transport.health()
        with connected(location, token="r3ad") as transport:
            transport.health()
            with pytest.raises(NotAllowed):
                transport.offer(node.node_id, [sent.part])
            with pytest.raises(NotAllowed):
                transport.send(node.node_id, [sent])
        with connected(location, token="s3nd") as transport:
            assert transport.send(node.node_id, [sent])[0].kind is AnswerKind.ACK


def test_the_world_is_not_served_without_tokens(tmp_path: Path) -> None:
    node = DataNode(tmp_path, DataNodeSettings(flight=FlightSettings(listen="0.0.0.0:0")))
    with pytest.raises(BadConfig, match="anybody"):
        NodeServer(node, Secrets())
    node.close()


def test_mutual_tls_lets_known_senders_in_alone(tmp_path: Path, certificates: Certificates) -> None:
    (sent, *_) = some_parts()
    tls = FlightTls(
        cert_file=str(certificates.server),
        key_file=str(certificates.server_key),
        client_ca_file=str(certificates.ca),
    )
    with served(tmp_path, tls=tls) as (node, location):
        known = {
            "ca_file": str(certificates.ca),
            "cert_file": str(certificates.client),
            "key_file": str(certificates.client_key),
        }
        with connected(location, **known) as transport:
            assert transport.send(node.node_id, [sent])[0].kind is AnswerKind.ACK
        with connected(location, ca_file=known["ca_file"]) as transport, pytest.raises(OwnerGone):
            transport.health()


# ---------------------------------------------------------------------------- rows


def test_rows_of_a_replica_are_read_as_those_of_a_quiver(tmp_path: Path) -> None:
    parts = some_parts()
    quiver_id = parts[0].part.id.quiver_id
    with served(tmp_path) as (node, location):
        hand_over(node, parts[0])
        hand_over(node, parts[2])  # with a hole between the two
        with RemoteQuiver.open(location, quiver_id) as remote:
            found = remote.segments("slot-0")
            assert [one.first_seq for one in found] == [parts[p].part.id.first_seq for p in (0, 2)]
            names = tuple(one.name for one in found)
            rows = remote.read(SealedRead(quiver_id, names, "slot-0")).read_all()
            assert rows.column("_seq").to_pylist() == [0, 0, 3, 3, 5, 5]
            hand_over(node, parts[1])
            assert len(remote.segments("slot-0")) == 3
            with pytest.raises(HoldfastError):
                remote.cursor("reader")
