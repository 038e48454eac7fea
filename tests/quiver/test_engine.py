"""The engine over restarts: what one incarnation leaves must not confuse the next."""

from __future__ import annotations

from pathlib import PurePath

from holdfast.quiver import Quiver
from holdfast.seam import Seam
from holdfast.seam.simulated import SimulatedDisk

ROOT = PurePath("/data")


def test_a_segment_number_is_not_used_again_after_everything_was_delivered_and_deleted() -> None:
    disk = SimulatedDisk()
    with Quiver.open(ROOT, seam=Seam(disk=disk)) as quiver:
        quiver.register("slow")
        cursor = quiver.cursor("fast")
        quiver.append_raw(b"first")
        quiver.flush()
        for name in ("fast", "slow"):
            cursor = quiver.cursor(name)
            planned = cursor.plan()
            assert planned is not None
            cursor.commit(planned)
        quiver._engine.retention.tick()
        assert quiver.segments() == ()
    # The next life seals a segment that only one of the two has read, and ends.
    with Quiver.open(ROOT, seam=Seam(disk=disk)) as quiver:
        quiver.append_raw(b"second")
        quiver.flush()
    with Quiver.open(ROOT, seam=Seam(disk=disk)) as quiver:
        (delivery,) = [quiver.lease("slow").poll()]
        assert delivery is not None
        assert delivery.bundle.payloads == [b"second"]
        assert quiver.balance("slow").holds
