"""The committed protobuf code is what the compiler makes of the schema today."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "make_protobuf.py"))


@pytest.mark.parametrize("schema", sorted(SCRIPT["SCHEMAS"]))
def test_generated_code_is_up_to_date(schema: str) -> None:
    generated: dict[str, str] = SCRIPT["generate"](schema)
    folder = ROOT / SCRIPT["SCHEMAS"][schema]
    assert generated
    assert {name: (folder / name).read_text() for name in generated} == generated
