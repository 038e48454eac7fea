"""docs/format/chunk.md says what the code does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.store.chunks.stage import noise

from holdfast.store.chunks.codec import encode
from holdfast.store.chunks.settings import CHUNK_BYTES_MAX, Chunking, StoreSettings
from holdfast.store.objects.local import SYNC_THREADS
from holdfast.store.objects.objects import ChunkKey, hash_of
from holdfast.store.store import FORMAT_VERSION

PAGE = (Path(__file__).parents[3] / "docs" / "format" / "chunk.md").read_text()


def test_the_names_are_as_told() -> None:
    short = ChunkKey(hash_of(b""), 255).object_key()
    assert f"{short[:18]}…{short[-22:]}" in PAGE


def test_the_description_of_a_new_store_is_as_told() -> None:
    found = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    told = json.loads(found[1])
    assert told["format_version"] == FORMAT_VERSION
    assert told["chunking"] == asdict(Chunking())


@pytest.mark.parametrize("data", [b"", b"words, " * 100, noise(500)])
def test_a_chunk_is_read_as_told(data: bytes) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    names: dict[str, Callable[[bytes, bytes], bytes]] = {}
    exec(found[1], names)
    assert names["plain"](b"".join(encode(memoryview(data), 3)), hash_of(data)) == data


def test_the_bounds_are_as_told() -> None:
    settings = StoreSettings()
    assert f"at most {CHUNK_BYTES_MAX:,}" in PAGE
    assert f"of up to {settings.batch_bytes // 2**20} MiB or {settings.batch_chunks} chunks" in PAGE
    assert settings.zstd_level == 2
    assert SYNC_THREADS == 8
