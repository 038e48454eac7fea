"""The page about the HTTP interface says what the code does: reasons, bounds, paths, example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from holdfast.receive.connection import ConnectionSettings
from holdfast.receive.openlineage import Config
from holdfast.receive.request_limits import RequestLimits
from holdfast.receive.responses import STATUS_OF
from holdfast.settings import Settings
from holdfast.settings.units import parse_duration_s, parse_size_bytes

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "http-api.md").read_text()


def test_every_reason_is_on_the_page() -> None:
    rows = re.findall(r"^\| (\d{3}) \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert [(int(status), reason) for status, reason in rows] == [
        (status, reason) for reason, status in STATUS_OF.items()
    ]


@pytest.mark.parametrize(
    ("group", "settings"), [("limits", RequestLimits()), ("connections", ConnectionSettings())]
)
def test_every_bound_is_on_the_page_with_its_default(group: str, settings: Settings) -> None:
    rows = dict(re.findall(rf"^\| `{group}\.(\w+)` \| (\S+) \|", PAGE, re.MULTILINE))
    assert list(rows) == list(type(settings).model_fields)
    for name, shown in rows.items():
        parse = (
            parse_duration_s if name.endswith("_s") and "bytes" not in name else parse_size_bytes
        )
        default = getattr(settings, name)
        assert (int(shown) if shown.isdecimal() else parse(shown)) == default, name


def test_every_path_is_on_the_page() -> None:
    assert [
        path for path in Config().all_paths if f"`{path}`" not in PAGE.replace("POST ", "")
    ] == []


def test_the_example_is_a_configuration() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (node,) = yaml.safe_load(example)["nodes"].values()
    config = Config.model_validate(node["config"])
    assert config.tokens[0].namespaces == ("airflow-*", "s3://lake-*")
