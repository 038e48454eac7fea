"""What objects promise wherever they lie: a folder, a simulated disk, a bucket of a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.objects.places import opened

from holdfast.errors import ObjectMissing
from holdfast.store.objects.objects import ObjectExists, Objects


@pytest.fixture(params=["local", "simulated", "faulty", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path, s3_url: str) -> Iterator[Objects]:
    yield from opened(request.param, tmp_path, s3_url)


def keys(objects: Objects, prefix: str) -> list[str]:
    return sorted(stored.key for stored in objects.list(prefix))


def test_what_was_put_is_read_back(objects: Objects) -> None:
    objects.put("a/b/c", [b"one ", bytearray(b"two "), memoryview(b"three")])
    assert objects.get("a/b/c") == b"one two three"
    objects.put("empty", [])
    assert objects.get("empty") == b""


def test_ranges_are_cut_where_the_object_ends(objects: Objects) -> None:
    objects.put("key", [b"0123456789"])
    assert objects.get("key", 3, 4) == b"3456"
    assert objects.get("key", 8, 100) == b"89"
    assert objects.get("key", 4) == b"456789"
    assert objects.get("key", 10, 5) == b""
    assert objects.get("key", 50, 5) == b""
    assert objects.get("key", 2, 0) == b""


def test_a_name_is_given_once(objects: Objects) -> None:
    objects.put("key", [b"first"])
    with pytest.raises(ObjectExists):
        objects.put("key", [b"other"])
    assert objects.get("key") == b"first"


def test_putting_the_same_again_is_no_conflict(objects: Objects) -> None:
    objects.put("key", [b"first"])
    objects.put("key", [b"fi", b"rst"])
    assert keys(objects, "") == ["key"]


def test_many_are_put_and_those_that_exist_are_skipped(objects: Objects) -> None:
    objects.put("many/007", [b"already"])
    objects.put_many([(f"many/{n:03}", [b"new"]) for n in range(150)])
    assert keys(objects, "many/") == [f"many/{n:03}" for n in range(150)]
    assert objects.get("many/007") == b"already"
    assert objects.get("many/149") == b"new"


def test_one_of_many_writers_gets_the_name(objects: Objects) -> None:
    taken: list[int] = []

    def write(number: int) -> None:
        try:
            objects.put("key", [b"%d" % number])
            taken.append(number)
        except ObjectExists:
            pass

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [b"%d" % number for number in taken] == [objects.get("key")]


@pytest.mark.parametrize(("offset_bytes", "size_bytes"), [(0, None), (1, 2)])
def test_what_is_missing_is_said(
    objects: Objects, offset_bytes: int, size_bytes: int | None
) -> None:
    with pytest.raises(ObjectMissing, match="missing/key"):
        objects.get("missing/key", offset_bytes, size_bytes)


def test_deleting_is_repeatable(objects: Objects) -> None:
    objects.put_many([(f"d/{n}", [b"x"]) for n in range(5)])
    for _ in range(2):
        objects.delete_many(["d/1", "d/3", "never/was"])
    assert keys(objects, "d/") == ["d/0", "d/2", "d/4"]
    objects.delete_many([])
    objects.put("d/1", [b"again"])
    assert objects.get("d/1") == b"again"


def test_a_listing_has_names_sizes_and_times(objects: Objects) -> None:
    before_s = objects.now_s()
    objects.put_many([("l/a/1", [b"1"]), ("l/a/2", [b"22"]), ("l/ab", [b"333"]), ("m", [b""])])
    after_s = objects.now_s()
    assert {(o.key, o.size_bytes) for o in objects.list("l/")} == {
        ("l/a/1", 1), ("l/a/2", 2), ("l/ab", 3),
    }  # fmt: skip
    # A bucket dates by whole seconds, a kernel by its ticks.
    assert all(before_s - 1.5 <= o.modified_s <= after_s + 1.5 for o in objects.list("l/"))


def test_a_prefix_need_not_be_a_folder(objects: Objects) -> None:
    objects.put_many([(key, [b"x"]) for key in ("l/a/1", "l/ab", "l/b", "la/1")])
    assert keys(objects, "l/a") == ["l/a/1", "l/ab"]
    assert keys(objects, "l/a/") == ["l/a/1"]
    assert keys(objects, "l/a/1") == ["l/a/1"]
    assert keys(objects, "l") == ["l/a/1", "l/ab", "l/b", "la/1"]
    assert keys(objects, "nothing/here") == []


def test_now_goes_on(objects: Objects) -> None:
    first_s = objects.now_s()
    assert first_s > 1.7e9
    assert objects.now_s() >= first_s
