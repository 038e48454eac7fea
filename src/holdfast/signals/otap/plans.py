"""Which message of OTLP is which table of OTAP.

Columns are called like the fields of their messages, with few exceptions, which stand here. What a
message holds in lists is in tables of its own: its attributes, and the messages within it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.signals.otap.payloads import PayloadType
from holdfast.signals.otlp.kinds import OtlpKind

_PROTO = "opentelemetry.proto"
RESOURCE_MESSAGE = f"{_PROTO}.resource.v1.Resource"
SCOPE_MESSAGE = f"{_PROTO}.common.v1.InstrumentationScope"


@dataclass(frozen=True)
class TablePlan:
    """A message, and the table of its fields."""

    message: str
    table: PayloadType
    # The field that holds attributes, and their table.
    attributes: tuple[str, PayloadType] | None = None
    # By the field: messages that have tables of their own.
    children: Mapping[str, TablePlan] = field(default_factory=dict)
    # By the column: the field, where their names differ.
    renamed: Mapping[str, str] = field(default_factory=dict)


_NUMBER_VALUE = {"int_value": "as_int", "double_value": "as_double"}


def _points(
    message: str,
    table: PayloadType,
    attributes: PayloadType,
    exemplars: tuple[PayloadType, PayloadType] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> TablePlan:
    children = {}
    if exemplars is not None:
        children["exemplars"] = TablePlan(
            f"{_PROTO}.metrics.v1.Exemplar",
            exemplars[0],
            ("filtered_attributes", exemplars[1]),
            renamed=_NUMBER_VALUE,
        )
    return TablePlan(
        f"{_PROTO}.metrics.v1.{message}",
        table,
        ("attributes", attributes),
        children,
        renamed or {},
    )


PLANS: Mapping[OtlpKind, TablePlan] = {
    OtlpKind.LOGS: TablePlan(
        f"{_PROTO}.logs.v1.LogRecord", PayloadType.LOGS, ("attributes", PayloadType.LOG_ATTRS)
    ),
    OtlpKind.TRACES: TablePlan(
        f"{_PROTO}.trace.v1.Span",
        PayloadType.SPANS,
        ("attributes", PayloadType.SPAN_ATTRS),
        {
            "events": TablePlan(
                f"{_PROTO}.trace.v1.Span.Event",
                PayloadType.SPAN_EVENTS,
                ("attributes", PayloadType.SPAN_EVENT_ATTRS),
            ),
            "links": TablePlan(
                f"{_PROTO}.trace.v1.Span.Link",
                PayloadType.SPAN_LINKS,
                ("attributes", PayloadType.SPAN_LINK_ATTRS),
            ),
        },
    ),
    # Its points are in messages of five kinds, see `POINTS`.
    OtlpKind.METRICS: TablePlan(
        f"{_PROTO}.metrics.v1.Metric",
        PayloadType.UNIVARIATE_METRICS,
        ("metadata", PayloadType.METRIC_ATTRS),
    ),
}
_NUMBER_POINTS = _points(
    "NumberDataPoint",
    PayloadType.NUMBER_DATA_POINTS,
    PayloadType.NUMBER_DP_ATTRS,
    (PayloadType.NUMBER_DP_EXEMPLARS, PayloadType.NUMBER_DP_EXEMPLAR_ATTRS),
    _NUMBER_VALUE,
)
# By the field of a metric: the number that `metric_type` has for it, and the table of its points.
POINTS: Mapping[str, tuple[int, TablePlan]] = {
    "gauge": (1, _NUMBER_POINTS),
    "sum": (2, _NUMBER_POINTS),
    "histogram": (
        3,
        _points(
            "HistogramDataPoint",
            PayloadType.HISTOGRAM_DATA_POINTS,
            PayloadType.HISTOGRAM_DP_ATTRS,
            (PayloadType.HISTOGRAM_DP_EXEMPLARS, PayloadType.HISTOGRAM_DP_EXEMPLAR_ATTRS),
        ),
    ),
    "exponential_histogram": (
        4,
        _points(
            "ExponentialHistogramDataPoint",
            PayloadType.EXP_HISTOGRAM_DATA_POINTS,
            PayloadType.EXP_HISTOGRAM_DP_ATTRS,
            (PayloadType.EXP_HISTOGRAM_DP_EXEMPLARS, PayloadType.EXP_HISTOGRAM_DP_EXEMPLAR_ATTRS),
        ),
    ),
    "summary": (
        5,
        _points(
            "SummaryDataPoint",
            PayloadType.SUMMARY_DATA_POINTS,
            PayloadType.SUMMARY_DP_ATTRS,
            renamed={"quantile": "quantile_values"},
        ),
    ),
}
# Fields of a metric's data that are columns of the metric, with the data that have them.
METRIC_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "aggregation_temporality": ("sum", "histogram", "exponential_histogram"),
    "is_monotonic": ("sum",),
}
# What OTAP has no place for. `holdfast` loses it where it converts, and nowhere else.
LOST_FIELDS = frozenset(
    {
        f"{RESOURCE_MESSAGE}.entity_refs",
        f"{_PROTO}.common.v1.KeyValue.key_strindex",
        f"{_PROTO}.common.v1.AnyValue.string_value_strindex",
    }
)
