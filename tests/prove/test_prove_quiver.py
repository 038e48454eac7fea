"""The proof itself, with a few kills: the full number is for `holdfast prove`."""

from __future__ import annotations

from pathlib import Path

from holdfast import prove
from holdfast.prove.victim import QUIVER_SITES
from holdfast.quiver.base.points import QuiverPoint


def test_nothing_answered_is_lost_over_kills_at_random_and_at_points(tmp_path: Path) -> None:
    told: list[str] = []
    findings = prove.run("quiver", kills=4, seed=20, directory=tmp_path, progress=told.append)
    assert findings["ok"], findings
    assert findings["lost"] == 0
    assert findings["accepted"] > 0
    assert findings["kills"] == 4
    assert findings["kills_at_points"] == 2
    assert sum(findings["kill_sites"].values()) == 4
    assert len([line for line in told if line.startswith("kill ")]) == 4


def test_every_fault_point_is_listed_with_a_description() -> None:
    assert [name for name, _ in prove.points("quiver")] == [str(point) for point in QuiverPoint]
    assert all(point.description for point in QuiverPoint)
    assert set(QUIVER_SITES) <= set(QuiverPoint)
