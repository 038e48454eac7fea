"""Keys have no units, and the keys of versions before are still read."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from holdfast.deliver.settings import DeliverySettings
from holdfast.graph import quiver_node
from holdfast.graph.model import GraphFile
from holdfast.graph.registry import COMPONENTS
from holdfast.graph.schema import settings_of
from holdfast.settings import DurationS, FileSettings, SizeBytes
from holdfast.settings.keys import CONVERTED, key_of, old_names


class Example(FileSettings):
    """Every kind of name."""

    timeout_s: DurationS = 1.0
    max_body_bytes: SizeBytes = 5
    bytes_per_s: SizeBytes = 2
    retention_time_s: DurationS | None = None
    names: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("timeout_s", "timeout"),
        ("max_body_bytes", "max_body_size"),
        ("bytes_per_s", "bytes_per_s"),
        ("names", "names"),
    ],
)
def test_a_key_has_no_unit(name: str, key: str) -> None:
    assert key_of(name) == key
    assert name == key or name in old_names(key)


@pytest.mark.parametrize(
    "given",
    [
        {"timeout": "30s", "max_body_size": "1KB", "retention_time": "2h"},
        {"timeout_s": 30, "max_body_bytes": 1024, "retention_hours": 2},
        {"timeout": 30.0, "max_body_bytes": "1KB", "retention_time_s": 7200},
    ],
)
def test_old_and_new_keys_mean_the_same(given: dict[str, Any]) -> None:
    read = Example.model_validate(given)
    assert (read.timeout_s, read.max_body_bytes, read.retention_time_s) == (30.0, 1024, 7200.0)


def test_a_key_is_given_once() -> None:
    with pytest.raises(ValidationError, match="'retention_hours' and 'retention_time' are the sam"):
        Example.model_validate({"retention_time": "1h", "retention_hours": 1})


def test_a_converted_key_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValidationError, match="is not a duration"):
        Example.model_validate({"retention_hours": "soon"})


def test_every_converted_key_is_one_of_a_model() -> None:
    models: list[type[FileSettings]] = [DeliverySettings, quiver_node.RetentionSettings]
    assert {name for model in models for name in model.old_keys()} >= CONVERTED.keys()


def test_no_key_of_a_graph_file_has_a_unit() -> None:
    models: list[type[BaseModel]] = [GraphFile, DeliverySettings]
    models += [component.config_model for component in COMPONENTS]
    rows = [row for model in models for row in settings_of(model)]
    measured = [row.key for row in rows if row.type.startswith(("size", "duration"))]
    assert len(measured) > 50
    assert [key for key in measured if key.endswith(("_bytes", "_s", "_hours"))] == [
        key for key in measured if key.endswith("bytes_per_s")
    ]
