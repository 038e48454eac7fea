"""The source and the sink over Flight: beside a living gateway, and when it dies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.dataflow.driver import QUERY_ID, Driver
from tests.dataflow.quivers import CONFIG, at, batch
from tests.dataflow.test_sinks import Sink
from tests.dataflow.test_stream_reader import numbers, wait_for

from holdfast.dataflow.source import quiver_location as place
from holdfast.dataflow.source.notes import read_explanations
from holdfast.dataflow.source.quiver_location import connect
from holdfast.errors import BadConfig, Fenced, OwnerGone
from holdfast.quiver import Outcome, Quiver
from holdfast.quiver.base.frame import FrameKind
from holdfast.remote import FlightSettings, QuiverServer
from holdfast.signals.event import events_of


class LiveGateway:
    """A quiver with its server, which can be stopped and started on the same port."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.quiver = Quiver.open(path, CONFIG)
        self._listen = "127.0.0.1:0"
        self.server: QuiverServer | None = None
        self.start()

    def start(self) -> None:
        self.server = QuiverServer({"main": self.quiver}, FlightSettings(listen=self._listen))
        self.server.start()
        self._listen = self.server.location.removeprefix("grpc://")

    @property
    def address(self) -> str:
        return f"grpc://{self._listen}/main"

    def append(self, *rows: tuple[float, int]) -> None:
        self.quiver.append(batch((seconds, "k", number) for seconds, number in rows))
        self.quiver.flush()

    def die(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None

    def stop(self) -> None:
        self.die()
        self.quiver.close()


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[Callable[[str], LiveGateway]]:
    started: list[LiveGateway] = []

    def make(name: str) -> LiveGateway:
        started.append(LiveGateway(tmp_path / name))
        return started[-1]

    yield make
    for gateway in started:
        gateway.stop()


def driver(address: str, checkpoint: Path, **options: object) -> Driver:
    connect.cache_clear()  # a driver is a new process, and knows nobody yet
    given = {"quiver": address, "watermark": True, "max_delay": "5s", "idle_after": "1h"}
    return Driver("", checkpoint, **{**given, "call_timeout": "20s", **options})


@pytest.mark.parametrize("local_reads", [True, False])
def test_a_living_gateway_is_read_and_acknowledged(
    gateways: Callable[[str], LiveGateway], tmp_path: Path, local_reads: bool
) -> None:
    gateway = gateways("one")
    gateway.append((1.0, 1), (2.0, 2))
    query = driver(gateway.address, tmp_path / "c", local_reads=local_reads)
    assert numbers(query.next()) == [1, 2]
    gateway.append((30.0, 3), (20.0, 4))
    rows = query.next()
    assert numbers(rows) == [3, 4]
    assert rows is not None
    assert rows.column("_wm")[0].as_py() == at(25)
    assert query.next() is None
    query.stop()
    balance = gateway.quiver.balance("stats")
    assert balance.outcomes[Outcome.ACKED].events == 4


def test_a_second_driver_takes_over_and_the_first_is_fenced_off(
    gateways: Callable[[str], LiveGateway], tmp_path: Path
) -> None:
    gateway = gateways("one")
    gateway.append((1.0, 1))
    first = driver(gateway.address, tmp_path / "c")
    assert first.plan() == 0
    second = driver(gateway.address, tmp_path / "c")
    assert numbers(second.next()) == [1]
    gateway.append((2.0, 2))
    with pytest.raises(Fenced):
        first.reader.latestOffset(first.offset(), first.reader.getDefaultReadLimit())
    first.stop()
    assert numbers(second.next()) == [2]
    second.stop()


def test_a_dead_gateway_holds_the_watermark_and_nothing_of_it_is_late(
    gateways: Callable[[str], LiveGateway], tmp_path: Path
) -> None:
    one, two = gateways("one"), gateways("two")
    one.append((10.0, 1))
    two.append((12.0, 2))
    query = driver(f"{one.address},{two.address}", tmp_path / "c")
    assert numbers(query.next()) == [1, 2]
    two.append((13.0, 3))  # accepted, not read, and then it dies
    two.die()
    for step in range(3):
        one.append((100.0 + step, 10 + step))
        rows = query.next()
        assert rows is not None
        assert numbers(rows) == [10 + step]
        assert rows.column("_wm")[0].as_py() == at(5)
    claim = query.reader.planner.claim
    assert claim is not None
    assert f"by {two.address}: does not answer since" in claim.explain()
    note = read_explanations(str(tmp_path / "c"))["stats"]
    assert note["explanation"] == claim.explain()
    assert note["holds"][0]["gateway"] == two.address
    two.start()
    two.append((110.0, 4))
    rows = wait_for(query.next)
    assert numbers(rows) == [3, 4]
    # In force while the row of 13 s is read: nothing after it.
    assert rows.column("_wm_prev")[0].as_py() == at(5)
    assert rows.column("_wm")[0].as_py() == at(97)
    query.stop()


def test_what_only_its_owner_may_open_is_read_over_flight(
    gateways: Callable[[str], LiveGateway], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = gateways("one")
    gateway.append((1.0, 1))
    refused: list[object] = []

    def refuse(*given: object) -> None:
        refused.append(given)
        raise PermissionError(13, "may not be read")

    monkeypatch.setattr(place, "scan_sealed", refuse)
    query = driver(gateway.address, tmp_path / "c")
    assert numbers(query.next()) == [1]
    assert len(refused) == 1
    query.stop()


def test_a_gateway_that_comes_back_gets_its_acknowledgement(
    gateways: Callable[[str], LiveGateway], tmp_path: Path
) -> None:
    gateway = gateways("one")
    gateway.append((1.0, 1))
    query = driver(gateway.address, tmp_path / "c")
    query.next()
    gateway.die()
    assert query.next() is None
    gateway.start()

    def is_acknowledged() -> bool:
        assert query.next() is None
        return gateway.quiver.balance("stats").outcomes[Outcome.ACKED].events == 1

    wait_for(lambda: is_acknowledged() or None)
    query.stop()


def test_a_gateway_that_is_down_at_the_start_holds_and_is_read_when_it_comes(
    gateways: Callable[[str], LiveGateway], tmp_path: Path
) -> None:
    one, two = gateways("one"), gateways("two")
    one.append((10.0, 1))
    two.append((12.0, 2))
    addresses = f"{one.address},{two.address}"
    query = driver(addresses, tmp_path / "c")
    query.next()
    query.stop()
    two.append((13.0, 3))
    two.die()
    one.append((50.0, 4))
    query = driver(addresses, tmp_path / "c")
    assert numbers(query.next()) == [4]
    two.start()
    assert numbers(wait_for(query.next)) == [3]
    query.stop()


def test_a_claim_that_no_batch_carried_is_no_promise(
    gateways: Callable[[str], LiveGateway], tmp_path: Path
) -> None:
    gateway = gateways("one")
    gateway.append((10.0, 1))
    query = driver(gateway.address, tmp_path / "c", idle_after="1s")
    query.next()

    def is_idle() -> bool:
        assert query.next() is None  # there are no windows, so no heartbeat
        claim = query.reader.planner.claim
        return claim is not None and claim.holds[0].bound.reason == "idle"

    wait_for(lambda: is_idle() or None)
    gateway.append((13.0, 2))
    gateway.append((14.0, 3))
    rows = query.next(max_rows=1)
    assert numbers(rows) == [2]
    assert rows is not None
    assert rows.column("_wm")[0].as_py() == at(9)  # its newest event, less the delay
    query.stop()


def test_available_now_reads_what_was_not_sealed_yet(
    gateways: Callable[[str], LiveGateway], tmp_path: Path
) -> None:
    gateway = gateways("one")
    gateway.append((1.0, 1))
    gateway.quiver.append(batch([(2.0, "k", 2)]))
    query = driver(gateway.address, tmp_path / "c")
    query.reader.prepareForTriggerAvailableNow()
    assert numbers(query.next()) == [1, 2]
    gateway.append((3.0, 3))  # came later
    assert query.next() is None
    query.stop()


def test_available_now_does_not_end_without_a_gateway(
    gateways: Callable[[str], LiveGateway], tmp_path: Path
) -> None:
    one, two = gateways("one"), gateways("two")
    one.append((1.0, 1))
    addresses = f"{one.address},{two.address}"
    two.append((1.0, 2))
    driver(addresses, tmp_path / "c")  # knows the columns from now on
    two.die()
    query = driver(addresses, tmp_path / "c")
    with pytest.raises(OwnerGone, match="it is not known what is there"):
        query.reader.prepareForTriggerAvailableNow()
    query.stop()


def test_a_sink_appends_over_flight_once(
    gateways: Callable[[str], LiveGateway], tmp_path: Path
) -> None:
    gateway = gateways("out")
    sink = Sink("quiver", tmp_path, path="", quiver=gateway.address, watermark="true")
    for _ in range(2):
        sink.plan(1, 10)
        sink.write(1, [1, 2], [3])
    stored = gateway.quiver.scan(["number"], slot="events").read_all()
    assert sorted(stored.column("number").to_pylist()) == [1, 2, 3]
    told = gateway.quiver.statement().producer_watermarks
    assert told == {f"spark/{QUERY_ID}": 1_000_000_000}


def test_a_sink_appends_json_over_flight_once(
    gateways: Callable[[str], LiveGateway], tmp_path: Path
) -> None:
    gateway = gateways("out")
    sink = Sink("quiver", tmp_path, path="", quiver=gateway.address, encode="json", slot="out")
    for _ in range(2):
        sink.plan(1, 10)
        sink.write(1, [1, 2], [3])
    cursor = gateway.quiver.cursor("exporter")
    planned = cursor.plan()
    assert planned is not None
    bundles = list(cursor.read(planned))
    assert [bundle.kind for bundle in bundles] == [FrameKind.RAW] * 2
    # As the loop of a destination takes them.
    events = [event for one in bundles for event in events_of(one, gateway.quiver.quiver_id)]
    assert [json.loads(event.payload)["number"] for event in events] == [1, 2, 3]


@pytest.mark.parametrize("address", ["main", "http://host:1/main", "grpc://host:1", "grpc:///x"])
def test_a_wrong_address_is_named(address: str, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="not the address of a quiver"):
        driver(address, tmp_path / "c")
