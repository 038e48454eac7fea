"""The ledger: what an acknowledgement costs, and how fast a ledger with very many is opened again.

The only measurement that uses parts of a quiver which are not public: the others also run on older
versions (against.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path, PurePath

from holdfast.bench.figures import Figures, interleave
from holdfast.bench.quiver_delivery import filled_sealed
from holdfast.bench.scale import QuiverScale
from holdfast.bench.stopwatch import Stopwatch
from holdfast.quiver import LeaseOptions, LedgerConfig, Outcome, Position, Quiver, QuiverConfig
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.base.names import LEDGER_DIR
from holdfast.quiver.ledger.recovery import recover_ledger
from holdfast.quiver.ledger.subscriber import Resolution
from holdfast.seam.disk import RealDisk


def measure_ledger(
    folder: Path, scale: QuiverScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Add the figures of this module."""
    progress(f"acknowledgements: {scale.acks:,} alone, the deliveries being in hand")
    _add_acks(folder / "acks", scale, figures)
    progress(f"replay of a ledger after {scale.ledger_acks:,} acknowledgements")
    _add_replay(folder / "ledger", scale, figures)


def _add_acks(folder: Path, scale: QuiverScale, figures: Figures) -> None:
    """Measure acknowledgements alone: everything is in hand before the clock starts."""

    def contend() -> Stopwatch:
        filled_sealed(folder, None, scale.acks)
        options = LeaseOptions(max_in_flight=scale.acks, lease_s=600.0)
        with Quiver.open(folder) as quiver, quiver.lease("acks", leasing=options) as lease:
            deliveries = [lease.poll() for _ in range(scale.acks)]
            with Stopwatch() as watch:
                for delivery in deliveries:
                    assert delivery is not None
                    delivery.ack()
        shutil.rmtree(folder)
        return watch

    runs = interleave({"acks": contend}, scale.rounds)["acks"]
    figures.add("ledger_acks_per_s", (scale.acks / run.wall_s for run in runs))
    figures.add("ledger_cpu_us_per_ack", (run.cpu_s / scale.acks * 1e6 for run in runs))


def _add_replay(folder: Path, scale: QuiverScale, figures: Figures) -> None:
    """A ledger that took very many acknowledgements starts from its last checkpoint.

    Lines are written straight into the ledger: appending that many real bundles would take far
    longer, and recovery reads lines, whatever they are about. History is kept (`retain_bytes`), so
    that reopening must find the newest checkpoint among many files.
    """
    with Quiver.open(folder, QuiverConfig(ledger=LedgerConfig(retain_bytes=1 << 30))) as quiver:
        quiver.register("acks")
        ledger, quiver_id = quiver._engine.ledger, quiver.quiver_id
        generation = ledger.attach("acks")
        for seq in range(scale.ledger_acks):
            start, end = Position(seq), Position(seq + 1)
            line = Resolution(seq, "acks", generation, start, end, Outcome.ACKED, Totals(1, 1), "")
            ledger.resolve([line])
        ledger.sync_if_due()
        directory = PurePath(folder) / LEDGER_DIR

        def contend() -> float:
            with Stopwatch() as watch:
                recovered = recover_ledger(RealDisk(), directory, {quiver_id})
            assert recovered.state.subscribers["acks"].high_water_seq == scale.ledger_acks
            return watch.wall_s

        figures.add("checkpoint_replay_s", interleave({"r": contend}, scale.rounds)["r"])
        figures.note("checkpoint_replay_acks", scale.ledger_acks)
    shutil.rmtree(folder)
