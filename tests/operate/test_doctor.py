"""The doctor names what does not fit on this machine, and still finishes its examination."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from holdfast.operate.cli import cmd_doctor
from holdfast.operate.cli.cmd_doctor import examine
from holdfast.quiver.base import identity
from holdfast.signals.otlp.flat import nested


def test_a_big_endian_machine_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    healths = {finding.name: finding.health for finding in examine(tmp_path)}
    assert (healths["byte order"], healths["quiver"]) == ("ok", "ok")
    monkeypatch.setattr(identity, "machine_order", lambda: "big")
    findings = {finding.name: finding for finding in examine(tmp_path)}
    assert findings["byte order"].health == findings["quiver"].health == "fail"
    assert findings["byte order"].advice
    assert list(tmp_path.iterdir()) == []


def test_it_says_which_java_and_which_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = {finding.name: finding for finding in examine(tmp_path)}
    assert findings["java"].health == "ok"
    assert " from " in findings["java"].found
    assert findings["spark"].found == importlib.metadata.version("pyspark")
    assert findings["spark"].health == "ok"
    monkeypatch.setattr(cmd_doctor, "SPARK_SERIES", "3.5")
    findings = {finding.name: finding for finding in examine(tmp_path)}
    assert findings["spark"].health == "warn"
    assert "3.5" in findings["spark"].advice


def test_it_says_who_makes_flat_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = {finding.name: finding for finding in examine(tmp_path)}
    assert findings["flat tables"].health == "ok"
    assert findings["flat tables"].found == f"by ptars {importlib.metadata.version('ptars')}"
    monkeypatch.setattr(nested, "converter", lambda: nested.Converter.UPB)
    findings = {finding.name: finding for finding in examine(tmp_path)}
    assert findings["flat tables"].health == "warn"
    assert "protobuf" in findings["flat tables"].found
