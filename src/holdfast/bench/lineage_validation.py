"""What checking an OpenLineage event costs: `orjson.loads` alone, and parsing with validation.

The events are like those of the Python client: about 1.9 kB, keys sorted, escaped to ASCII, with
facets of the standard in every place. No two are equal.

parse       the events are parsed, and nothing else
validate    the events are parsed and checked at the default level; all are valid
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from holdfast.bench.figures import Figures, interleave
from holdfast.bench.scale import GatewayScale
from holdfast.bench.stopwatch import Stopwatch
from holdfast.signals.openlineage.validation import Validator

_SPEC = "https://openlineage.io/spec"
_PRODUCER = "https://github.com/OpenLineage/OpenLineage/tree/1.54.0"


def measure_lineage_validation(
    _folder: Path, scale: GatewayScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Add `validation_vs_parse`, and how many events are parsed and validated per second.

    `orjson.loads` is the floor: whoever wants to look at an event at all has to pay that much.
    Events differ from each other, or caches of keys and strings would make both look better than
    they are.
    """
    events, rounds = scale.validated_events, scale.rounds
    progress(f"validation: {events} events of 1.9 kB, {rounds} rounds")
    payloads = [lineage_event(number) for number in range(events)]
    check = Validator().parse_and_check
    runs = interleave(
        {"parse": _timed(orjson.loads, payloads), "validate": _timed(check, payloads)}, rounds
    )
    figures.add("parse_events_per_s", (events / spent_s for spent_s in runs["parse"]))
    figures.add("validate_events_per_s", (events / spent_s for spent_s in runs["validate"]))
    ratios = (
        both_s / alone_s for both_s, alone_s in zip(runs["validate"], runs["parse"], strict=True)
    )
    figures.add("validation_vs_parse", ratios)


def _timed(call: Callable[[bytes], object], payloads: Sequence[bytes]) -> Callable[[], float]:
    def contend() -> float:
        # CPU time: what else runs on the machine is not of interest.
        with Stopwatch() as watch:
            for payload in payloads:
                call(payload)
        return watch.cpu_s

    return contend


def lineage_event(number: int) -> bytes:
    """Return a valid run event of about 1.9 kB."""
    event = {
        "eventType": "COMPLETE",
        "eventTime": f"2026-01-31T12:00:00.{number % 1_000_000:06}+00:00",
        "run": {
            "runId": str(uuid.UUID(int=number, version=4)),
            "facets": {
                "nominalTime": _facet(
                    "NominalTimeRunFacet", nominalStartTime="2026-01-31T12:00:00.000Z"
                ),
                "processing_engine": _facet(
                    "ProcessingEngineRunFacet", name="Airflow", version="3.1.0"
                ),
            },
        },
        "job": {
            "namespace": "analytics",
            "name": "warehouse.orders_daily",
            "facets": {"sql": _facet("SQLJobFacet", query=_QUERY)},
        },
        "inputs": [_dataset("orders", {"schema": _facet("SchemaDatasetFacet", fields=_COLUMNS)})],
        "outputs": [
            _dataset("orders_daily", {"dataSource": _facet("DatasourceDatasetFacet", uri=_HOST)})
        ],
        "producer": _PRODUCER,
        "schemaURL": f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent",
    }
    return json.dumps(event, sort_keys=True).encode()


_HOST = "postgres://warehouse:5432"
_QUERY = "insert into daily select day, sum(amount) from orders group by day"
_COLUMNS = [{"name": name, "type": "VARCHAR"} for name in ("id", "day", "amount", "customer")]


def _facet(name: str, /, **fields: Any) -> dict[str, Any]:
    address = f"{_SPEC}/facets/1-0-1/{name}.json#/$defs/{name}"
    return {"_producer": _PRODUCER, "_schemaURL": address, **fields}


def _dataset(name: str, facets: dict[str, Any]) -> dict[str, Any]:
    return {"namespace": _HOST, "name": f"public.{name}", "facets": facets}
