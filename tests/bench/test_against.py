"""Commits compared: everybody has every turn, costs count as costs, and what is slower is found."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.bench import against
from holdfast.bench.against import Measured, compare, is_cost, measure_both, report, turns
from holdfast.bench.quiver_append import measure_small
from holdfast.bench.runner import load
from holdfast.bench.scale import QUIVER_QUICK
from holdfast.errors import BadInput


def rounds(*speeds: float, cpu_us: float = 10.0) -> list[Measured]:
    return [
        Measured({"deliver": {"deliver_mb_s": speed, "cpu_us": cpu_us}}, {"deliver": 1.0})
        for speed in speeds
    ]


def test_every_contender_has_every_turn_equally_often() -> None:
    contenders = ["before", "after", "control"]
    orders = list(turns(6, contenders))
    for place in range(3):
        assert Counter(order[place] for order in orders) == dict.fromkeys(contenders, 2)


def test_a_ratio_is_of_speed_for_rates_and_for_costs() -> None:
    found = {"before": rounds(100.0), "after": rounds(80.0, cpu_us=20.0), "control": rounds(90.0)}
    ratios: Any = report(found, 0.95)["ratios"]
    assert ratios["deliver_mb_s"]["ratio"]["median"] == 0.8
    assert ratios["deliver_mb_s"]["control"]["median"] == 0.9
    assert ratios["deliver_mb_s"]["cpu_ratio"]["median"] == 1
    assert ratios["cpu_us"]["ratio"]["median"] == 0.5
    assert is_cost("write_amplification") is None


def test_a_figure_is_missed_only_if_every_round_lies_below() -> None:
    before, control = rounds(100, 100), rounds(100, 110)
    found = {"before": before, "after": rounds(70, 90), "control": control}
    assert report(found, 0.8)["missed"] == []
    assert report(found, 0.95)["missed"] == ["deliver_mb_s"]


def test_large_groups_of_the_disk_are_compared_and_yardsticks_never_missed() -> None:
    slower = {"append_vs_disk_of_64": 1.0, "append_vs_disk": 1.0}
    yardsticks = {"disk_mb_s": 1.0, "threads_disk_cpu_us": 9.0, "threads_generator_cpu_us": 9.0}
    after = [Measured({"append": {**slower, **yardsticks}}, {"append": 1.0})]
    faster = {"disk_mb_s": 9.0, "threads_disk_cpu_us": 1.0, "threads_generator_cpu_us": 1.0}
    before = [Measured({"append": {**dict.fromkeys(slower, 9.0), **faster}}, {"append": 1.0})]
    found: Any = report({"before": before, "after": after, "control": before}, 0.95)
    assert found["missed"] == ["append_vs_disk_of_64", "append_vs_disk"]
    assert set(found["ratios"]) == {*slower, *yardsticks}


def test_what_only_this_checkout_can_measure_is_named_and_not_compared() -> None:
    lacking = [Measured(failed={"deliver": "no such thing"})]
    found = {"before": lacking, "after": rounds(1.0), "control": lacking}
    assert report(found, 0.95)["not_compared"] == {"deliver": "no such thing"}
    with pytest.raises(BadInput, match="no such thing"):
        report({**found, "after": lacking}, 0.95)


def test_a_commit_or_a_section_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    options: Any = {"quick": True, "at_least": 0.9, "progress": print, "directory": tmp_path}
    with pytest.raises(BadInput, match=r"no section speed"):
        compare("quiver", "HEAD", only=["speed"], **options)
    with pytest.raises(BadInput, match=r"'no-such-commit' cannot be checked out"):
        compare("quiver", "no-such-commit", only=["append"], **options)
    assert list(tmp_path.iterdir()) == []


def test_the_peers_that_are_left_out_are_there() -> None:
    pytest.importorskip("blake3")
    for module, attributes in against.WITHOUT_PEERS.items():
        found = importlib.import_module(f"holdfast.bench.{module}")
        assert all(hasattr(found, name) for name in attributes)
    pytest.importorskip("pyspark")
    for name in ("quiver", "gateway", "handoff", "dataflow", "store"):
        benchmark = load(name)
        assert all(hasattr(benchmark.full, changed) for changed in benchmark.compared)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_planted_slowdown_makes_a_ratio_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower library is a copy of this one that does more for every frame."""
    package = Path(holdfast.__file__).parent
    skipped = shutil.ignore_patterns("__pycache__")
    copies = {name: tmp_path / name / "holdfast" for name in ("fast", "slow")}
    for copy in copies.values():
        shutil.copytree(package, copy, ignore=skipped)
    framing = copies["slow"] / "quiver" / "base" / "frame.py"
    text = framing.read_text()
    spot = "    body_bytes = len(body)  # type: ignore[arg-type]\n"
    assert text.count(spot) == 1
    # About a millisecond of CPU for every frame.
    framing.write_text(text.replace(spot, spot + "    sum(range(40_000))\n"))
    # The benchmark stays that of this checkout; only the library is another.
    monkeypatch.setattr(against, "_AFTER_SOURCE", copies["slow"].parent)
    only = load("quiver")._replace(
        sections=(measure_small,),
        quick=replace(QUIVER_QUICK, small_each=10),
    )
    before = copies["fast"].parent
    found = measure_both(only, before, tmp_path, quick=True, progress=print)
    missed: Any = report(found, 0.95)["missed"]
    assert "cpu_us_per_small_append" in missed
    control: Any = report({**found, "after": found["control"]}, 0.5)["missed"]
    assert "cpu_us_per_small_append" not in control


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_commit_is_checked_out_and_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(against, "QUICK_ROUNDS", 1)
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        pytest.skip("not a git checkout")
    options: Any = {"quick": True, "at_least": 0.01, "progress": print, "directory": tmp_path}
    found: Any = compare("quiver", "HEAD", only=["small"], **options)
    assert found["ratios"]["small_append_per_s"]["ratio"]["median"] > 0
    assert found["missed"] == []
    assert list(tmp_path.iterdir()) == []
    known = subprocess.run(["git", "worktree", "list"], cwd=root, capture_output=True, check=True)
    assert str(tmp_path).encode() not in known.stdout
