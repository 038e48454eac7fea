"""What a destination loses is told in the log: that it does, how much, and where to look."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from holdfast.deliver.statistics import Losses

WHERE = PurePath("data/quiver/core-00")


def test_losses_are_told_when_they_happen_and_together_after_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    losses = Losses()
    for now_s, dropped, expired in [(0, 7, 0), (5, 7, 0), (10, 9, 1), (15, 20, 1), (80, 30, 1)]:
        lost = {"dropped": dropped, "expired": expired, "damaged": 0}
        losses.look("marquez 0", "marquez", lost, WHERE, now_s)
    losses.look("marquez 0", "marquez", {"dropped": 30, "expired": 1}, WHERE, 500)
    see = "see `holdfast quiver ledger data/quiver/core-00 --subscriber marquez`"
    assert caplog.messages == [
        f"marquez: lost 3 events: 2 dropped, 1 expired; {see}",
        f"marquez: lost 21 events: 21 dropped; {see}",
    ]


def test_each_destination_is_told_of_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    losses = Losses()
    for dropped in (0, 1):
        for name in ("a", "b"):
            losses.look(name, name, {"dropped": dropped}, WHERE, 0)
    assert [line.partition(":")[0] for line in caplog.messages] == ["a", "b"]
