"""Where streams are cut: at fixed places for fixed bytes, however they come, whatever surrounds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.chunks.stage import TINY, noise

from holdfast.store.chunks.settings import Chunking
from holdfast.store.chunks.writer import WINDOW_CHUNKS, cut
from holdfast.store.objects.objects import hash_of

LOG = b"".join(b"line %d of a log\n" % number for number in range(200_000))

# Part of the format. A version of a library that cuts elsewhere would store everything again.
GOLDEN: dict[str, tuple[bytes, Chunking, list[int]]] = {
    "noise": (
        noise(12 * 2**20),
        Chunking(),
        [1660009, 795372, 1161044, 1398683, 1395912, 1892488, 1387872, 1074712, 1082699, 583878,
         150243],
    ),
    "log": (LOG, Chunking(), [583266, 671127, 1937506, 896991]),
    "zeros": (bytes(10 * 2**20), Chunking(), [4194304, 4194304, 2097152]),
    "tiny": (
        noise(16_000),
        TINY,
        [1302, 1214, 1255, 1047, 1962, 1065, 2210, 1392, 1230, 1820, 1159, 344],
    ),
}  # fmt: skip


def sizes(*pieces: bytes, chunking: Chunking = TINY) -> list[int]:
    return [view.nbytes for view in cut(pieces, chunking)]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_vectors(name: str) -> None:
    data, chunking, expected = GOLDEN[name]
    assert sizes(data, chunking=chunking) == expected


def test_nothing_has_no_chunks() -> None:
    assert sizes() == sizes(b"") == sizes(b"", b"") == []


@given(st.data())
def test_cuts_do_not_depend_on_how_the_stream_comes(data: st.DataObject) -> None:
    stream = noise(data.draw(st.integers(0, 60_000)), seed=data.draw(st.binary(max_size=3)))
    borders = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in itertools.pairwise([0, *borders, len(stream)])]
    chunks = list(cut(pieces, TINY))
    assert b"".join(chunks) == stream
    assert [view.nbytes for view in chunks] == sizes(stream)
    assert all(TINY.min_bytes <= view.nbytes <= TINY.max_bytes for view in chunks[:-1])


@given(st.lists(st.binary(max_size=5000), max_size=8))
def test_any_bytes_come_back(pieces: list[bytes]) -> None:
    chunks = list(cut(pieces, TINY))
    assert b"".join(chunks) == b"".join(pieces)
    assert all(0 < view.nbytes <= TINY.max_bytes for view in chunks)


def test_an_insertion_changes_the_chunks_around_it_alone() -> None:
    before = noise(400_000)
    after = before[:200_000] + b"inserted" + before[200_000:]
    old, new = ({hash_of(view) for view in cut([data], TINY)} for data in (before, after))
    assert 1 <= len(new - old) <= 3


def test_a_buffer_that_changes_later_was_copied() -> None:
    buffer = bytearray(noise(10_000))
    kept = bytes(buffer)
    chunks = list(cut([buffer], TINY))
    buffer[:] = bytes(len(buffer))
    assert b"".join(chunks) == kept


def test_a_stream_is_not_read_further_than_a_window_ahead() -> None:
    taken_bytes = 0

    def stream() -> Iterator[bytes]:
        nonlocal taken_bytes
        for number in range(1000):
            taken_bytes += 500
            yield noise(500, seed=b"%d" % number)

    given_bytes = 0
    for view in cut(stream(), TINY):
        assert taken_bytes - given_bytes <= (WINDOW_CHUNKS + 1) * TINY.max_bytes
        given_bytes += view.nbytes
    assert given_bytes == taken_bytes == 500_000
