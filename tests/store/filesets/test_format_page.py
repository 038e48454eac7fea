"""The page about file sets says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.store.chunks.settings import INDEX_ROOM_BYTES
from holdfast.store.filesets import bloom, layer, layer_builder, paths

PAGE = (Path(__file__).parents[3] / "docs" / "format" / "fileset.md").read_text()


def test_the_constants_are_those_of_the_code() -> None:
    table = PAGE.partition("<!-- table: index constants -->")[2].partition("<!-- end -->")[0]
    written = {name: int(value) for name, value in re.findall(r"`(\w+)` \| (\d+)", table)}
    assert written == {
        "INDEX_MIN_BYTES": layer_builder.INDEX_MIN_BYTES,
        "INDEX_MAX_BYTES": layer_builder.INDEX_MAX_BYTES,
        "RANGES_MIN": layer_builder.RANGES_MIN,
        "INDEX_ROOM_BYTES": INDEX_ROOM_BYTES,
        "CUT_DIVISOR": layer_builder.CUT_DIVISOR,
        "BITS_PER_PATH": bloom.BITS_PER_PATH,
        "PROBES": bloom.PROBES,
        "INLINE_REFS_MAX": layer_builder.INLINE_REFS_MAX,
        "LISTED_REFS_MAX": layer_builder.LISTED_REFS_MAX,
    }
    assert f"at most {paths.PATH_BYTES_MAX} bytes" in PAGE
    assert f"{layer.TOMBSTONES_MAX:,} at most" in PAGE
