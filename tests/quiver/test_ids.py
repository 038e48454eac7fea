"""The filter on ids: never says no to one that is there, and is only ever a reason not to read."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.quiver.machine import ROOT, Machine, contents, payloads, quiet, segment

from holdfast.errors import HoldfastError
from holdfast.quiver import QuiverConfig
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.segments import ids, manifest
from holdfast.quiver.tools.explain import search
from holdfast.quiver.tools.fsck import fsck
from holdfast.quiver.tools.inspect import Severity, inspect
from holdfast.quiver.tools.scrub import scrub, total_bytes
from holdfast.seam import Seam
from holdfast.seam.faulty import Fault, FaultKind
from holdfast.seam.simulated import SimulatedCrash

NAMES = [f"{number:032x}" for number in range(1, 6)]


def column(values: list[bytes]) -> pa.Array:
    return pa.array(values, pa.binary(ids.ID_BYTES))


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=50))
def test_what_is_in_it_is_found(values: list[bytes]) -> None:
    bits = ids.build(column(values)).to_pybytes()
    assert all(ids.may_hold(bits, value) for value in values)
    assert len(bits) == -(-len(set(values)) * ids.BITS_PER_ID // 8)
    if not values:
        assert not ids.may_hold(bits, bytes(16))


@pytest.mark.parametrize("kind", ["random", "numbers", "padded"])
def test_few_others_are(kind: str) -> None:
    chance = random.Random(5)
    made: Callable[[int], bytes] = {
        "random": lambda _: chance.randbytes(16),
        "numbers": lambda number: number.to_bytes(16, "big"),
        "padded": lambda _: bytes(8) + chance.randbytes(8),
    }[kind]
    values = [made(number) for number in range(20_000)]
    bits = ids.build(column(values[:10_000])).to_pybytes()
    wrong = sum(ids.may_hold(bits, value) for value in values[10_000:])
    assert wrong < 300  # one in a hundred is to be expected


class Texts:
    """Payloads are ids in hexadecimal digits; one that is `broken` nobody can read."""

    def extract(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        texts = [payload.as_py().decode() for payload in rows.column("payload")]
        if "broken" in texts:
            raise ValueError("cannot be read")
        found = [[bytes.fromhex(text)] if len(text) == 32 else [] for text in texts]
        lists = pa.array(found, pa.list_(pa.binary(16)))
        return pa.record_batch(
            {"event_time": pa.nulls(len(texts), pa.int64()), "search_ids": lists}
        )


def config() -> QuiverConfig:
    return replace(quiet(), extractors={"events": Texts()})


def seal(machine: Machine, *texts: str, faults: list[Fault] | None = None) -> None:
    quiver = machine.start(config(), faults=faults or [])
    for text in texts:
        quiver.append_raw(text.encode())
    quiver.flush()
    machine.stop()


def found(machine: Machine, text: str, **options: Any) -> list[int]:
    return [match.seq for match in search(inspect(machine.disk, ROOT), text, **options)]


def test_a_search_reads_only_what_may_hold_the_id(machine: Machine) -> None:
    for name in NAMES:
        seal(machine, name)
    seal(machine, "about " + NAMES[0])
    reads: list[str] = []

    class Watched(type(machine.disk)):  # type: ignore[misc]
        def read_range(self, path: Any, offset: int, length: int) -> Any:
            if path.name == "000-events.arrow":
                reads.append(path.parent.name)
            return super().read_range(path, offset, length)

    machine.disk.__class__ = Watched
    assert found(machine, NAMES[2], anywhere=False) == [2]
    assert len(set(reads)) == 1
    # The last segment has no items with ids: its filter is empty, and not even written.
    assert len([path for path in contents(machine.disk) if path.suffix == ".ids"]) == len(NAMES)
    assert found(machine, NAMES[0], anywhere=False) == [0]
    assert found(machine, NAMES[0]) == [0, 5]
    assert found(machine, "f" * 32, anywhere=False) == []


@pytest.mark.parametrize("how", ["damaged", "missing", "cut"])
def test_without_a_sound_filter_the_rows_are_read(machine: Machine, how: str) -> None:
    seal(machine, NAMES[0])
    seal(machine, NAMES[1])
    path = segment(machine) / "000-events.ids"
    if how == "damaged":
        machine.scribble(path, 0, 2)
    elif how == "cut":
        machine.cut(path, 1)
    else:
        machine.disk.unlink(path, "test")
    assert found(machine, NAMES[0], anywhere=False) == [0]
    report = scrub(machine.disk, ROOT, lambda _: None)
    told = [(one.severity, one.where.rpartition("/")[2]) for one in report.findings]
    assert told == ([] if how == "missing" else [(Severity.WARNING, "000-events.ids")])
    assert fsck(Seam(machine.disk, machine.clock), ROOT).findings == []


def test_a_bundle_whose_ids_are_not_known_is_not_hidden(machine: Machine) -> None:
    seal(machine, NAMES[0], "broken", NAMES[1])
    (file,) = inspect(machine.disk, ROOT).segments[0].summary.files
    assert file.ids_checksum == ""
    assert found(machine, NAMES[1], anywhere=False) == [2]


def test_its_bytes_count(machine: Machine) -> None:
    seal(machine, *NAMES)
    summary = inspect(machine.disk, ROOT).segments[0].summary
    files = contents(machine.disk, segment(machine))
    sizes = {path.name: len(content) for path, content in files.items()}
    assert summary.size_bytes == sum(sizes.values()) - sizes["manifest"]
    read: list[int] = []
    report = scrub(machine.disk, ROOT, read.append)
    assert (report.findings, sum(read)) == ([], total_bytes(machine.disk, ROOT))
    # What a program says that knows no filters is the same, byte for byte.
    unfiltered = tuple(one._replace(ids_checksum="") for one in summary.files)
    plain = summary._replace(files=unfiltered)
    assert b"ids_checksum" in manifest.encode(summary)
    assert b"ids_checksum" not in manifest.encode(plain)


@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.ENOSPC])
@pytest.mark.parametrize("point", ["create", "write", "sync"])
def test_a_filter_that_cannot_be_written_is_written_later(
    machine: Machine, kind: FaultKind, point: str
) -> None:
    at = QuiverPoint(f"seal.data.{point}")
    # The data file comes first: it is the second call that is about the filter.
    seal(machine, *NAMES, faults=[Fault(at, kind, nth=2)])
    assert found(machine, NAMES[3], anywhere=False) == [3]
    assert [path.name for path in contents(machine.disk) if path.suffix == ".ids"] == [
        "000-events.ids"
    ]


@pytest.mark.parametrize("kind", [FaultKind.KILL_BEFORE, FaultKind.KILL_AFTER])
@pytest.mark.parametrize("point", ["create", "write", "sync"])
def test_a_crash_while_it_is_written_costs_nothing(
    machine: Machine, kind: FaultKind, point: str
) -> None:
    fault = Fault(QuiverPoint(f"seal.data.{point}"), kind, nth=2)
    quiver = machine.start(config(), faults=[fault])
    for name in NAMES:
        quiver.append_raw(name.encode())
    with contextlib.suppress(SimulatedCrash, HoldfastError):
        quiver.flush()
    machine.cut_power()
    seal(machine)
    assert found(machine, NAMES[3], anywhere=False) == [3]
    stored = payloads(machine.start(config()))
    assert stored == {seq: [name.encode()] for seq, name in enumerate(NAMES)}
