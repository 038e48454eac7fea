"""A process that archives into S3 (moto, on loopback) is killed by kill -9: nothing is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S, until

from holdfast.prove.store import BUCKET, running_s3
from holdfast.quiver import Archive, ArchiveConfig, Quiver, QuiverConfig, SegmentConfig
from holdfast.quiver.base.points import ArchivePoint

ARCHIVE = ArchiveConfig(f"s3://{BUCKET}/segments", allow_http=True, uploads=1, retry_min_s=0.01)
CONFIG = QuiverConfig(segment=SegmentConfig(archive=ARCHIVE))
# Larger than what is sent as a whole.
LARGE_BYTES = 9 << 20

VICTIM = """
import os, signal, sys
from tests.quiver.test_archive_for_real import CONFIG, LARGE_BYTES
from holdfast.quiver import Quiver
from holdfast.seam import Seam

reached = []
def die_at_the_second(point):
    reached.append(point)
    if reached.count(sys.argv[2]) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

quiver = Quiver.open(sys.argv[1], CONFIG, seam=Seam(reached=die_at_the_second))
lease = quiver.lease("reader")
while True:
    print(quiver.append_raw([b"x" * LARGE_BYTES]).seq, flush=True)
    quiver.flush()
    while (delivery := lease.poll()) is not None:
        delivery.ack()
"""


@pytest.mark.parametrize("point", [ArchivePoint.FILES_SENT, ArchivePoint.SENT])
def test_a_process_is_killed_while_it_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    folder = tmp_path / "quiver"
    with running_s3(tmp_path / "s3.log") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        dead = subprocess.run(
            [sys.executable, "-c", VICTIM, str(folder), point],
            stdout=subprocess.PIPE,
            timeout=PATIENCE_S,
            check=False,
        )
        assert dead.returncode == -signal.SIGKILL
        accepted = [int(line) for line in dead.stdout.split()]
        assert len(accepted) >= 2
        # What is there is whole.
        assert all(batch.num_rows for batch in Archive.open(ARCHIVE).scan())
        with Quiver.open(folder, CONFIG) as quiver:
            lease = quiver.lease("reader")
            accepted.append(quiver.append_raw([b"last"]).seq)
            quiver.flush()
            while (delivery := lease.poll()) is not None:
                delivery.ack()
            until(lambda: not quiver.segments(), "archived and removed", lambda: _told(quiver))
        found = Archive.open(ARCHIVE).scan(["_seq", "payload"]).read_all()
        assert found["_seq"].to_pylist() == sorted({*accepted, *found["_seq"].to_pylist()})
        assert set(found["payload"].to_pylist()) == {b"x" * LARGE_BYTES, b"last"}


def _told(quiver: Quiver) -> str:
    return str(quiver.statistics().archive)
