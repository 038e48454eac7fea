"""`holdfast prove telemetry`: its checker sees every difference; a short run of the real thing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from holdfast.graph.loader import load
from holdfast.prove.journal import ProofJournal
from holdfast.prove.service_calls import service_request
from holdfast.prove.telemetry_stats import PIPELINES, graph_file
from holdfast.prove.telemetry_stats_checker import (
    GRAPH,
    LATE,
    LOGS,
    SPANS,
    StatisticsRow,
    StatisticsVerdict,
    StoredItem,
    check_statistics,
    log_statistics,
    service_graph,
    span_statistics,
    stored_items,
)
from holdfast.quiver import Quiver, QuiverConfig
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.registry import extractors

EXAMPLE = Path(__file__).parents[2] / "examples" / "telemetry_stats.yaml"
NOW_NS = 1_790_000_030 * 10**9


def test_the_proof_is_of_the_example(tmp_path: Path) -> None:
    assert yaml.safe_load(EXAMPLE.read_text())["pipelines"] == PIPELINES
    (tmp_path / "gateway.yaml").write_text(graph_file([4711, 4712], tmp_path))
    assert load(tmp_path / "gateway.yaml").warnings == ()


class Proof:
    """What a proof leaves when all went well; a test then changes something."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.quiver = Quiver.open(root / "quiver", QuiverConfig(extractors=extractors()))
        (root / "journals").mkdir()
        self.journal = ProofJournal(root / "journals" / "0.journal")
        kinds = list(OtlpKind)
        for count in range(1, 13):
            kind = kinds[count % len(kinds)]
            names = [f"0-{count}.{place}" for place in range(5 if count % 2 else 1)]
            self.journal.sent(f"0-{count}", len(names))
            self.store(kind, names)
            self.journal.answered(f"0-{count}", count)
        self.spans = list(stored_items(OtlpKind.TRACES, root / "quiver"))
        self.logs = list(stored_items(OtlpKind.LOGS, root / "quiver"))
        self.late_spans: list[StoredItem] = []

    def store(self, kind: OtlpKind, names: list[str]) -> None:
        self.quiver.append_raw(service_request(kind, names, NOW_NS), slot=kind.slot)

    def check(self) -> StatisticsVerdict:
        """Write what Spark would, of the spans and log records as they are now; and check."""
        counted = [span for span in self.spans if span not in self.late_spans]
        self._write(SPANS, rows(span_statistics(counted)))
        self._write(LOGS, rows(log_statistics(self.logs)))
        self._write(GRAPH, rows(service_graph(self.spans)))
        late = [
            {"at_us": one.at_us, "service": one.service, "ns": one.duration_ns, "code": one.status}
            for one in self.late_spans
        ]
        self._write(f"{LATE}/span-stats", late)
        return check_statistics(self.root / "journals", self.root, self.root / "quiver")

    def _write(self, folder: str, found: list[dict[str, Any]]) -> None:
        if found:
            (self.root / folder).mkdir(parents=True)
            table = pa.Table.from_pylist(found)
            pq.write_table(table, self.root / folder / "part-0.parquet")


def rows(found: Iterator[StatisticsRow] | Any) -> list[dict[str, Any]]:
    made = [dict(row) for row in found]
    for row in made:
        row["window_start"] = datetime.fromtimestamp(row["window_start"], UTC)
        row["window_end"] = row["window_start"]
    return made


@pytest.fixture
def proof(tmp_path: Path) -> Iterator[Proof]:
    made = Proof(tmp_path)
    yield made
    made.journal.close()
    made.quiver.close()


def test_statistics_that_are_a_plain_count_hold(proof: Proof) -> None:
    proof.late_spans = [proof.spans[3]]
    verdict = proof.check()
    assert verdict.ok, verdict
    assert (verdict.answered, verdict.spans, verdict.logs, verdict.points) == (36, 12, 12, 12)
    assert (verdict.counted_spans, verdict.counted_logs, verdict.late) == (12, 12, 1)
    # Two calls in each of the two large requests, and one whose end at the server came later.
    assert verdict.counted_calls == 6


def test_what_is_counted_twice_or_not_at_all_is_seen(proof: Proof) -> None:
    proof.spans.append(proof.spans[0])
    del proof.logs[0]
    verdict = proof.check()
    assert not verdict.ok
    assert verdict.wrong_rows >= 4  # a row that is wrong, and the right one that is not there
    assert any(text.startswith(f"{SPANS} has") for text in verdict.examples)
    assert any(text.startswith(f"{LOGS} lacks") for text in verdict.examples)


def test_a_call_in_another_place_of_the_graph_is_seen(proof: Proof) -> None:
    first = next(place for place, span in enumerate(proof.spans) if span.kind == 2)
    proof.spans[first] = proof.spans[first]._replace(service="elsewhere")
    verdict = proof.check()
    assert any("elsewhere" in text for text in verdict.examples)


def test_what_is_stored_twice_not_at_all_or_otherwise_is_seen(proof: Proof) -> None:
    proof.store(OtlpKind.LOGS, ["0-1.0"])
    proof.journal.sent("0-13", 1)
    proof.journal.answered("0-13", 13)
    body = service_request(OtlpKind.METRICS, ["0-15.0"], NOW_NS).replace(b"0-15.0", b"0-15.1")
    proof.quiver.append_raw(body, slot=OtlpKind.METRICS.slot)
    verdict = proof.check()
    assert (verdict.duplicated, verdict.lost, verdict.invented) == (1, 1, 1)
    assert not verdict.ok


def test_a_late_row_that_was_not_stored_is_seen(proof: Proof) -> None:
    proof.late_spans = [proof.spans[0]._replace(at_us=7)]
    assert proof.check().invented == 1


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_short_proof_holds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "prove", "telemetry", "--kills", "2", "--json"]
    done = subprocess.run(
        [*command, "--dir", str(tmp_path / "proof")],
        capture_output=True, text=True, check=False, timeout=2300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["counted_spans"] == found["spans"] > 0
    assert found["counted_logs"] == found["logs"] > 0
    assert (found["wrong_rows"], found["lost"], found["kills"]) == (0, 0, 2)
