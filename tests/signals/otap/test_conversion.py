"""Requests of OTLP become batches of OTAP and requests again, and say the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.signals.otap.normal_form import normal_form, reduced
from tests.signals.otap.tables import attributes, batch
from tests.signals.otap.test_streams import rows
from tests.signals.otlp.made_up import otlp_requests
from tests.signals.otlp.telemetry import mutated, request

from holdfast.signals.otap import from_otlp, to_otlp
from holdfast.signals.otap.from_otlp import otap_of
from holdfast.signals.otap.payloads import ROOTS
from holdfast.signals.otap.plans import LOST_FIELDS, METRIC_COLUMNS, PLANS, POINTS, TablePlan
from holdfast.signals.otap.problem import NotOtap
from holdfast.signals.otap.schemas import COLUMNS
from holdfast.signals.otap.stream_decoder import StreamDecoder
from holdfast.signals.otap.stream_encoder import StreamEncoder
from holdfast.signals.otap.to_otlp import otlp_of
from holdfast.signals.otlp import codec
from holdfast.signals.otlp.flat.nested import Converter, descriptor_of
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS
from holdfast.signals.otlp.problem import NotOtlp

MUTANTS = 150
SLOW_MUTANTS = 10_000


def back_and_forth(kind: OtlpKind, bodies: list[bytes]) -> bytes:
    """Return requests that were sent over a stream of OTAP; both converters must agree."""
    made = [otap_of(kind, bodies, by=by) for by in Converter]
    assert [repr(rows(one)) for one in made[0]] == [repr(rows(one)) for one in made[1]]
    encoder, decoder = StreamEncoder(), StreamDecoder(kind)
    found = []
    for number, tables in enumerate(made[0]):
        got = decoder.decode(encoder.encode(number, tables)).tables
        assert next(iter(got)) == ROOTS[kind].slot
        written = [otlp_of(kind, got, by=by) for by in Converter]
        forms = [normal_form(kind, b"".join(one)) for one in written]
        assert forms[0] == forms[1]
        found += written[0]
    return b"".join(found)


@pytest.mark.parametrize("kind", OtlpKind)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_requests_say_the_same_after_a_stream_of_otap(kind: OtlpKind, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(otlp_requests(kind), min_size=1, max_size=3))
    bodies = [reduced(kind, body) for body in drawn]
    if kind is OtlpKind.TRACES:
        bodies = [_with_ids(body) for body in bodies]
    back = back_and_forth(kind, bodies)
    assert normal_form(kind, back) == normal_form(kind, b"".join(bodies))


def _with_ids(body: bytes) -> bytes:
    """Return a request of spans of which each, and each link, has ids, as OTLP demands."""
    made: Any = REQUESTS[OtlpKind.TRACES].FromString(body)
    for items in codec.item_lists(OtlpKind.TRACES, made):
        for span in items:
            for one in (span, *span.links):
                one.trace_id, one.span_id = one.trace_id or b"t" * 16, one.span_id or b"s" * 8
    written: bytes = made.SerializeToString()
    return written


# ------------------------------------------------ every field has a column, or is named


def plans() -> Iterator[TablePlan]:
    waiting = [*PLANS.values(), *(plan for _, plan in POINTS.values())]
    for plan in waiting:
        yield plan
        waiting += plan.children.values()


@pytest.mark.parametrize("plan", {plan.message: plan for plan in plans()}.values(), ids=str)
def test_every_field_of_the_protocol_has_a_column_or_a_table(plan: TablePlan) -> None:
    columns = {plan.renamed.get(name, name) for name in COLUMNS[plan.table]}
    tables = {*plan.children, *([plan.attributes[0]] if plan.attributes else [])}
    elsewhere = {"end_time_unix_nano"} if plan.table is ROOTS[OtlpKind.TRACES] else set()
    if plan.table is ROOTS[OtlpKind.METRICS]:
        elsewhere = set(POINTS)
        for name in POINTS:
            holder: Any = descriptor_of(plan.message).fields_by_name[name]
            own = {field.name for field in holder.message_type.fields} - {"data_points"}
            assert own == {column for column, of in METRIC_COLUMNS.items() if name in of}
    fields = {field.name for field in descriptor_of(plan.message).fields}
    assert fields <= columns | tables | elsewhere


def test_what_otap_cannot_say_is_listed() -> None:
    for kind, root in ROOTS.items():
        resource_holder: Any = REQUESTS[kind].DESCRIPTOR.fields[0].message_type
        scope_holder: Any = resource_holder.fields_by_name[f"scope_{_suffix(kind)}"].message_type
        for holder, name in ((resource_holder, "resource"), (scope_holder, "scope")):
            fields = {
                field.full_name
                for field in holder.fields_by_name[name].message_type.fields
                if field.name != "attributes"
                and COLUMNS[root][name].get_field_index(field.name) < 0
            }
            assert fields <= LOST_FIELDS


def _suffix(kind: OtlpKind) -> str:
    return {OtlpKind.TRACES: "spans", OtlpKind.METRICS: "metrics", OtlpKind.LOGS: "logs"}[kind]


# ------------------------------------------------------------------------- borders


@pytest.mark.parametrize("kind", OtlpKind)
def test_more_rows_than_ids_are_several_batches(
    kind: OtlpKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(2)
    bodies = [request(kind, chance, items=9) for _ in range(4)]
    monkeypatch.setattr(from_otlp, "BATCH_ROWS_MAX", 7)
    monkeypatch.setattr(from_otlp, "BATCH_BYTES_MAX", len(bodies[0]) * 2)
    monkeypatch.setattr(to_otlp, "REQUEST_BYTES_MAX", 100)
    monkeypatch.setattr(to_otlp, "CALL_BYTES_MAX", 300)
    made = otap_of(kind, bodies)
    assert len(made) > 4
    for tables in made:
        root = tables[ROOTS[kind].slot]
        assert root.num_rows <= 7
        ids = root.column("resource").field("id").to_pylist()
        assert ids == sorted(ids)
        assert ids[0] == 0
    back = [body for tables in made for body in otlp_of(kind, tables)]
    assert len(back) > len(made)
    assert normal_form(kind, b"".join(back)) == normal_form(kind, b"".join(bodies))


def test_a_batch_of_one_resource_can_be_cut_for_backends_that_take_little() -> None:
    made: Any = REQUESTS[OtlpKind.LOGS]()
    records = made.resource_logs.add().scope_logs.add().log_records
    for number in range(60):
        records.add(severity_text=f"{number}".zfill(100_000))
    (tables,) = otap_of(OtlpKind.LOGS, [made.SerializeToString()])
    for most_bytes in (1024 * 1024, 4 * 1024 * 1024):
        parts = codec.split(b"".join(otlp_of(OtlpKind.LOGS, tables)), most_bytes)
        assert max(map(len, parts)) <= most_bytes


@pytest.mark.parametrize("metric_type", [0, 3, 9])
def test_points_of_another_kind_than_their_metric_are_refused(metric_type: int) -> None:
    made: Any = REQUESTS[OtlpKind.METRICS]()
    metric = made.resource_metrics.add().scope_metrics.add().metrics.add(name="a")
    metric.gauge.data_points.add(as_int=1)
    (tables,) = otap_of(OtlpKind.METRICS, [made.SerializeToString()])
    root = tables["otap_univariate_metrics"]
    place = root.schema.get_field_index("metric_type")
    types = root.set_column(place, "metric_type", pa.array([metric_type], pa.uint8()))
    written = StreamEncoder().encode(1, {**tables, "otap_univariate_metrics": types})
    with pytest.raises(NotOtap, match="of a metric whose metric_type is another"):
        StreamDecoder(OtlpKind.METRICS).decode(written)


def test_no_items_are_no_batch() -> None:
    assert otap_of(OtlpKind.LOGS, []) == []
    assert otap_of(OtlpKind.LOGS, [b""]) == []
    assert otlp_of(OtlpKind.LOGS, {}) == []


def test_an_id_that_has_no_room_is_named() -> None:
    made: Any = REQUESTS[OtlpKind.LOGS]()
    made.resource_logs.add().scope_logs.add().log_records.add(trace_id=b"short")
    with pytest.raises(NotOtlp, match="trace_id of LogRecord has neither 0 nor 16 bytes"):
        otap_of(OtlpKind.LOGS, [made.SerializeToString()])


def test_attributes_that_would_be_repeated_without_end_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(to_otlp, "REPEATED_ROWS_MAX", 50)
    scope = pa.StructArray.from_arrays([pa.array([0] * 20, pa.uint16())], names=["id"])

    def tables(different_urls: int) -> dict[str, pa.RecordBatch]:
        urls = [f"url {number % different_urls}" for number in range(20)]
        root = batch({"scope": scope, "schema_url": pa.array(urls)})
        attrs = attributes(random.Random(1), [0] * 10, pa.uint16(), 2, None)
        return {
            "otap_logs": root,
            "otap_scope_attrs": attrs.drop_columns(["type"]).append_column(
                "type", pa.array([0] * 10, pa.uint8())
            ),
        }

    assert otlp_of(OtlpKind.LOGS, tables(6))
    with pytest.raises(NotOtap, match="SCOPE_ATTRS are referred to too often"):
        otlp_of(OtlpKind.LOGS, tables(7))


def test_tables_without_what_they_need_are_refused() -> None:
    with pytest.raises(NotOtap, match="not a batch of metrics"):
        otlp_of(OtlpKind.METRICS, {"otap_univariate_metrics": batch({"id": pa.array([1])})})


def _mutants(seed: int, count: int) -> int:
    """Convert broken requests: they are refused, or say what protobuf reads in them."""
    chance = random.Random(seed)
    taken = 0
    for _ in range(count):
        kind = chance.choice(list(OtlpKind))
        body = mutated(request(kind, chance, items=2), chance)
        try:
            made = otap_of(kind, [body])
        except NotOtlp:
            continue
        back = b"".join(one for tables in made for one in otlp_of(kind, tables))
        try:
            wanted = normal_form(kind, body)
        except DecodeError:
            continue  # ptars takes it; a receiver asks protobuf first
        assert normal_form(kind, back) == wanted, body.hex()
        taken += 1
    return taken


def test_broken_requests_are_refused_or_mean_what_protobuf_reads() -> None:
    assert _mutants(5, MUTANTS) > MUTANTS // 10


@pytest.mark.slow
def test_many_broken_requests_are_refused_or_mean_what_protobuf_reads() -> None:
    assert _mutants(6, SLOW_MUTANTS) > SLOW_MUTANTS // 10


def test_all_requests_of_a_batch_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resource is said again with each request, so that they can be far more than the tables."""
    (tables,) = otap_of(OtlpKind.TRACES, [request(OtlpKind.TRACES, random.Random(1), items=20)])
    monkeypatch.setattr(to_otlp, "REQUEST_BYTES_MAX", 1)
    whole = sum(map(len, otlp_of(OtlpKind.TRACES, tables)))
    monkeypatch.setattr(to_otlp, "CONVERTED_BYTES_MAX", whole)
    otlp_of(OtlpKind.TRACES, tables)
    monkeypatch.setattr(to_otlp, "CONVERTED_BYTES_MAX", whole - 1)
    with pytest.raises(NotOtap, match=f"more than {whole - 1} bytes"):
        otlp_of(OtlpKind.TRACES, tables)
