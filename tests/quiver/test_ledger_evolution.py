"""What a program does with a ledger that a newer one wrote (docs/format/README.md has the rule)."""

from __future__ import annotations

import json
import struct

import pytest
from tests.quiver.machine import ROOT, Machine, contents, quiet
from xxhash import xxh3_64_intdigest

from holdfast.errors import UnknownFormat
from holdfast.quiver.base import names
from holdfast.quiver.base.frame import NO_WATERMARK, NOTHING, encode
from holdfast.quiver.ledger.log import LineKind, decode_header
from holdfast.quiver.log.wal import BLOCK_BYTES
from holdfast.seam.simulated import SimulatedDisk

LEDGER = ROOT / names.LEDGER_DIR
COPY_BYTES = BLOCK_BYTES // 2


@pytest.fixture
def killed(machine: Machine) -> Machine:
    """A machine on which a process with one subscriber and one bundle was killed."""
    quiver = machine.start(quiet())
    quiver.register("archive")
    quiver.append_raw(b"event")
    machine.kill()
    return machine


def make_newer(disk: SimulatedDisk) -> None:
    """Write a header with a field more, as a later version may."""
    path = LEDGER / disk.list(LEDGER)[-1].name
    content = bytearray(disk.read(path))
    for start in (0, COPY_BYTES):
        content[start + 8 : start + 10] = struct.pack("<H", 2)
        content[start + 1000 : start + 1003] = b"new"
        end = start + COPY_BYTES - 8
        content[end : end + 8] = struct.pack("<Q", xxh3_64_intdigest(bytes(content[start:end])))
    disk.put(path, bytes(content))


def append_line(disk: SimulatedDisk, kind: int, body: bytes) -> None:
    path = LEDGER / disk.list(LEDGER)[-1].name
    content = disk.read(path)
    salt = decode_header(memoryview(content)).salt
    place, synced = len(content), len(content)
    header, padding = encode(salt, place, kind, 1, 0, synced, NO_WATERMARK, body, NOTHING)
    disk.put(path, content + header + body + padding)


def test_a_newer_ledger_is_refused_before_anything_is_touched(killed: Machine) -> None:
    make_newer(killed.disk)
    # Something that a start would otherwise move to quarantine.
    killed.disk.put(ROOT / names.WAL_DIR / "garbage", b"what is this")
    before = contents(killed.disk)
    with pytest.raises(UnknownFormat, match="ledger version 2"):
        killed.start(quiet())
    assert contents(killed.disk) == before


def test_a_line_of_an_unknown_kind_is_passed_over(killed: Machine) -> None:
    append_line(killed.disk, 99, b"?")
    quiver = killed.start(quiet())
    assert quiver.balance("archive").pending.bundles == 1


@pytest.mark.parametrize(
    "change",
    [
        {"verb": "applaud", "name": "archive", "loudness": 11},
        {"verb": "applaud", "name": "nobody"},
        {"verb": "options", "name": "archive", "options": {"on_full": "block", "colour": "red"}},
        {"verb": "pause", "name": "archive", "by": "somebody"},
    ],
)
def test_a_change_with_something_unknown_in_it_is_read_without_it(
    killed: Machine, change: dict[str, object]
) -> None:
    append_line(killed.disk, LineKind.CHANGE, json.dumps(change).encode())
    quiver = killed.start(quiet())
    assert quiver.subscribers() == ("archive",)
    assert quiver.balance("archive").holds
