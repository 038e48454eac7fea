"""The stream's reader, asked as Spark asks it: limits, restarts, acknowledgements, refusals."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from tests.dataflow.driver import QUERY_ID, Driver
from tests.dataflow.quivers import CONFIG, START, at, batch, fill
from tests.patience import PATIENCE_S

from holdfast.dataflow.source.options import parse_options
from holdfast.dataflow.watermark.claims import END_OF_TIME_US
from holdfast.errors import (
    BadConfig,
    BadInput,
    DataLoss,
    DirectoryLocked,
    HoldfastError,
    OwnerGone,
    UnknownPosition,
    WrongQuiver,
)
from holdfast.quiver import Outcome, Quiver


def numbers(rows: pa.Table | None) -> list[int]:
    assert rows is not None
    found = rows.column("number").to_pylist()
    return sorted(number for number in found if number is not None)


Answer = TypeVar("Answer")


def wait_for(ask: Callable[[], Answer | None]) -> Answer:
    give_up_at_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at_s:
        if (found := ask()) is not None:
            return found
        time.sleep(0.05)
    raise AssertionError("nothing came in time")


def acked(path: Path) -> int:
    with Quiver.open(path, CONFIG) as quiver:
        balance = quiver.balance("stats")
        assert balance.holds
        return balance.outcomes[Outcome.ACKED].events


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "quiver"
    bundles = ([(10.0 * i + j, "k", 10 * i + j) for j in range(10)] for i in range(4))
    fill(path, *bundles, seal_each=True)
    return path


def test_batches_keep_to_the_limit_and_every_row_comes_once(store: Path, tmp_path: Path) -> None:
    driver = Driver(str(store), tmp_path / "checkpoint")
    assert numbers(driver.next(max_rows=15)) == list(range(10))
    assert numbers(driver.next(max_rows=20)) == list(range(10, 30))
    assert numbers(driver.next()) == list(range(30, 40))
    assert driver.next() is None
    driver.stop()
    assert acked(store) == 40  # the last batch too


def test_bytes_bound_a_batch_too(store: Path, tmp_path: Path) -> None:
    driver = Driver(str(store), tmp_path / "checkpoint", max_bytes=1)
    assert numbers(driver.next()) == list(range(10))
    driver.stop()


def test_a_batch_that_was_not_committed_reads_the_same_rows_again(
    store: Path, tmp_path: Path
) -> None:
    driver = Driver(str(store), tmp_path / "checkpoint")
    planned = driver.plan(max_rows=20)
    assert planned == 0
    before = driver.run(planned)
    driver.stop()
    fill(store, [(99.0, "k", 99)])
    again = Driver(str(store), tmp_path / "checkpoint")
    assert again.plan() == 0
    assert again.run(0).equals(before)
    again.finish(0)
    assert numbers(again.next()) == [*range(20, 40), 99]
    again.stop()
    assert acked(store) == 41


def test_a_batch_committed_by_a_driver_that_died_is_acknowledged_at_the_next_start(
    store: Path, tmp_path: Path
) -> None:
    driver = Driver(str(store), tmp_path / "checkpoint")
    planned = driver.plan(max_rows=20)
    assert planned is not None
    driver.stop()
    assert acked(store) == 0
    driver.finish(planned)
    Driver(str(store), tmp_path / "checkpoint").reader.planner.close()
    assert acked(store) == 20


def test_spark_s_own_commit_acknowledges(store: Path, tmp_path: Path) -> None:
    driver = Driver(str(store), tmp_path / "checkpoint")
    assert driver.plan(max_rows=10) == 0
    driver.reader.commit(driver.offset())
    driver.reader.commit(driver.offset())
    (gateway,) = driver.reader.planner._gateways
    assert [gateway.position().seq] == list(driver.offset()["seqs"].values())
    driver.stop()


def test_a_second_driver_is_refused(store: Path, tmp_path: Path) -> None:
    driver = Driver(str(store), tmp_path / "checkpoint")
    driver.plan()
    second = Driver(str(store), tmp_path / "checkpoint")
    with pytest.raises(DirectoryLocked):
        second.run(0)
    driver.stop()


def test_a_checkpoint_set_back_is_refused_or_trimmed_but_never_skipped(
    store: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    driver = Driver(str(store), checkpoint)
    driver.next(max_rows=10)
    driver.next(max_rows=10)
    driver.stop()
    for log in ("offsets", "commits"):
        (checkpoint / log / "1").unlink()
    refused = Driver(str(store), checkpoint)
    with pytest.raises(UnknownPosition, match=r"goes back to bundle 1 .* on_rewind=trim"):
        refused.next(max_rows=20)
    refused.stop()
    trimmed = Driver(str(store), checkpoint, on_rewind="trim")
    rest = [numbers(rows) for rows in iter(trimmed.next, None)]
    trimmed.stop()
    assert [number for one in rest for number in one] == list(range(20, 40))
    assert acked(store) == 40


def test_damage_that_a_task_passed_over_is_recorded_and_not_acknowledged(
    store: Path, tmp_path: Path
) -> None:
    data = sorted((store / "segments").glob("*/000-*.arrow"))[1]
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    driver = Driver(str(store), tmp_path / "checkpoint", on_data_loss="count")
    assert numbers(driver.next()) == [*range(10), *range(20, 40)]
    driver.stop()
    with Quiver.open(store, CONFIG) as quiver:
        outcomes = quiver.balance("stats").outcomes
        assert (outcomes[Outcome.ACKED].events, outcomes[Outcome.DAMAGED].events) == (30, 10)
        with pytest.raises(DataLoss) as told:
            quiver.cursor("stats").plan()
        assert told.value.ranges == [(1, 2, "damaged")]


def test_what_was_lost_fails_the_query_or_is_counted(store: Path, tmp_path: Path) -> None:
    driver = Driver(str(store), tmp_path / "checkpoint")
    driver.next(max_rows=10)
    driver.stop()
    with Quiver.open(store, CONFIG) as quiver:
        quiver.resolve("stats", [1], Outcome.DROPPED, "no room")
    failing = Driver(str(store), tmp_path / "checkpoint")
    with pytest.raises(DataLoss) as lost:
        failing.next()
    failing.stop()
    assert lost.value.ranges[-1][1:] == (2, "dropped")
    counting = Driver(str(store), tmp_path / "checkpoint", on_data_loss="count")
    assert numbers(counting.next()) == list(range(20, 40))
    counting.stop()
    assert acked(store) == 30


def test_a_planned_batch_of_which_some_was_lost_is_not_run_as_if_it_were_whole(
    store: Path, tmp_path: Path
) -> None:
    driver = Driver(str(store), tmp_path / "checkpoint")
    assert driver.plan(max_rows=20) == 0
    driver.stop()
    with Quiver.open(store, CONFIG) as quiver:
        quiver.resolve("stats", [0], Outcome.DROPPED, "no room")
    again = Driver(str(store), tmp_path / "checkpoint")
    with pytest.raises(DataLoss):
        again.next()
    again.stop()


def test_a_first_batch_that_lost_its_commit_is_refused_and_not_run_empty(
    store: Path, tmp_path: Path
) -> None:
    driver = Driver(str(store), tmp_path / "checkpoint")
    driver.next()
    driver.stop()
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    again = Driver(str(store), tmp_path / "checkpoint")
    with pytest.raises(UnknownPosition, match="goes back to bundle 0"):
        again.next()
    again.stop()


def test_a_checkpoint_of_another_quiver_is_refused(store: Path, tmp_path: Path) -> None:
    driver = Driver(str(store), tmp_path / "checkpoint")
    driver.next()
    driver.stop()
    fill(tmp_path / "other", [(1.0, "k", 1)])
    other = Driver(str(tmp_path / "other"), tmp_path / "checkpoint")
    with pytest.raises(WrongQuiver, match="use a new checkpoint"):
        other.next()
    other.stop()


def test_a_checkpoint_of_another_subscriber_is_refused(store: Path, tmp_path: Path) -> None:
    driver = Driver(str(store), tmp_path / "checkpoint")
    driver.next(max_rows=10)
    driver.stop()
    other = Driver(str(store), tmp_path / "checkpoint", subscriber="others")
    with pytest.raises(WrongQuiver, match=r"of subscriber 'stats' .* as 'others'"):
        other.next()
    other.stop()


def test_a_checkpoint_of_another_pipeline_is_refused_also_where_its_sink_has_records(
    store: Path, tmp_path: Path
) -> None:
    driver = Driver(str(store), tmp_path / "checkpoint")
    driver.next(max_rows=10)
    driver.stop()
    record = {"span": [[], [driver.offset()]], "parts": 1, "is_sure": True}
    (tmp_path / f"{QUERY_ID}.json").write_text(json.dumps({"0": record}))
    options = {"subscriber": "others", "on_rewind": "trim", "records": tmp_path}
    other = Driver(str(store), tmp_path / "checkpoint", **options)
    with pytest.raises(WrongQuiver, match=r"of subscriber 'stats' .* as 'others'"):
        other.next()
    other.stop()


def test_a_quiver_may_be_added(store: Path, tmp_path: Path) -> None:
    driver = Driver(str(store), tmp_path / "checkpoint")
    driver.next()
    driver.stop()
    fill(tmp_path / "other", [(1.0, "k", 100)])
    both = Driver(f"{store},{tmp_path / 'other'}", tmp_path / "checkpoint")
    assert numbers(both.next()) == [100]
    both.stop()


def test_available_now_ends_and_offsets_are_one_text(store: Path, tmp_path: Path) -> None:
    driver = Driver(str(store), tmp_path / "checkpoint", watermark=True, horizon="1h")
    driver.reader.prepareForTriggerAvailableNow()
    counts = [len(numbers(rows)) for rows in iter(lambda: driver.next(max_rows=10), None)]
    assert counts == [10, 10, 10, 10]
    assert list(driver.offset()) == sorted(driver.offset())
    driver.stop()


def test_columns_and_times_are_chosen(store: Path, tmp_path: Path) -> None:
    driver = Driver(
        str(store), tmp_path / "c", columns="number", since=at(5).isoformat(), until=at(35)
    )
    rows = driver.next()
    assert rows is not None
    assert rows.schema.names == ["number"]
    assert numbers(rows) == list(range(5, 35))
    driver.stop()


# ------------------------------------------------------------------------ watermark


def test_the_claim_waits_for_what_is_unread(store: Path, tmp_path: Path) -> None:
    driver = Driver(str(store), tmp_path / "checkpoint", watermark=True, max_delay="5s")
    rows = driver.next(max_rows=10)
    assert rows is not None
    # The next unread event is at 10 s.
    assert set(rows.column("_wm").to_pylist()) == {at(10)}
    assert set(rows.column("_wm_prev").to_pylist()) == {datetime(1970, 1, 1, tzinfo=UTC)}
    assert rows.column("_control").to_pylist() == [False] * 10 + [True]
    control = rows.slice(10).to_pylist()[0]
    assert (control["number"], control["_event_time"]) == (None, at(10))
    driver.next(max_rows=20)
    rows = driver.next()
    assert rows is not None
    # Everything is read: the newest event less the delay.
    assert rows.column("_wm")[0].as_py() == at(34)
    assert rows.column("_wm_prev")[0].as_py() == at(30)
    driver.stop()


def test_the_slowest_quiver_holds_the_claim(store: Path, tmp_path: Path) -> None:
    fill(tmp_path / "slow", [(3.0, "k", 100), (12.0, "k", 101)])
    both = f"{store},{tmp_path / 'slow'}"
    driver = Driver(both, tmp_path / "checkpoint", watermark=True, max_delay="10s")
    rows = driver.next()
    assert rows is not None
    assert rows.column("_wm")[0].as_py() == at(2)
    claim = driver.reader.planner.claim
    assert claim is not None
    assert f"by {tmp_path / 'slow'}: its newest event, less max_delay" in claim.explain()
    driver.stop()


def test_an_event_dated_2099_changes_no_other_row_s_fate(tmp_path: Path) -> None:
    path = tmp_path / "quiver"
    future = (datetime(2099, 1, 1, tzinfo=UTC) - START).total_seconds()
    fill(path, [(0.0, "k", 0), (20.0, "k", 1), (future, "k", 2)])
    driver = Driver(str(path), tmp_path / "c", watermark=True, max_delay="10s", idle_after="1h")
    rows = driver.next()
    assert rows is not None
    assert rows.column("_wm")[0].as_py() == at(10)
    driver.stop()


def test_an_idle_source_sends_heartbeats_while_windows_may_be_open_and_then_rests(
    store: Path, tmp_path: Path
) -> None:
    options = {"watermark": True, "horizon": "1s", "idle_after": "1s", "heartbeat_every": "0s"}
    driver = Driver(str(store), tmp_path / "checkpoint", max_delay="0s", **options)
    driver.next()
    heartbeat = wait_for(driver.next)
    assert heartbeat.column("_control").to_pylist() == [True]
    # Its clock is years later: what is claimed is the horizon of what was read, and no more.
    assert heartbeat.column("_wm")[0].as_py() == at(39) + timedelta(seconds=1)
    assert driver.next() is None
    assert driver.offset()["heartbeat"] == 1
    driver.stop()


def test_without_windows_there_are_no_heartbeats(store: Path, tmp_path: Path) -> None:
    driver = Driver(str(store), tmp_path / "c", watermark=True, idle_after="0s")
    driver.next()
    assert driver.next() is None
    driver.stop()


def test_closing_claims_the_end_of_time_once(store: Path, tmp_path: Path) -> None:
    driver = Driver(str(store), tmp_path / "checkpoint", watermark=True, close=True)
    driver.reader.prepareForTriggerAvailableNow()
    driver.next()
    assert driver.offset()["claim_us"] < END_OF_TIME_US
    driver.next()
    assert driver.offset()["claim_us"] == END_OF_TIME_US
    assert driver.next() is None
    driver.stop()


def test_a_pipeline_s_own_watermark_replaces_the_delay(tmp_path: Path) -> None:
    path = tmp_path / "quiver"
    with Quiver.open(path, CONFIG) as quiver:
        at_ns = int(at(7).timestamp()) * 1_000_000_000
        quiver.append(batch([(9.0, "k", 1)]), producer="one", watermark_ns=at_ns)
        quiver.heartbeat("two", at_ns - 2_000_000_000)
    driver = Driver(str(path), tmp_path / "c", watermark=True, producers="one,two")
    rows = driver.next()
    assert rows is not None
    assert rows.column("_wm")[0].as_py() == at(5)
    driver.stop()


# ------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"path": "x", "max_rows": "0"}, "max_rows"),
        ({"path": "x", "max_rowz": "1"}, "max_rowz"),
        ({"path": "x", "since": "2026-01-01 00:00:00"}, "since"),
        ({"path": "x", "max_bytes": "many"}, "max_bytes"),
        ({"slot": "x"}, "no quiver is named"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], told: str) -> None:
    with pytest.raises(BadConfig, match=told):
        parse_options(options)


def test_a_stream_needs_a_subscriber(store: Path, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="subscriber"):
        Driver(str(store), tmp_path / "c", subscriber="")


def test_a_folder_without_a_quiver_or_without_data_says_so(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="no quiver here"):
        Driver(str(tmp_path), tmp_path / "c")
    with Quiver.open(tmp_path / "empty", CONFIG):
        pass
    with pytest.raises(BadInput, match=r"nothing is sealed in slot 'events'.*schema"):
        Driver(str(tmp_path / "empty"), tmp_path / "c")


def test_another_slot_is_named_and_never_mixed_in(store: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"slot 'links'.*there are events"):
        Driver(str(store), tmp_path / "c", slot="links")
    driver = Driver(str(store), tmp_path / "c")
    driver.next()
    driver.stop()
    with Quiver.open(store, CONFIG) as quiver:
        quiver.append({"links": pa.record_batch({"number": [1000]})})
    driver = Driver(str(store), tmp_path / "c")
    assert numbers(driver.next()) == []
    driver.stop()
    assert acked(store) == 41


def test_the_columns_are_known_when_everything_was_processed_and_deleted(
    store: Path, tmp_path: Path
) -> None:
    driver = Driver(str(store), tmp_path / "c", columns="number,key")
    driver.next()
    driver.stop()
    with Quiver.open(store, CONFIG) as quiver:
        wait_for(lambda: not quiver.segments() or None)
    assert Driver(str(store), tmp_path / "c", columns="number,key").schema == driver.schema
    assert Driver(str(store), tmp_path / "c", columns="key").schema.names == ["key"]
    with pytest.raises(BadInput, match="not known"):
        Driver(str(store), tmp_path / "c", columns="at")
    with pytest.raises(BadInput, match="not known"):
        Driver(str(store), tmp_path / "another", columns="number,key")


def test_the_event_time_comes_along_with_the_watermark(store: Path, tmp_path: Path) -> None:
    driver = Driver(str(store), tmp_path / "c", columns="number", watermark=True)
    assert driver.schema.names == ["number", "_event_time", "_wm", "_wm_prev", "_control"]


def test_a_config_that_is_none_is_named(store: Path, tmp_path: Path) -> None:
    for wrong in ("no.such:thing", "tests.dataflow.quivers:START"):
        driver = Driver(str(store), tmp_path / "c", quiver_config=wrong)
        with pytest.raises(BadConfig, match="quiver_config"):
            driver.start_offset()


def test_offsets_of_another_version_are_refused(store: Path, tmp_path: Path) -> None:
    driver = Driver(str(store), tmp_path / "c")
    driver.plan()
    path = tmp_path / "c" / "offsets" / "0"
    fields = json.loads(path.read_text().splitlines()[-1]) | {"holdfast": 99}
    path.write_text("v1\n{}\n" + json.dumps(fields))
    with pytest.raises(UnknownPosition, match="version 99"):
        driver.run(0)
    driver.stop()


def test_a_run_that_ends_does_not_take_silence_for_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that is too busy to plan has rows: `close` must not claim the end of time."""
    fill(tmp_path / "q", [(1.0, "a", 1)], [(2.0, "a", 2)])
    options = {"watermark": True, "close": True, "idle_after": "1h"}
    driver = Driver(str(tmp_path / "q"), tmp_path / "checkpoint", **options)
    driver.reader.initialOffset()
    driver.reader.prepareForTriggerAvailableNow()
    (gateway,) = driver.reader.planner._gateways
    real_plan, asked = gateway.plan, []

    def plan(*arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 1 or len(asked) > 2:
            raise OwnerGone("it takes too long", hint="")
        return real_plan(*arguments)

    monkeypatch.setattr(gateway, "plan", plan)
    monkeypatch.setattr("holdfast.dataflow.source.planner.SILENCE_PAUSE_S", 0.0)
    driver.plan()  # it was asked again, and answered
    assert len(asked) == 2
    monkeypatch.setattr("holdfast.dataflow.source.planner.ENDING_PATIENCE_S", 0.0)
    fill(tmp_path / "more", [(3.0, "a", 3)])
    other = Driver(str(tmp_path / "more"), tmp_path / "other", **options)
    other.reader.initialOffset()
    other.reader.prepareForTriggerAvailableNow()
    monkeypatch.setattr(other.reader.planner._gateways[0], "plan", plan)
    with pytest.raises(OwnerGone, match="has rows that are to be read now"):
        other.plan()
    driver.stop()
    other.stop()
