"""Columns of Python values: as pyarrow makes them, and without what pyarrow imports for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import PATIENCE_S

from holdfast.quiver.base.arrow import constant, numbers, texts

KINDS = (pa.int8(), pa.int32(), pa.int64(), pa.timestamp("us", tz="UTC"), pa.duration("us"))

_PROGRAM = """
import sys
from holdfast.quiver import Quiver, QuiverConfig
from holdfast.signals.openlineage.names import OpenLineageExtractor
config = QuiverConfig(extractors={"openlineage": OpenLineageExtractor()})
event = b'{"eventTime": "2026-01-01T00:00:00Z", "run": {"runId": "r"}}'
with Quiver.open(sys.argv[1], config) as quiver:
    cursor = quiver.cursor("reader")
    for _ in range(2):
        quiver.append_raw([event, b"{}"], slot="openlineage", headers=[{"a": "b"}, None])
        planned = cursor.plan()
        assert [bundle.payloads for bundle in cursor.read(planned)] == [[event, b"{}"]]
        quiver.flush()
        assert [bundle.payloads for bundle in cursor.read(planned)] == [[event, b"{}"]]
        cursor.commit(planned)
print("pandas" in sys.modules)
"""


@given(st.lists(st.none() | st.integers(-128, 127)), st.sampled_from(KINDS))
def test_numbers_are_what_pyarrow_makes_of_them(
    values: list[int | None], kind: pa.DataType
) -> None:
    made = numbers(values, kind)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))


@given(st.lists(st.none() | st.text()))
def test_texts_are_what_pyarrow_makes_of_them(values: list[str | None]) -> None:
    made = texts(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.string()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_constant_is_a_scalar(kind: pa.DataType) -> None:
    assert constant(7, kind).equals(pa.scalar(7, kind))


def test_sealing_and_reading_do_without_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "quiver")],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout.strip() == "False"
