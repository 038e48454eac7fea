"""A quick run of the whole benchmark: every figure is there, and none is absurd."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import bench
from holdfast.bench import runner
from holdfast.bench.load import (
    PRODUCERS,
    by_tasks,
    by_threads,
    has_run,
    measure,
    raw_event,
    replay_groups,
    telemetry_batch,
)
from holdfast.bench.quiver_append import measure_small
from holdfast.bench.quiver_ledger import measure_ledger
from holdfast.bench.scale import QUIVER_QUICK
from holdfast.errors import BadInput
from holdfast.quiver import Quiver, QuiverConfig
from holdfast.quiver.base.bundle import encode_arrow
from holdfast.quiver.log.wal import decode_header

PROMISED = {
    "append_vs_disk",
    "small_append_per_s",
    "syncs_per_append",
    "cpu_us_per_small_append",
    "ack_p50_ms",
    "ack_p99_ms",
    "recovery_mb_s",
    "recovery_frames_per_s",
    "startup_s",
    "startup_doubling_percent",
    "rss_mb",
    "seal_stall_ms",
    "write_amplification",
}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return measured(tmp_path_factory.mktemp("bench"))


def measured(folder: Path) -> dict[str, Any]:
    told: list[str] = []
    found = bench.run("quiver", quick=True, progress=told.append, directory=folder)
    assert list(folder.iterdir()) == [], "the benchmark left files behind"
    assert told
    return found


def test_two_sections_measure_what_they_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others take long even when they measure next to nothing."""
    whole = runner.load("quiver")
    once = whole._replace(
        sections=(measure_small, measure_ledger), bars=(), quick=replace(QUIVER_QUICK, rounds=1)
    )
    monkeypatch.setattr(runner, "load", lambda name: once)
    found = measured(tmp_path)
    assert json.loads(json.dumps(found)) == found
    assert found["spread"].keys() >= {"small_append_per_s", "cpu_us_per_small_append"}
    assert found["small_append_per_s"] > 0
    assert found["machine"].keys() >= {"cores", "filesystem", "python", "load_average"}


@pytest.mark.slow
def test_every_promised_figure_is_there_with_its_spread(result: dict[str, Any]) -> None:
    assert result.keys() >= PROMISED
    assert result["spread"].keys() >= PROMISED
    assert all(spread["rounds"] == QUIVER_QUICK.rounds for spread in result["spread"].values())


@pytest.mark.slow
def test_the_result_is_plain_json(result: dict[str, Any]) -> None:
    assert json.loads(json.dumps(result)) == result


@pytest.mark.slow
def test_no_figure_is_absurd(result: dict[str, Any]) -> None:
    for name, spread in result["spread"].items():
        values = [spread["min"], spread["median"], spread["max"]]
        assert values == sorted(values), name
        assert all(math.isfinite(value) for value in values), name
        if name != "startup_doubling_percent":
            assert values[0] >= 0, name
    assert result["append_vs_disk"] > 0
    # 64 producers share a sync at best; the figure is rounded.
    assert 0.0156 <= result["syncs_per_append"] <= 1
    assert result["ack_p50_ms"] <= result["ack_p99_ms"] <= result["seal_stall_ms"]
    # Once into the WAL, once into a segment with its envelope; what is more is the reserve,
    # which is written once and is large beside what a quick run appends.
    wal, seal = result["write_amplification_wal"], result["write_amplification_seal"]
    assert 1 <= wal < 1.1
    assert 1 <= seal < 1.5
    assert wal + seal <= result["write_amplification"] < 4
    assert result["startup_segments"] == QUIVER_QUICK.startup_segments
    assert result["startup_gb"] > 1.5 * result["startup_half_gb"]


@pytest.mark.slow
def test_the_bars_are_judged(result: dict[str, Any]) -> None:
    assert result["bars"].keys() == {
        "append_vs_disk",
        "recovery_mb_s",
        "recovery_frames_per_s",
        "startup_doubling_percent",
        "rss_mb",
    }


@pytest.mark.slow
def test_the_machine_is_described(result: dict[str, Any]) -> None:
    told = result["machine"]
    assert told["cores"] >= 1
    assert told.keys() >= {"processor", "filesystem", "python", "pyarrow", "load_average"}


def test_an_unknown_benchmark_is_refused() -> None:
    with pytest.raises(BadInput, match="no benchmark 'speed'"):
        bench.run("speed", quick=True, progress=lambda _: None, directory=None)


def test_a_batch_has_about_88_kb_and_an_event_2_kb() -> None:
    assert 80_000 < len(encode_arrow(telemetry_batch(), 1 << 20).payload) < 95_000
    assert len(raw_event()) == 2_048


@pytest.mark.parametrize("driver", ["tasks", "threads"])
def test_the_recorded_groups_are_what_the_wal_was_given(tmp_path: Path, driver: str) -> None:
    event = raw_event()
    by_driver = {
        "tasks": by_tasks(lambda quiver: quiver.append_raw_async(event)),
        "threads": by_threads(lambda quiver: quiver.append_raw(event)),
    }
    run = measure(tmp_path / "q", QuiverConfig(), 3, by_driver[driver])
    assert run.appends == run.statistics.writer.appends == 3 * 64
    assert len(run.groups) == run.statistics.writer.groups
    payload_bytes = run.statistics.writer.payload_bytes
    assert payload_bytes < sum(run.groups) < 1.1 * payload_bytes
    raw = replay_groups(tmp_path, run.groups)
    assert raw.written_bytes == sum(run.groups)
    assert len(raw.group_s) == len(run.groups)
    assert [path.name for path in tmp_path.iterdir()] == ["q"]


def test_a_producer_that_fails_fails_the_load(tmp_path: Path) -> None:
    def fail(quiver: object) -> object:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        measure(tmp_path / "q", QuiverConfig(), 3, by_threads(fail))


def test_the_filesystem_of_a_directory_is_found(tmp_path: Path) -> None:
    found = runner.filesystem(tmp_path)
    assert found != "unknown" or not Path("/proc/self/mounts").exists()
    if Path("/proc/self/mounts").exists():
        assert runner.filesystem(Path("/proc")) == "proc"


def test_a_quiver_that_is_not_new_writes_over_an_old_log(tmp_path: Path) -> None:
    event = raw_event()
    with Quiver.open(tmp_path) as quiver:
        has_run(quiver, tmp_path, 2, by_tasks(lambda quiver: quiver.append_raw_async(event)))
        quiver.append_raw(event)
        (newest,) = (tmp_path / "wal").glob("*.wal")
        header = decode_header(memoryview(newest.read_bytes()))
    assert header.recycled_bytes > 2 * PRODUCERS * len(event)


def test_the_bare_disk_writes_as_much_over_an_old_file(tmp_path: Path) -> None:
    over = replay_groups(tmp_path, [4096, 10_000], is_new=False)
    assert over.written_bytes == 14_096
    assert len(over.group_s) == 2
    assert list(tmp_path.iterdir()) == []
