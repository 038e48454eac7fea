"""What keeps a graph from starting on this machine is found by `up --check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.graph.environment import (
    caps_beyond_disks,
    missing_in_environment,
    missing_packages,
)
from holdfast.graph.loader import Loaded, load

GRAPH = """\
data_dir: {data_dir}
nodes:
  in: {{kind: receiver, type: openlineage, to: [out], config: {{listen: "127.0.0.1:0"}}}}
  out: {{kind: exporter, type: kafka, config: {config}}}
admin: {{listen: null}}
"""
KAFKA = '{brokers: "127.0.0.1:9", topic: t}'


def missing(folder: Path, data_dir: str = "data", config: str = KAFKA) -> list[str]:
    """Return what is the matter with the file, each with its line."""
    path = folder / "graph.yaml"
    path.write_text(GRAPH.format(data_dir=data_dir, config=config))
    return [f"{one.line} {one.message}" for one in missing_in_environment(load(path))]


def test_a_good_machine_lacks_nothing(tmp_path: Path) -> None:
    assert missing(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["graph.yaml"]


def test_a_cap_that_the_disk_does_not_have_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    quiver = "hold: {kind: processor, type: quiver, to: [out], config: {retention: {size_cap: %s}}}"
    told = []
    for size in ("1GB", "900000TB"):
        text = GRAPH.format(data_dir="data", config=KAFKA).replace("to: [out]", "to: [hold]")
        path.write_text(text.replace("  out:", f"  {quiver % size}\n  out:"))
        told += [f"{one.line} {one.severity}" for one in caps_beyond_disks(load(path))]
    assert told == ["4 warning"]


def test_a_directory_that_only_seems_to_be_writable_is_found(tmp_path: Path) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("there is no /proc here")
    told = missing(tmp_path, data_dir="/proc/holdfast")
    assert told
    assert all("/proc/holdfast" in line and "cannot be written" in line for line in told)


def test_what_one_setting_of_an_exporter_needs_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`files` itself needs no extra; a bucket does."""
    monkeypatch.setattr("holdfast.extras.find_spec", lambda name: None if name == "obstore" else 1)
    path = tmp_path / "holdfast.yaml"
    path.write_text(
        GRAPH.format(data_dir="data", config="{directory: 's3://b'}").replace("kafka", "files")
    )
    (told,) = missing_packages(load(path))
    assert "needs the extra `bucket`" in told.message
    assert "[bucket]" in told.hint


def test_what_an_archive_needs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "holdfast.yaml"

    def load_with(archive: str) -> Loaded:
        quiver = f"hold: {{kind: processor, type: quiver, to: [out], config: {archive}}}"
        text = GRAPH.format(data_dir="data", config=KAFKA).replace("to: [out]", "to: [hold]")
        path.write_text(text.replace("  out:", f"  {quiver}\n  out:"))
        return load(path)

    bucket = "{segment: {archive: {url: 's3://b', bucket: {options: {%s: x}}}}}"
    (told,) = missing_in_environment(load_with(bucket % "no_such_setting"))
    assert told.line == 4
    assert "the bucket cannot be used" in told.message
    assert missing_in_environment(load_with(bucket % "region")) == []
    monkeypatch.setattr("holdfast.extras.find_spec", lambda name: None if name == "obstore" else 1)
    (told,) = missing_packages(load_with(bucket % "region"))
    assert "needs the extra `bucket`" in told.message
    assert "[bucket]" in told.hint
    assert missing_packages(load_with("{segment: {archive: {url: /mnt/archive}}}")) == []


def test_settings_that_only_the_exporters_library_can_judge_are_found(tmp_path: Path) -> None:
    wrong = '{brokers: "127.0.0.1:9", topic: t, client_config: {not.a.setting: "1"}}'
    assert missing(tmp_path, config=wrong) == [
        "4 librdkafka does not take the configuration: `not.a.setting`"
    ]
