"""The guide to a collector: its files are sound, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.graph.loader import load
from holdfast.operate.gateway_metrics import ALL_METRICS
from holdfast.receive.otlp import Config

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "guide" / "collector.md").read_text()
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```yaml\n(.*?)```", TEXT, re.DOTALL))


@pytest.mark.parametrize("name", FILES)
def test_its_files_are_sound(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(FILES[name])
    assert load(path).warnings == ()


def test_every_metric_and_every_setting_of_the_receiver_exists() -> None:
    assert set(FILES) == {"collector.yaml", "backends.yaml", "less.yaml", "tables.yaml"}
    known = {metric.name.replace(".", "_") for metric in ALL_METRICS}
    named = re.findall(r"`(gateway_\w+)`", TEXT)
    assert named
    assert set(named) <= known
    top = set(re.findall(r"`((?:http_)?listening_addr|keep_headers|cors|token_file|tokens)`", TEXT))
    assert len(top) == 6
    assert top <= set(Config.model_fields)
