"""Metrics: the names, the text format, and that nothing a quiver tells is left out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import pytest
from click.testing import CliRunner
from tests.operate.exposition import Family, WrongExposition, parse

from holdfast.errors import CannotOpen, DirectoryLocked
from holdfast.operate.cli.quiver.show import metrics_command as command
from holdfast.operate.metrics import METRICS, prometheus_name, records, render
from holdfast.quiver import Cores, Quiver, QuiverConfig, RetentionConfig
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.keep.archiver import ArchiveStatistics
from holdfast.quiver.statistics import SignalStatistics, Statistics, SubscriberStatistics
from holdfast.seam import Seam
from holdfast.seam.simulated import SimulatedDisk

SEED_NAMES = {
    "quiver.gc.evictions_total": ("reason",),
    "quiver.retention.size_emergency_total": (),
    "quiver.ingest.throttle_total": (),
    "quiver.subscriber.dropped_segments_total": ("subscriber",),
    "quiver.segment.dropped_total": (),
    "quiver.core.bytes": (),
    "quiver.core.cap_fraction": (),
}
# Texts are for logs; positions and single maxima are in `statistics()` for whoever looks closely.
NOT_SHOWN = {
    "next_seq",
    "synced_seq",
    "writer.bundles",
    "writer.events",
    "writer.stall_seconds_max",
    # By subscriber they are told with the subscribers.
    "retention.subscriber_dropped_segments",
    "retention.dropped_by_subscriber",
    "last_seal_error",
    "last_keeper_error",
    "archive.last_error",
}


@pytest.fixture
def quiver() -> Iterator[Quiver]:
    """A quiver with two subscribers, one of which has read something."""
    with Quiver.open(PurePath("/data"), seam=Seam(SimulatedDisk())) as quiver:
        quiver.register("archive")
        quiver.register("stats")
        for number in range(4):
            quiver.append_raw([b"%d" % number, b"twin"])
        with quiver.lease("archive") as lease:
            for outcome in ("ack", "reject"):
                delivery = lease.poll()
                assert delivery is not None
                assert delivery.ack() if outcome == "ack" else delivery.reject("no")
        yield quiver


def sample(family: Family, **labels: str) -> float:
    """Return the one sample that has these labels."""
    wanted = set(labels.items())
    (found,) = [value for key, value in family.samples.items() if wanted <= set(key)]
    return found


# --------------------------------------------------------------------------- names


def test_the_seven_names_of_the_seed_are_there_as_the_seed_writes_them(quiver: Quiver) -> None:
    labels = {metric.name: metric.labels for metric in METRICS if metric.name in SEED_NAMES}
    assert labels == SEED_NAMES
    found = {record.name: record.labels for record in records({"main": quiver.statistics()})}
    assert found.keys() >= SEED_NAMES.keys()
    assert found["quiver.core.bytes"] == {"quiver": "main", "core_id": "0"}
    assert set(found["quiver.gc.evictions_total"]) == {"quiver", "core_id", "reason"}
    assert {prometheus_name(name) for name in SEED_NAMES} <= parse(
        render({"main": quiver.statistics()})
    ).keys()


def test_names_are_unique_and_every_metric_explains_itself() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.type == "counter")
        assert metric.help.endswith(".")
        assert "\n" not in metric.help + metric.watch
        assert "|" not in metric.help + metric.watch, "it would break the table of the page"
        assert metric.unit
        assert metric.watch


def with_everything(quiver: Quiver) -> Statistics:
    """Return its statistics, as if it had also what this one has not."""
    archive = ArchiveStatistics(1, 2, 3, 4, 5, 6, 7, "away")
    return replace(quiver.statistics(), signals={"traces": SignalStatistics(3, 4)}, archive=archive)


def test_every_figure_has_exactly_the_labels_that_the_table_gives_it(quiver: Quiver) -> None:
    labels = {metric.name: {"quiver", "core_id", *metric.labels} for metric in METRICS}
    some = with_everything(quiver)
    told = list(records({"main": some}))
    assert {record.name for record in told} == labels.keys()
    assert [record for record in told if set(record.labels) != labels[record.name]] == []


# ------------------------------------------------------------------------- figures


def other(value: Any) -> Any:
    """Return another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, dict):
        return type(value)({key: other(one) for key, one in value.items()} or {"age": 7})
    if isinstance(value, Totals):
        return value.plus(7, 7)
    if isinstance(value, SignalStatistics):
        return SignalStatistics(7, 7)
    if isinstance(value, tuple):
        return value[:-1]
    return f"{value}x" if isinstance(value, str) else (value or 0) + 7


def changed_once(now: Any) -> Iterator[tuple[str, Any]]:
    """Yield the record with another value in one field, also of a record in it; and which."""
    for field in fields(now):
        value = getattr(now, field.name)
        if is_dataclass(value):
            for name, inner in changed_once(value):
                yield f"{field.name}.{name}", replace(now, **{field.name: inner})
        else:
            yield field.name, replace(now, **{field.name: other(value)})


def test_nothing_that_a_quiver_tells_is_left_out_by_accident(quiver: Quiver) -> None:
    now = with_everything(quiver)
    shown = list(records({"main": now}))
    told = {name: list(records({"main": changed})) for name, changed in changed_once(now)}
    assert {name for name, found in told.items() if found == shown} == NOT_SHOWN


def test_nothing_that_is_told_of_a_subscriber_is_left_out_by_accident(quiver: Quiver) -> None:
    now = quiver.statistics()
    one = now.subscribers[0]
    shown = list(records({"main": now}))
    # By signal it is told of destinations; slots may be as many as producers like, and gaps, too.
    for name in sorted({*SubscriberStatistics._fields} - {"oldest_age_s_by_slot", "gap_set"}):
        changed = one._replace(**{name: other(getattr(one, name))})
        told = replace(now, subscribers=(changed, *now.subscribers[1:]))
        assert list(records({"main": told})) != shown, name


def test_the_figures_are_those_of_the_statistics(quiver: Quiver) -> None:
    now = quiver.statistics()
    families = parse(render({"main": now}))
    assert sample(families["quiver_core_bytes"]) == now.used_bytes > 0
    assert sample(families["quiver_core_cap_fraction"]) == now.used_bytes / now.size_cap_bytes
    assert sample(families["quiver_segment_open_bytes"]) == now.open_bytes > 0
    assert sample(families["quiver_ingest_accepting"]) == 1
    lag = families["quiver_subscriber_lag_events"]
    assert (sample(lag, subscriber="archive"), sample(lag, subscriber="stats")) == (4, 8)
    age = families["quiver_subscriber_oldest_unresolved_age_seconds"]
    assert sample(age, subscriber="stats") > 0


def test_nothing_waits_is_told_as_zero(quiver: Quiver) -> None:
    with quiver.lease("stats") as lease:
        while (delivery := lease.poll()) is not None:
            delivery.ack()
    families = parse(render({"main": quiver.statistics()}))
    age = families["quiver_subscriber_oldest_unresolved_age_seconds"]
    assert sample(age, subscriber="stats") == 0


@pytest.mark.parametrize("what", ["bundles", "events"])
def test_the_equation_can_be_read_off_the_metrics(quiver: Quiver, what: str) -> None:
    families = parse(render({"main": quiver.statistics()}))
    accepted = families[f"quiver_subscriber_accepted_{what}_total"]
    outcomes = families[f"quiver_subscriber_outcome_{what}_total"].samples
    for name in ("archive", "stats"):
        resolved = sum(
            value for labels, value in outcomes.items() if ("subscriber", name) in labels
        )
        lag = sample(families[f"quiver_subscriber_lag_{what}"], subscriber=name)
        assert sample(accepted, subscriber=name) == resolved + lag > 0


def test_every_outcome_and_every_reason_is_told_before_it_happens(quiver: Quiver) -> None:
    families = parse(render({"main": quiver.statistics()}))
    assert len(families["quiver_subscriber_outcome_bundles_total"].samples) == 2 * 7
    reasons = {dict(key)["reason"] for key in families["quiver_gc_evictions_total"].samples}
    assert reasons == {"processed", "age", "size", "segments"}


# ---------------------------------------------------------------------- text format


def test_names_with_quotes_backslashes_and_line_ends_come_back_as_they_were(
    quiver: Quiver,
) -> None:
    name = 'a "b" \\ c\nd\\n'
    families = parse(render({name: quiver.statistics()}))
    assert {dict(key)["quiver"] for key in families["quiver_wal_bytes"].samples} == {name}


def test_several_quivers_and_cores_stand_under_one_description(quiver: Quiver) -> None:
    now = quiver.statistics()
    cores = [replace(now, core_id=number) for number in range(3)]
    families = parse(render({"main": cores, "dead-letters": now}))
    assert len(families["quiver_core_bytes"].samples) == 4
    assert sample(families["quiver_core_bytes"], quiver="main", core_id="2") == now.used_bytes


def test_a_quiver_without_subscribers_says_nothing_about_subscribers() -> None:
    with Quiver.open(PurePath("/data"), seam=Seam(SimulatedDisk())) as quiver:
        families = parse(render({"main": quiver.statistics()}))
    assert [name for name in families if "subscriber_lag" in name] == []


def test_no_quiver_gives_an_empty_page() -> None:
    assert render({}) == ""


GOOD = '# HELP a_total Text.\n# TYPE a_total counter\na_total{x="1"} 1\n'


@pytest.mark.parametrize(
    "text",
    [
        GOOD[:-1],
        GOOD + GOOD,
        GOOD + 'a_total{x="1"} 2\n',
        GOOD.replace('x="1"', 'x="1",x="2"'),
        GOOD.replace('x="1"', 'x="1",'),
        GOOD.replace('x="1"', 'x="\\t"'),
        GOOD.replace('x="1"', 'x="a"b"'),
        GOOD.replace('x="1"', "x='1'"),
        GOOD.replace("} 1", "} -1"),
        GOOD.replace("counter", "gauge"),
        GOOD.replace("counter", "histogram"),
        GOOD.replace("a_total{", "b_total{"),
        GOOD.replace("# TYPE a_total counter\n", ""),
        GOOD.replace("# HELP a_total Text.\n", ""),
        "# HELP a_total Text.\n# TYPE a_total counter\n",
        GOOD.replace("a_total", "a.total"),
        GOOD + "\n",
    ],
)
def test_the_strict_reader_finds_what_is_wrong(text: str) -> None:
    assert parse(GOOD)
    with pytest.raises(WrongExposition):
        parse(text)


# ------------------------------------------------------------------------- the command


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_prints_the_figures_of_a_directory(tmp_path: Path) -> None:
    with Quiver.open(tmp_path / "data") as quiver:
        quiver.register("archive")
        quiver.append_raw(b"event")
    families = parse(run(str(tmp_path / "data"), "--size-cap-bytes", "1000000"))
    assert sample(families["quiver_subscriber_lag_events"], quiver="data") == 1
    assert sample(families["quiver_core_cap_bytes"]) == 1_000_000
    told = json.loads(run(str(tmp_path / "data"), "--name", "main", "--json"))
    assert {record["labels"]["quiver"] for record in told} == {"main"}


def test_the_command_prints_the_figures_of_all_cores_under_a_root(tmp_path: Path) -> None:
    with Cores.open(tmp_path / "data", 3) as cores:
        cores[1].append_raw(b"event")
    families = parse(run(str(tmp_path / "data")))
    accepted = families["quiver_ingest_accepted_events_total"]
    assert [sample(accepted, core_id=str(core_id)) for core_id in range(3)] == [0, 1, 0]
    assert sorted(path.name for path in (tmp_path / "data").glob("core-*")) == [
        "core-00", "core-01", "core-02",
    ]  # fmt: skip


def test_looking_deletes_nothing_that_the_owner_would_keep(tmp_path: Path) -> None:
    keeping = QuiverConfig(
        retention=RetentionConfig(steady_state_headroom_bytes=1 << 40, orphan_ttl_s=None)
    )
    with Quiver.open(tmp_path / "data", keeping) as quiver:
        quiver.register("archive")
        quiver.append_raw(b"event")
        with quiver.lease("archive") as lease:
            delivery = lease.poll()
            assert delivery is not None
            delivery.ack()
    for _ in range(2):
        families = parse(run(str(tmp_path / "data")))
        assert sample(families["quiver_segment_sealed"]) == 1
        assert sample(families["quiver_gc_deleted_bundles_total"]) == 0


def test_looking_where_no_quiver_is_makes_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CannotOpen, match="no quiver"):
            run(str(path))
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use_is_told_as_such(tmp_path: Path) -> None:
    with Quiver.open(tmp_path / "data"), pytest.raises(DirectoryLocked):
        run(str(tmp_path / "data"))


def test_a_log_that_only_its_owner_should_seal_is_left_alone(tmp_path: Path) -> None:
    with Quiver.open(tmp_path / "data") as quiver:
        quiver.append_raw(b"event")
        # As a kill leaves it.
        sockets = shutil.ignore_patterns("*.sock")
        shutil.copytree(tmp_path / "data", tmp_path / "left", ignore=sockets)
    with pytest.raises(CannotOpen, match="only its owner"):
        run(str(tmp_path / "left"))
    assert list((tmp_path / "left" / "segments").iterdir()) == []
