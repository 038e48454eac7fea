"""Plans, rows and commits from afar: the same as on the spot."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import flight
from tests.patience import PATIENCE_S, SCALE, until
from tests.remote.serving import END, Served, config, in_thread, numbers, patient, serving
from tests.support.examples import examples

from holdfast.errors import (
    BadInput,
    Damaged,
    DataLoss,
    Fenced,
    Overloaded,
    UnknownPosition,
    UnknownSubscriber,
    WrongQuiver,
)
from holdfast.quiver import Outcome, Position, Quiver, SubscriberOptions
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.read.scan import TimeRange
from holdfast.quiver.read.sealed import SealedRead, names_between
from holdfast.remote import PlannedRange, RemoteCursor, RemoteQuiver
from holdfast.remote.sessions import RANGES_MAX
from holdfast.remote.wire import from_flight


def must_plan(cursor: RemoteCursor, **limits: Any) -> PlannedRange:
    planned = cursor.plan(wait_s=PATIENCE_S, **limits)
    assert planned is not None
    return planned


def values(table: pa.Table) -> list[tuple[int, int, Any]]:
    return [(row["_seq"], row["_row"], row["n"]) for row in table.to_pylist()]


def acked(quiver: Quiver, name: str) -> Totals:
    balance = quiver.balance(name)
    assert balance.holds
    return balance.outcomes[Outcome.ACKED]


# ------------------------------------------------------------------------ the whole way


def test_a_range_is_planned_read_and_committed(served: Served, remote: RemoteQuiver) -> None:
    cursor = remote.cursor("spark")
    assert cursor.plan() is None
    remote.append(numbers(1, 2))
    remote.append({"other": numbers(7)})
    planned = must_plan(cursor)
    assert (planned.start, planned.end, planned.events) == (Position(0), Position(2), 3)
    assert planned.quiver_id == served.quiver.quiver_id
    assert planned.segments == tuple(segment.path.name for segment in served.quiver.segments())
    assert values(cursor.table(planned, "events")) == [(0, 0, 1), (0, 1, 2)]
    assert cursor.table(planned, "other", ["n"]).to_pylist() == [{"n": 7}]
    cursor.commit(planned)
    assert cursor.position == Position(2)
    assert acked(served.quiver, "spark") == Totals(2, 3)


def test_a_plan_waits_for_data_and_has_it_sealed(served: Served, remote: RemoteQuiver) -> None:
    cursor = remote.cursor("spark")
    thread, results = in_thread(lambda: must_plan(cursor))
    until(lambda: served.server.statistics().calls > 0)
    served.quiver.append(numbers(1))
    thread.join(PATIENCE_S)
    assert [planned.end for planned in results] == [Position(1)]


def test_a_subscriber_starts_where_it_says(remote: RemoteQuiver) -> None:
    remote.append(numbers(1))
    starts: list[Any] = ["oldest", "latest", datetime(2026, 1, 1, tzinfo=UTC)]
    starts.append(datetime(2999, 1, 1, tzinfo=UTC))
    found = [remote.cursor(f"s{place}", start=start) for place, start in enumerate(starts)]
    assert [cursor.position.seq for cursor in found] == [0, 1, 0, 1]


def test_news_wake_a_client(served: Served, remote: RemoteQuiver) -> None:
    seen = remote.wait()
    assert remote.wait(seen, wait_s=0.01) == seen
    thread, results = in_thread(lambda: remote.wait(seen, wait_s=PATIENCE_S))
    until(lambda: served.server.statistics().calls > 0)
    served.quiver.append(numbers(1))
    thread.join(PATIENCE_S)
    assert results[0] > seen


def test_whoever_waits_is_answered_when_the_server_stops(
    served: Served, remote: RemoteQuiver
) -> None:
    cursor = remote.cursor("spark")
    thread, results = in_thread(lambda: cursor.plan(wait_s=PATIENCE_S))
    until(lambda: served.server.statistics().calls > 0)
    served.server.stop()
    thread.join(PATIENCE_S)
    assert results == [None]


def test_columns_times_and_positions_are_pruned(served: Served, remote: RemoteQuiver) -> None:
    times = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    remote.append(pa.record_batch({"at": pa.array(times), "n": [1, 2, 3]}))
    cursor = remote.cursor("spark")
    planned = must_plan(cursor)
    since_us = int(times[1].timestamp() * 1e6)
    rows = cursor.read(planned, columns=["n", "none"], times=TimeRange(since_us, None))
    assert rows.read_all().to_pylist() == [{"n": 2, "none": None}, {"n": 3, "none": None}]
    wanted = SealedRead(planned.quiver_id, planned.segments, "events", ("n",), Position(0, 2))
    assert remote.read(wanted).read_all().to_pylist() == [{"n": 3}]


def test_large_rows_come_in_messages_of_bounded_size(tmp_path: Path) -> None:
    with serving(tmp_path, read_message=10_000) as served:
        remote = served.connect(max_message=40_000)
        for first in range(0, 8000, 1000):
            remote.append(numbers(*range(first, first + 1000)))
        cursor = remote.cursor("spark")
        batches = list(cursor.read(must_plan(cursor), columns=["n"]))
        assert sum(batch.num_rows for batch in batches) == 8000
        assert max(batch.num_rows for batch in batches) <= 10_000 // 8
        assert len(batches) == 7
        remote.append_raw(b"x" * 30_000)
        (row,) = cursor.read(must_plan(cursor), columns=["payload"]).read_all().to_pylist()
        assert len(row["payload"]) == 30_000, "one row is sent as it is"


# --------------------------------------------------------------------------- repeating


def test_a_plan_whose_answer_was_lost_is_repeated(served: Served, remote: RemoteQuiver) -> None:
    for value in range(4):
        remote.append(numbers(value))
    remote.flush()
    cursor = remote.cursor("spark")
    first = must_plan(cursor, max_events=2)
    assert cursor.plan(max_events=2, start=first.start) == first
    second = must_plan(cursor, max_events=2)
    assert second.start == first.end
    again = remote.cursor("spark", generation=cursor.generation)
    assert must_plan(again, max_events=2, start=first.end) == second


def test_the_first_plan_of_a_cursor_is_repeated_too(served: Served, remote: RemoteQuiver) -> None:
    remote.append(numbers(1))
    remote.flush()
    first = remote.cursor("spark")
    planned = must_plan(first)
    again = remote.cursor("spark", generation=first.generation)
    assert must_plan(again) == planned, "its answer was lost: nothing is skipped"


def test_a_range_that_was_planned_from_the_open_buffer_is_sealed_to_be_read(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, patient(config())) as served:
        local = served.quiver.cursor("spark")
        served.quiver.append(numbers(1))
        planned = local.plan()
        assert planned is not None
        remote = served.connect()
        cursor = remote.cursor("spark")
        again = cursor.replan(planned.start, planned.end)
        assert values(cursor.table(again, "events")) == [(0, 0, 1)]


def test_whoever_does_not_call_any_more_is_detached_until_it_does(tmp_path: Path) -> None:
    with serving(tmp_path, detach_after=0.05) as served:
        remote = served.connect()
        cursor = remote.cursor("spark")
        remote.append(numbers(1))
        planned = must_plan(cursor)
        until(lambda: not served.quiver.statistics().subscribers[0].attached)
        until(lambda: served.server.statistics().attached == 0)
        cursor.commit(planned)
        assert acked(served.quiver, "spark") == Totals(1, 1)


def test_whoever_waits_is_not_detached(tmp_path: Path) -> None:
    with serving(tmp_path, detach_after=0.05) as served:
        remote = served.connect()
        cursor = remote.cursor("spark")
        thread, results = in_thread(lambda: must_plan(cursor))
        until(lambda: served.server.statistics().calls > 0)
        quiet = remote.cursor("quiet")
        until(lambda: served.server.statistics().attached == 1)
        assert quiet.generation > cursor.generation
        remote.append(numbers(1))
        thread.join(PATIENCE_S)
        assert [planned.end for planned in results] == [Position(1)]


def test_a_commit_may_be_repeated_in_part_and_out_of_order(
    served: Served, remote: RemoteQuiver
) -> None:
    for value in range(6):
        remote.append(numbers(value, value))
    remote.flush()
    cursor = remote.cursor("spark")
    one, two = must_plan(cursor, max_events=4), must_plan(cursor, max_events=4)
    cursor.commit(two)
    cursor.commit(two)
    cursor.commit(one, through=Position(1, 1))
    cursor.commit(one, through=Position(1, 1))
    assert cursor.position == Position(1, 1)
    cursor.commit(one)
    cursor.commit(one)
    assert cursor.position == Position(4)
    assert acked(served.quiver, "spark") == Totals(4, 8)


def test_ranges_that_were_forgotten_are_committed_all_the_same(
    served: Served, remote: RemoteQuiver
) -> None:
    for value in range(RANGES_MAX + 4):
        remote.append(numbers(value))
    remote.flush()
    cursor = remote.cursor("spark")
    ranges = [must_plan(cursor, max_events=1) for _ in range(RANGES_MAX + 4)]
    for planned in ranges:
        cursor.commit(planned)
    for planned in ranges:
        cursor.commit(planned)
    assert acked(served.quiver, "spark") == Totals(RANGES_MAX + 4, RANGES_MAX + 4)


def test_a_range_of_before_a_restart_is_read_and_committed(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        remote = served.connect()
        remote.append(numbers(1))
        remote.append(numbers(2))
        cursor = remote.cursor("spark")
        planned = must_plan(cursor, max_events=1)
        must_plan(cursor)
        generation = cursor.generation
    with serving(tmp_path) as served:
        cursor = served.connect().cursor("spark", generation=generation)
        assert cursor.replan(planned.start, planned.end) == planned
        assert values(cursor.table(planned, "events")) == [(0, 0, 1)]
        cursor.commit(planned)
        assert acked(served.quiver, "spark") == Totals(1, 1)
        assert must_plan(cursor).start == planned.end


def test_a_commit_after_a_restart_needs_no_plan(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        remote = served.connect()
        remote.append(numbers(1))
        cursor = remote.cursor("spark")
        planned, generation = must_plan(cursor), cursor.generation
    with serving(tmp_path) as served:
        cursor = served.connect().cursor("spark", generation=generation)
        cursor.commit(planned)
        cursor.commit(planned)
        assert acked(served.quiver, "spark") == Totals(1, 1)


# ------------------------------------------------------------------------------ refusals


def test_a_second_reader_fences_the_first(served: Served, remote: RemoteQuiver) -> None:
    remote.append(numbers(1))
    first = remote.cursor("spark")
    planned = must_plan(first)
    second = served.connect().cursor("spark")
    assert second.generation > first.generation
    with pytest.raises(Fenced, match="was replaced"):
        first.plan()
    with pytest.raises(Fenced, match="was replaced"):
        first.commit(planned)
    first.close()  # changes nothing
    second.commit(must_plan(second))
    with second:
        pass
    assert served.quiver.statistics().subscribers[0].attached is False


def test_losses_are_told_and_can_be_accepted(tmp_path: Path) -> None:
    with serving(tmp_path, config(max_age_s=1.0 * SCALE, max_pin_s=0.01)) as served:
        remote = served.connect()
        cursor = remote.cursor("spark")
        remote.append(numbers(1))
        planned = must_plan(cursor)
        until(lambda: served.quiver.segments() == ())
        with pytest.raises(DataLoss) as lost:
            cursor.replan(planned.start, planned.end)
        assert lost.value.ranges == [(0, 1, "expired")]
        with pytest.raises(DataLoss):
            cursor.plan()
        with pytest.raises(UnknownPosition, match="no longer there"):
            cursor.table(planned, "events")
        cursor.accept_losses()
        assert cursor.plan() is None
        assert cursor.position == Position(1)
        counting = remote.cursor("spark", on_data_loss="count")
        assert counting.plan() is None


def test_damage_is_told_and_recorded_by_the_owner(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        remote = served.connect()
        for value in (1, 2):
            remote.append({f"slot{value}": numbers(value)})
        remote.flush()
        (segment,) = served.quiver.segments()
        data = tmp_path / "segments" / segment.path.name / segment.files[0].summary.name
        batch = segment.files[0].summary.batches[0]
        content = bytearray(data.read_bytes())
        content[batch.offset + batch.length - 1] ^= 1
        data.write_bytes(content)
        cursor = remote.cursor("spark")
        planned = must_plan(cursor)
        with pytest.raises(Damaged, match="record batch 0"):
            cursor.table(planned, "slot1")
        with pytest.raises(UnknownPosition, match="were not read"):
            cursor.commit(planned)
        with pytest.raises(DataLoss) as told:
            cursor.check(planned)
        assert [(first, end) for first, end, _ in told.value.ranges] == [(0, 1)]
        cursor = remote.cursor("spark", on_data_loss="count")
        planned = must_plan(cursor)
        assert cursor.check(planned) == planned.events == 1
        assert cursor.table(planned, "slot1", ["n"]).num_rows == 0
        assert cursor.table(planned, "slot2", ["n"]).num_rows == 1
        cursor.commit(planned)
        outcomes = served.quiver.balance("spark").outcomes
        assert (outcomes[Outcome.ACKED], outcomes[Outcome.DAMAGED]) == (Totals(1, 1), Totals(1, 1))


@pytest.mark.parametrize("reads", [True, False], ids=["read here", "read elsewhere"])
def test_what_was_passed_over_as_damaged_is_never_acknowledged(
    tmp_path: Path, *, reads: bool
) -> None:
    """With "count" reading went on behind it, and the commit said that it had arrived."""
    with serving(tmp_path) as served:
        remote = served.connect()
        for value in (1, 2, 3):
            remote.append(numbers(value))
            remote.flush()
        damaged = served.quiver.segments()[1]
        data = tmp_path / "segments" / damaged.path.name / damaged.files[0].summary.name
        batch = damaged.files[0].summary.batches[0]
        content = bytearray(data.read_bytes())
        content[batch.offset + batch.length - 1] ^= 1
        data.write_bytes(content)
        cursor = remote.cursor("spark", on_data_loss="count")
        planned = must_plan(cursor)
        assert planned.events == 3
        if reads:
            assert cursor.table(planned, "events", ["n"])["n"].to_pylist() == [1, 3]
        cursor.commit(planned)
        outcomes = served.quiver.balance("spark").outcomes
        assert (outcomes[Outcome.ACKED], outcomes[Outcome.DAMAGED]) == (Totals(2, 2), Totals(1, 1))
        with pytest.raises(DataLoss) as told:
            remote.cursor("spark").plan()
        assert told.value.ranges == [(1, 2, "damaged")]


def test_what_cannot_be_is_told_by_its_own_class(served: Served, remote: RemoteQuiver) -> None:
    cursor = remote.cursor("spark", options=SubscriberOptions(max_age_s=9.0))
    assert remote.subscribers() == ("spark",)
    with pytest.raises(UnknownPosition, match="to plan again"):
        cursor.replan(Position(0), Position(9))
    with pytest.raises(BadInput, match="a plan needs room"):
        cursor.plan(max_events=0)
    with pytest.raises(BadInput, match="not a subscriber's name"):
        remote.cursor("a/b")
    with pytest.raises(BadInput, match="start is 'yesterday'"):
        remote.cursor("other", start="yesterday")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="start is"):
        remote.cursor("other", start=datetime(2026, 1, 1))  # noqa: DTZ001
    remote.unregister("spark")
    assert remote.subscribers() == ()
    with pytest.raises(UnknownSubscriber):
        cursor.plan()
    with pytest.raises(BadInput, match="no quiver 'none' at"):
        RemoteQuiver.open(served.server.location, "none")
    with pytest.raises(BadInput, match="cannot be connected to"):
        RemoteQuiver.open("http://nowhere", "main")


def test_a_ticket_of_another_quiver_is_refused(served: Served, remote: RemoteQuiver) -> None:
    remote.append(numbers(1))
    remote.flush()
    names = tuple(names_between(served.quiver.segments(), Position(0), END))
    with pytest.raises(WrongQuiver):
        remote.read(SealedRead("another", names))
    with pytest.raises(BadInput, match="not the name of a segment"):
        remote.read(SealedRead(remote.quiver_id, ("../wal",)))


def test_subscribers_attached_at_once_are_bounded(tmp_path: Path) -> None:
    with serving(tmp_path, max_attachments=2) as served:
        remote = served.connect()
        first = remote.cursor("one")
        remote.cursor("two")
        with pytest.raises(Overloaded, match="max_attachments"):
            remote.cursor("three")
        assert remote.cursor("one").generation > first.generation
        remote.unregister("two")
        remote.cursor("three")


# --------------------------------------------------------------------------- statements


def test_a_statement_is_the_same_from_afar(served: Served, remote: RemoteQuiver) -> None:
    times = [datetime(2026, 1, day, tzinfo=UTC) for day in (5, 3, 4)]
    remote.append(pa.record_batch({"at": pa.array(times)}), producer="p", watermark_ns=-7)
    claim_us = int(times[1].timestamp() * 1e6) + 1
    for position in (None, Position(0, 2), Position(1)):
        for claim in (None, claim_us):
            here = served.quiver.statement(position, claim_us=claim)
            there = remote.statement(position, claim_us=claim)
            assert replace(there, clock_ns=here.clock_ns) == here


# ------------------------------------------------------------------ any Flight client


def test_any_flight_client_finds_its_way(served: Served, remote: RemoteQuiver) -> None:
    for value in (1, 2):
        remote.append({"events": numbers(value), "other": numbers(value)})
        remote.flush()
    with flight.connect(served.server.location) as client:
        found = {tuple(info.descriptor.path): info for info in client.list_flights()}
        assert set(found) == {(b"main", b"events"), (b"main", b"other")}
        info = client.get_flight_info(flight.FlightDescriptor.for_path("main", "events"))
        assert (info.total_records, len(info.endpoints)) == (2, 2)
        rows = []
        for endpoint in info.endpoints:
            with flight.connect(endpoint.locations[0]) as reader:
                table = reader.do_get(endpoint.ticket).read_all()
                assert table.schema.equals(info.schema)
                rows += table.column("n").to_pylist()
        assert rows == [1, 2]
        schema = client.get_schema(flight.FlightDescriptor.for_path("main", "events")).schema
        assert schema.names[-1] == "n"
        assert "plan" in {action.type for action in client.list_actions()}
        with pytest.raises(flight.FlightError) as refused:
            client.do_get(info.endpoints[0].ticket).read_all()
        assert "send the ticket to grpc://" in from_flight(refused.value).hint
        for path in (("main",), ("main", "none"), ("none", "events")):
            with pytest.raises(flight.FlightError) as refused:
                client.get_flight_info(flight.FlightDescriptor.for_path(*path))
            assert isinstance(from_flight(refused.value), BadInput)


# --------------------------------------------------------------------------------- model


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, RemoteQuiver]]:
    """One server for many examples; each has subscribers of its own."""
    directory = tmp_path_factory.mktemp("shared")
    with serving(directory, patient(config())) as served:
        yield served, served.connect()


_NAMES = itertools.count()
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4)),
        st.tuples(st.just("seal"), st.just(0)),
        st.tuples(st.just("plan"), st.integers(1, 6)),
        st.tuples(st.just("commit"), st.integers(0, 3)),
        st.tuples(st.just("replan"), st.integers(0, 3)),
        st.tuples(st.just("reattach"), st.just(0)),
    ),
    max_size=25,
)


@given(steps=STEPS)
@settings(max_examples=examples(40))
def test_remote_and_local_readers_of_the_same_data_agree(
    shared: tuple[Served, RemoteQuiver], steps: list[tuple[str, int]]
) -> None:
    served, remote = shared
    quiver, number = served.quiver, next(_NAMES)
    here = quiver.cursor(f"here{number}", start="latest")
    there = remote.cursor(f"there{number}", start="latest")
    assert there.position == here.position
    planned: list[tuple[Any, PlannedRange]] = []
    for verb, argument in steps:
        if verb == "append":
            remote.append(numbers(*range(argument)))
        elif verb == "seal":
            remote.flush()
        elif verb == "plan":
            mine = here.plan(max_events=argument, sealed_only=True)
            its = there.plan(max_events=argument)
            assert (mine is None) == (its is None)
            if mine is not None and its is not None:
                planned.append((mine, its))
        elif verb == "commit" and planned:
            mine, its = planned.pop(argument % len(planned))
            here.commit(mine)
            there.commit(its)
        elif verb == "replan" and planned:
            place = argument % len(planned)
            mine, its = planned[place]
            planned[place] = here.replan(*mine_ends(mine)), there.replan(its.start, its.end)
        elif verb == "reattach":
            here, there = quiver.cursor(here.name), remote.cursor(there.name)
            planned.clear()
        assert there.position == here.position
        for mine, its in planned:
            assert (its.start, its.end, its.events) == (*mine_ends(mine), mine.events)
    for mine, its in planned:
        rows = quiver.scan(slot="events", start=mine.start, end=mine.end).read_all()
        assert values(there.table(its, "events", ["_seq", "_row", "n"])) == values(rows)
    assert quiver.balance(here.name).outcomes == quiver.balance(there.name).outcomes
    quiver.unregister(here.name)
    remote.unregister(there.name)


def mine_ends(planned: Any) -> tuple[Position, Position]:
    return planned.start, planned.end
