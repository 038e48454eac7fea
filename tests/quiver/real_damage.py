"""A process that reads a quiver on the real disk while a file of it is cut, or no longer readable.

    python real_damage.py DIR make             a killed quiver: two segments and a tail
    python real_damage.py DIR READER COMMAND   read all; after the first bundle run the command

It prints the seqs that it got, whether a scan of all raised `Damaged`, and the balance.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

from holdfast.errors import Damaged
from holdfast.quiver import Quiver, QuiverConfig, SegmentConfig
from holdfast.quiver.base.config import MB

SEALED, EVENTS, EVENT_BYTES = 300, 320, 4000
CONFIG = QuiverConfig(
    segment=SegmentConfig(target_size_bytes=4 * MB, max_open_duration_s=3600.0), control=False
)


def make(quiver: Quiver) -> None:
    quiver.register("reader")
    quiver.register("nobody")  # so that all of it stays
    for seq in range(EVENTS):
        quiver.append_raw((b"%04d" % seq) * (EVENT_BYTES // 4))
        if seq in (SEALED // 2 - 1, SEALED - 1):
            quiver.flush()
    os._exit(0)


def read(quiver: Quiver, reader: str, strike: Callable[[], None]) -> Iterator[int]:
    if reader == "scan":
        for batch in quiver.scan(["_seq", "payload"], on_damage="skip"):
            yield from batch.column("_seq").to_pylist()
            strike()
    elif reader == "lease":
        with quiver.lease("reader") as lease:
            while (delivery := lease.poll()) is not None:
                assert delivery.bundle.payloads
                yield delivery.seq
                delivery.ack()
                strike()
    else:
        with quiver.cursor("reader", on_data_loss="count") as cursor:
            while (planned := cursor.plan(max_events=50)) is not None:
                for bundle in cursor.read(planned):
                    assert bundle.payloads
                    yield bundle.seq
                    strike()
                cursor.commit(planned)


def main(directory: str, reader: str, command: str = "") -> None:
    quiver = Quiver.open(directory, CONFIG)
    if reader == "make":
        make(quiver)
    assert quiver.scan(["payload"]).read_all().num_rows == EVENTS  # all of it is sound
    struck: list[str] = []

    def strike() -> None:
        if not struck:
            struck.append(command)
            subprocess.run(command, shell=True, check=True)

    found, typed = list(read(quiver, reader, strike)), False
    try:
        quiver.scan(["payload"]).read_all()
    except Damaged:
        typed = True
    balance = quiver.balance("reader")
    sys.stdout.write(json.dumps({"found": found, "typed": typed, "holds": balance.holds}))
    quiver.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
