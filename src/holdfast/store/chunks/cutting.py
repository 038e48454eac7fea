"""Where streams are cut: at places that the bytes themselves choose (FastCDC, 2020).

The same bytes are cut at the same places wherever they stand, so that an insertion changes the
chunks around it and no others. Where exactly is part of the format: the golden vectors of the tests
hold the library to it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING

from pyfastcdc import FastCDC

from holdfast.store.settings import Chunking

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Bytes that are looked at together, in largest chunks: less, and the rest of one look is copied
# into the next more often; more, and memory holds more than it must.
WINDOW_CHUNKS = 4


def cut(stream: Iterable[Buffer], chunking: Chunking) -> Iterator[memoryview]:
    """Yield the chunks of a stream that comes in any pieces.

    A chunk is a view of a buffer that is not changed any more, but may be as large as a window.
    """
    window_bytes = WINDOW_CHUNKS * chunking.max_bytes
    cutter = FastCDC(
        chunking.average_bytes, min_size=chunking.min_bytes, max_size=chunking.max_bytes
    )
    pieces: list[memoryview] = []
    held_bytes = 0
    for buffer in stream:
        whole = unchanging(buffer)
        for start in range(0, whole.nbytes, window_bytes):
            pieces.append(whole[start : start + window_bytes])
            held_bytes += pieces[-1].nbytes
            if held_bytes >= window_bytes:
                rest = yield from _cut_window(cutter, _joined(pieces))
                pieces, held_bytes = [rest], rest.nbytes
    rest = yield from _cut_window(cutter, _joined(pieces))
    if rest.nbytes:
        yield rest


def unchanging(buffer: Buffer) -> memoryview:
    """Return the bytes of a buffer as they are now, copied if somebody may change them."""
    view = memoryview(buffer).cast("B")
    return view if view.readonly else memoryview(bytes(view))


def _cut_window(cutter: FastCDC, window: memoryview) -> Generator[memoryview, None, memoryview]:
    """Yield the chunks that end inside of a window; return the rest.

    A cut depends on the bytes before it alone. So the last chunk, which ends where the window does,
    is the only one that more bytes could change.
    """
    start = 0
    if window.nbytes:
        for chunk in cutter.cut_buf(window):
            if chunk.offset + chunk.length == window.nbytes:
                break
            start = chunk.offset + chunk.length
            yield window[chunk.offset : start]
    return window[start:]


def _joined(pieces: list[memoryview]) -> memoryview:
    return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
