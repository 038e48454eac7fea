"""Metrics of a gateway: every figure in the table, in the page, and in the text."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.graph.gateways import gateway_of, running, send
from tests.graph.lineage import run_event
from tests.operate.exposition import parse
from tests.operate.test_metrics import sample
from tests.patience import until_async

from holdfast.dataflow.driver.wire import DriverFigures, PipelineFigures, QueryStatistics
from holdfast.deliver.statistics import DeliveredItems, DestinationStatistics, HeldEvent
from holdfast.graph.statistics import GatewayStatistics
from holdfast.operate.gateway_metrics import (
    ALL_METRICS,
    COUNTERS,
    GATEWAY_METRICS,
    driver_records,
    gateway_records,
    render_records,
)
from holdfast.receive.receiver import ItemCounts, ReceiverStatistics
from holdfast.remote.server import ServerStatistics

# The text with its values left out: names, explanations and labels are a promise.
GOLDEN = Path(__file__).parents[1] / "golden" / "metrics.txt"

# Told by `holdfast destination ls`, and no figures.
NOT_SHOWN = {"name", "stalled_by", "stuck_key", "last_error", "dead_lettered"}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> GatewayStatistics:
    """The figures of a gateway that took one event and refused another."""
    folder = tmp_path_factory.mktemp("gateway")

    async def run() -> GatewayStatistics:
        async with running(gateway_of(folder)) as gateway:
            await send(gateway, run_event(), {"wrong": 1})

            async def settled() -> bool:
                # An exporter has an event before its destination counts it, and the ledger.
                told = [one.figures for one in (await gateway.statistics()).destinations]
                return [(one.sent_events, one.lag_events) for one in told] == [(1, 0)] * 2

            await until_async(settled)
            return await gateway.statistics()

    return asyncio.run(run())


def test_names_are_unique_and_every_metric_explains_itself() -> None:
    assert len({metric.name for metric in ALL_METRICS}) == len(ALL_METRICS)
    for metric in GATEWAY_METRICS:
        assert metric.name.startswith("gateway.")
        assert metric.name.endswith("_total") == (metric.type == "counter")
        assert metric.help.endswith(".")
        assert metric.unit
        assert metric.watch
        assert "|" not in metric.help + metric.watch, "it would break the table of the page"


def test_every_figure_has_exactly_the_labels_of_the_table(told: GatewayStatistics) -> None:
    labels = {metric.name: {"worker", *metric.labels} for metric in GATEWAY_METRICS}
    own = [record for record in gateway_records(told) if record.name in labels]
    assert [record for record in own if set(record.labels) != labels[record.name]] == []
    flight = {"calls", "refused_calls", "attached_subscribers", "reader_starts"}
    # Only telemetry has them.
    items = {"accepted_items", "refused_items", "sent_items", "filtered_items"}
    items |= {"failed_items", "rejected_items", "dropped_before_buffer_items", "queue_age_seconds"}
    silent = {"failed_events", "dead_lettered_events", "refused_events", *flight, *items}
    missing = {name.split(".")[2].removesuffix("_total") for name in labels} - {
        record.name.split(".")[2].removesuffix("_total") for record in own
    }
    assert missing == silent


def test_the_text_is_sound_and_its_figures_are_those_of_the_statistics(
    told: GatewayStatistics,
) -> None:
    families = parse(render_records(gateway_records(told)))
    accepted = families["gateway_receiver_accepted_events_total"]
    assert sample(accepted, receiver="lineage", worker="0") == 1
    rejected = families["gateway_receiver_rejected_events_total"]
    assert sample(rejected, receiver="lineage", reason="invalid") == 1
    sent = families["gateway_destination_sent_events_total"]
    assert sample(sent, destination="left") == sample(sent, destination="right") == 1
    state = families["gateway_destination_state"]
    assert sample(state, destination="left", state="running") == 1
    assert sample(state, destination="left", state="paused") == 0
    letters = families["gateway_dead_letters_events"]
    assert (sample(letters, store="rejected"), sample(letters, store="undelivered")) == (1, 0)
    assert sample(families["gateway_process_refusing"], quiver="quiver") == 0
    assert sample(families["gateway_process_resident_bytes"]) > 1024**2
    assert sample(families["quiver_ingest_accepted_events_total"], quiver="quiver") == 1


def test_workers_stand_under_one_description(told: GatewayStatistics) -> None:
    records = gateway_records(told)
    other = [one._replace(labels={**one.labels, "worker": "1", "core_id": "1"}) for one in records]
    families = parse(render_records([*records, *other]))
    samples = families["gateway_receiver_accepted_events_total"].samples
    assert {dict(labels)["worker"] for labels in samples} == {"0", "1"}


HELD = HeldEvent(seq=12, row=0, code="404", reason="not found", attempts=7, age_s=60.0)


@pytest.mark.parametrize("kind", [ReceiverStatistics, DestinationStatistics])
def test_nothing_that_is_told_is_left_out_by_accident(
    kind: type[ReceiverStatistics] | type[DestinationStatistics], told: GatewayStatistics
) -> None:
    shown = gateway_records(told)
    hidden = set()
    for field in kind._fields:
        if kind is ReceiverStatistics:
            one = told.receivers["lineage"]
            value: Any = _other(getattr(one, field))
            value = {"traces": ItemCounts(3)} if field == "items" else value
            receivers = {"lineage": one._replace(**{field: value})}
            changed = replace(told, receivers=receivers)
        else:
            first, *rest = told.destinations
            other: Any = HELD if field == "held" else _other(getattr(first.figures, field))
            other = {"traces": DeliveredItems(3)} if field == "items" else other
            figures = first.figures._replace(**{field: other})
            changed = replace(told, destinations=(replace(first, figures=figures), *rest))
        if gateway_records(changed) == shown:
            hidden.add(field)
    assert hidden == (NOT_SHOWN if kind is DestinationStatistics else set())


def _other(value: Any) -> Any:
    if isinstance(value, dict):
        return {**value, "other": 7}
    if isinstance(value, str):
        return "open" if value == "closed" else "paused"
    return (value or 0) + 7 if isinstance(value, int | float | None) else value


def test_counters_are_known_to_statsd() -> None:
    assert "gateway.destination.sent_events_total" in COUNTERS
    assert "gateway.destination.lag_events" not in COUNTERS
    assert "quiver.ingest.accepted_events_total" in COUNTERS


def test_the_text_of_a_small_gateway_is_as_it_always_was(told: GatewayStatistics) -> None:
    first, *rest = told.destinations
    figures = first.figures._replace(failed={"auth": 1}, dead_lettered_by_reason={"permanent": 1})
    changed = replace(
        told,
        destinations=(replace(first, figures=figures), *rest),
        flight=ServerStatistics(1, 1, 0, 1, 1),
    )
    query = QueryStatistics(
        "events",
        True,
        3,
        4,
        0.5,
        100,
        12.5,
        "2026-05-01T10:00:00Z",
        7.0,
        2,
        64,
        1,
        {"late.jobs": 5},
    )
    driver = DriverFigures(True, 1, {"jobs": PipelineFigures("running", queries=(query,))})
    text = render_records([*gateway_records(changed), *driver_records(driver)])
    text = re.sub(r'quiver_id="[^"]+"', 'quiver_id="…"', text)
    text = re.sub(r"(?m)^([^#].*) \S+$", r"\1 …", text)
    assert text == GOLDEN.read_text()
