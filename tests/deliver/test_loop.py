"""The loop: everything accepted goes out, or has another outcome in the ledger."""

from __future__ import annotations

from tests.deliver.stage import Stage

from holdfast.quiver import Outcome


def test_events_go_out_in_order_and_are_acknowledged(stage: Stage) -> None:
    stage.append_each(b"a", b"b", b"c")
    stage.append(b"d", b"e")
    stage.deliver_all()
    assert stage.backend.taken == [b"a", b"b", b"c", b"d", b"e"]
    assert stage.outcomes() == {Outcome.ACKED: (4, 5)}
