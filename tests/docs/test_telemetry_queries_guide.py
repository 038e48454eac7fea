"""The guide to queries: everything in it is run, and answers as it says."""

from __future__ import annotations

import contextlib
import io
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.deliver.exporters.sending import context, event, send
from tests.patience import SPARK_PATIENCE_S
from tests.support.guide import Block, blocks

from holdfast.deliver.exporters import files
from holdfast.operate.cli import cli
from holdfast.quiver import Quiver, QuiverConfig
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS
from holdfast.signals.registry import extractors

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "telemetry-queries.md"
START_NS = 1_790_000_000_000_000_000
TRACE = (42).to_bytes(16, "big")


def spans_of(service: str, durations_ms: list[int], failed: int) -> bytes:
    made: Any = REQUESTS[OtlpKind.TRACES]()
    resource = made.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = service
    spans = resource.scope_spans.add().spans
    for number, duration_ms in enumerate(durations_ms):
        span = spans.add(name="GET /", trace_id=TRACE if number < failed else bytes([number] * 16))
        span.start_time_unix_nano = START_NS
        span.end_time_unix_nano = START_NS + duration_ms * 1_000_000
        span.status.code = 2 if number < failed else 0
    body: bytes = made.SerializeToString()
    return body


def logs_of(service: str, said: list[tuple[str, str, bytes]]) -> bytes:
    made: Any = REQUESTS[OtlpKind.LOGS]()
    resource = made.resource_logs.add()
    resource.resource.attributes.add(key="service.name").value.string_value = service
    records = resource.scope_logs.add().log_records
    for severity, text, trace in said:
        record = records.add(severity_text=severity, trace_id=trace, time_unix_nano=START_NS)
        record.body.string_value = text
    body: bytes = made.SerializeToString()
    return body


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Quiver]:
    """What a gateway has in its data directory that was sent a few requests, some sealed."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "holdfast_data" / "buffer" / "core-00"
    folder.mkdir(parents=True)
    with Quiver.open(folder, QuiverConfig(extractors=extractors())) as quiver:
        quiver.append_raw(spans_of("cart", [10, 20, 30, 40], 1), slot="otlp_traces")
        said = [("ERROR", "no such item", TRACE), ("INFO", "started", b"")]
        quiver.append_raw(logs_of("cart", said), slot="otlp_logs")
        quiver.flush()
        durations_ms = [10, 20, 30, 40, 50, 60]
        quiver.append_raw(spans_of("checkout", durations_ms, 0), slot="otlp_traces")
        quiver.append_raw(logs_of("checkout", [("INFO", "paid", b"")] * 2), slot="otlp_logs")
        yield quiver


@pytest.fixture
def lake(data: Quiver) -> None:
    """What the exporter of the guide writes of the same requests."""
    (block,) = [one for one in blocks(GUIDE) if one.language == "yaml"]
    config = files.Config.model_validate(yaml.safe_load(block.text)["lake"]["config"])
    requests = [
        event(row["_seq"], row["payload"], slot=slot)
        for slot in ("otlp_traces", "otlp_logs")
        for row in data.scan(slot=slot).read_all().to_pylist()
    ]
    send(files.make(config, context(Path())), requests)


def answered(block: Block, names: dict[str, Any]) -> str:
    if block.language == "python":
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block.text, str(GUIDE), "exec"), names)
        return printed.getvalue()
    words = shlex.split(block.text)
    assert words[0] == "holdfast"
    done = CliRunner().invoke(cli, words[1:], standalone_mode=False)
    assert done.exception is None, done.exception
    return done.output


def pairs(*, of_spark: bool) -> list[tuple[Block, str]]:
    """Return what is run, each with what has to be printed."""
    found = list(blocks(GUIDE))
    texts = [*(one.text if one.language == "text" else "" for one in found[1:]), ""]
    return [
        (block, text)
        for block, text in zip(found, texts, strict=True)
        if block.language in ("bash", "python")
        and "pip install" not in block.text
        and ("# with Spark" in block.text) is of_spark
    ]


@pytest.mark.usefixtures("lake")
def test_the_guide_answers_as_it_says() -> None:
    names: dict[str, Any] = {}
    run = pairs(of_spark=False)
    assert len(run) == 7
    for block, expected in run:
        told = answered(block, names)
        for shown in block.shows:
            assert shown in told
        if expected:
            assert told == expected, block.text


# A path is where Java was started: so this is a process of its own, as a user's is.
WITH_SPARK = """
import sys
from holdfast.dataflow.session import start_session, stop_session
spark = start_session("local[1]")
exec(sys.stdin.read())
stop_session(spark)
"""
# The folders of the exporter, as anybody's.
OF_LAKE = """
rows = spark.read.parquet("lake/spans").where("service = 'cart'").select("hour", "_seq")
print([row.hour for row in rows.collect()])
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("lake")
def test_spark_answers_as_it_says(data: Quiver) -> None:
    data.flush()  # Spark reads what is sealed
    ((block, expected),) = pairs(of_spark=True)
    done = subprocess.run(
        [sys.executable, "-c", WITH_SPARK], input=block.text + OF_LAKE,
        capture_output=True, text=True, check=False, timeout=SPARK_PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{expected}{['2026-09-21T14'] * 4}\n"
