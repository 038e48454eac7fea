"""Reading: listing, patterns, ranges, seeking, shards, differences, over one layer and several."""

from __future__ import annotations

import io
import itertools
import pickle
import random
from functools import cache

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from tests.store.filesets.memory import memory_store
from tests.store.filesets.operations import NO_JOB, Operation, layer_of, put_all, read_all
from tests.support.examples import examples

from holdfast.errors import BadInput, UnknownPath
from holdfast.store.filesets import FileSet, FileSetWriter, Layer, Metadata
from holdfast.store.filesets.paths import compile_glob, literal_prefix

TREE = {
    "a": b"1",
    "b/x": b"22",
    "b/y/deep": b"333",
    "b-c": b"4",
    "c/1.txt": b"5",
    "c/2.md": b"",
    "ü/*": b"6",
}


def layered(count: int) -> FileSet:
    """Return the tree, spread over several layers."""
    store, _ = memory_store()
    parts: list[dict[str, bytes]] = [{} for _ in range(count)]
    for number, (path, data) in enumerate(TREE.items()):
        parts[number % count][path] = data
    layers = [put_all(store, part, base=number == 0) for number, part in enumerate(parts)]
    return FileSet(store, layers)


@pytest.fixture(params=[1, 3])
def tree(request: pytest.FixtureRequest) -> FileSet:
    return layered(request.param)


def paths(found: object) -> list[str]:
    return [file.path for file in found]  # type: ignore[attr-defined]


def test_files_are_listed_in_order_of_their_bytes(tree: FileSet) -> None:
    assert paths(tree.files()) == sorted(TREE)
    assert sorted(TREE) == sorted(TREE, key=str.encode)


def test_a_folder_is_listed_without_what_is_below(tree: FileSet) -> None:
    assert paths(tree.ls()) == ["a", "b-c", "b/", "c/", "ü/"]
    assert paths(tree.ls("b")) == ["b/x", "b/y/"]
    assert paths(tree.ls("b/y/")) == ["b/y/deep"]
    assert paths(tree.ls(after="a")) == ["b-c", "b/", "c/", "ü/"]
    assert paths(tree.ls(after="b/")) == ["c/", "ü/"]
    assert paths(tree.ls("b", after="b/x")) == ["b/y/"]
    assert paths(tree.ls("b", after="b/y/")) == []
    with pytest.raises(BadInput, match="does not stand in 'b/'"):
        list(tree.ls("b", after="c/"))
    assert paths(tree.ls("nothing")) == []


def test_a_walk_meets_every_folder_once_before_its_files(tree: FileSet) -> None:
    expected = ["a", "b-c", "b/", "b/x", "b/y/", "b/y/deep", "c/", "c/1.txt", "c/2.md", "ü/", "ü/*"]
    assert paths(tree.walk()) == expected
    assert paths(tree.walk("b")) == ["b/x", "b/y/", "b/y/deep"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", ["a", "b-c"]),
        ("**", sorted(TREE)),
        ("b/*", ["b/x"]),
        ("b/**", ["b/x", "b/y/deep"]),
        ("**/deep", ["b/y/deep"]),
        ("**/a", ["a"]),
        ("c/?.{txt,md}", ["c/1.txt", "c/2.md"]),
        ("c/[!1].*", ["c/2.md"]),
        ("c/[0-1]*", ["c/1.txt"]),
        ("ü/[*]", ["ü/*"]),
        ("nothing*", []),
        ("a", ["a"]),
        ("{a,b{-c,/x}}", ["a", "b-c", "b/x"]),
    ],
)
def test_globs(tree: FileSet, pattern: str, expected: list[str]) -> None:
    assert paths(tree.glob(pattern)) == expected


@pytest.mark.parametrize("pattern", ["[a", "{a,b", "a}", "[z-a]", "{" * 9 + "}" * 9])
def test_a_pattern_that_cannot_be_read_is_refused(pattern: str) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        compile_glob(pattern)


@example("[?--]")
@example("[---]")
@given(st.text("ab/*?[]{},-!", max_size=12))
def test_any_pattern_is_read_or_refused(pattern: str) -> None:
    try:
        compiled = compile_glob(pattern)
    except BadInput:
        return
    if literal_prefix(pattern) == pattern:
        assert compiled.fullmatch(pattern)


def test_stat_tells_files_from_folders(tree: FileSet) -> None:
    assert tree.stat("b/x").size_bytes == 2
    assert tree.stat("b").is_folder
    assert tree.stat("b/").path == "b/"
    with pytest.raises(UnknownPath, match="'d'"):
        tree.stat("d")
    assert not tree.exists("b/z")


def test_only_files_can_be_read(tree: FileSet) -> None:
    with pytest.raises(BadInput, match="a folder"):
        tree.read("b")
    with pytest.raises(UnknownPath):
        tree.open("nothing")


def test_metadata_and_links_are_kept() -> None:
    store, _ = memory_store()
    known = Metadata(mode=0o700, mtime_ns=-5, uid=1, gid=2, user="me", group="us")
    with FileSetWriter(store, NO_JOB) as writer:
        writer.put("f", b"x", metadata=known)
        writer.link("d/l", "../f")
        writer.make_folder("empty", metadata=Metadata(mode=0o711))
        files = FileSet(store, [writer.close()])
    assert files.stat("f").metadata == known
    assert files.stat("d/l").link_target == "../f"
    assert files.stat("empty").mode == 0o711
    assert paths(files.ls()) == ["d/", "empty/", "f"]
    with pytest.raises(BadInput, match="a link to"):
        files.read("d/l")


@settings(max_examples=examples(60))
@given(st.integers(0, 40_000), st.integers(0, 40_000))
def test_byte_ranges_of_a_file_of_many_chunks(offset: int, size: int) -> None:
    store, _ = memory_store()
    data = random.Random(3).randbytes(33_333)
    files = FileSet(store, [put_all(store, {"f": data})])
    assert files.read("f", offset, size) == data[offset : offset + size]


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-9000, 9000), st.integers(0, 9000))))
def test_an_open_file_is_read_like_any_other(steps: list[tuple[int, int, int]]) -> None:
    store, _ = memory_store()
    data = random.Random(4).randbytes(20_000)
    files = FileSet(store, [put_all(store, {"f": data})])
    with files.open("f") as opened, io.BytesIO(data) as oracle:
        for whence, offset, size in steps:
            base = {0: 0, 1: oracle.tell(), 2: len(data)}[whence]
            if base + offset >= 0:
                assert opened.seek(offset, whence) == oracle.seek(offset, whence)
            assert opened.read(size) == oracle.read(size)
        assert opened.read() == oracle.read()
    with files.open("f") as opened, pytest.raises(BadInput, match="before its beginning"):
        opened.raw.seek(-1, 0)


def many(count: int) -> dict[str, bytes]:
    return {f"d{n % 17:02}/f{n:05}": b"%d" % n * (n % 40) for n in range(count)}


@cache
def spread(layers: int) -> FileSet:
    """Return many files, spread over several layers that overlap everywhere."""
    store, _ = memory_store()
    files = list(many(300).items())
    return FileSet(
        store,
        [put_all(store, dict(files[n::layers]), base=n == 0) for n in range(layers)],
    )


@settings(max_examples=examples(25), deadline=None, phases=[Phase.generate])
@given(st.integers(1, 400), st.integers(1, 20_000), st.integers(1, 4))
def test_shards_are_neighbours_and_hold_everything(files: int, size: int, layers: int) -> None:
    whole = spread(layers)
    shards = whole.shards(max_files=files, max_bytes=size)
    assert shards[0].lo == ""
    assert shards[-1].hi is None
    assert all(left.hi == right.lo for left, right in itertools.pairwise(shards))
    held = [list(whole.files(shard.lo, shard.hi)) for shard in shards]
    assert [file.path for shard in held for file in shard] == sorted(many(300))
    for shard in held:
        # A range of each layer, of at most a quarter of a shard, may reach into the next one.
        assert len(shard) <= files + layers * files / 4
        assert sum(file.size_bytes for file in shard) <= size + layers * size / 4 or len(shard) == 1


def test_shards_of_nothing() -> None:
    store, _ = memory_store()
    assert FileSet(store, []).shards() == [("", None, 0, 0)]
    with pytest.raises(BadInput):
        FileSet(store, []).shards(max_files=0)


def test_differences_have_kinds() -> None:
    store, _ = memory_store()
    old = put_all(store, {"same": b"s", "gone": b"g", "other": b"1", "dressed": b"d"})
    with FileSetWriter(store, NO_JOB) as writer:
        writer.delete("gone")
        writer.put("other", b"2")
        writer.put("new", b"n")
        writer.put("dressed", b"d", metadata=Metadata(mode=0o600))
        writer.put("same", b"s")
        newer = writer.close()
    found = list(FileSet(store, [old]).diff(FileSet(store, [old, newer])))
    assert [(one.path, one.kind) for one in found] == [
        ("dressed", "metadata"),
        ("gone", "removed"),
        ("new", "added"),
        ("other", "content"),
    ]
    assert found[1].old is not None
    assert found[1].new is None
    back = FileSet(store, [old, newer]).diff(FileSet(store, [old]), "n", "o")
    assert [(one.path, one.kind) for one in back] == [("new", "removed")]


@pytest.mark.parametrize("shared", [False, True])
def test_a_diff_passes_over_equal_subtrees(shared: bool) -> None:
    store, chunks = memory_store()
    files = dict.fromkeys(many(4000), b"")
    base = put_all(store, files)
    changes = {"d05/f00005": b"changed", "d11/new": b"new"}
    if shared:
        newer = [base, put_all(store, changes, base=False)]
    else:
        newer = [put_all(store, {**files, **changes})]
    old, new = FileSet(store, [base]), FileSet(store, newer)
    chunks.reads.clear()
    assert [one.path for one in old.diff(new)] == sorted(changes)
    assert len(chunks.reads) < 40
    assert len(chunks.reads) * 10 < len(chunks.data)


def opened_by_a_diff(count: int) -> int:
    """Return how many index chunks are read to find 20 changes among so many files."""
    store, chunks = memory_store()
    files = dict.fromkeys((f"d{n % 17:02}/f{n:05}" for n in range(count)), b"")
    changed = dict.fromkeys(sorted(files)[:: count // 20], b"x" * 600)
    old, new = (FileSet(store, [put_all(store, one)]) for one in (files, {**files, **changed}))
    chunks.reads.clear()
    assert [one.path for one in old.diff(new)] == sorted(changed)
    return len(chunks.reads)


def test_the_work_of_a_diff_grows_with_the_difference() -> None:
    assert opened_by_a_diff(4000) < 2 * opened_by_a_diff(400)


@settings(max_examples=examples(15))
@given(st.dictionaries(st.sampled_from(sorted(many(100))), st.sampled_from([b"", b"x"])), st.data())
def test_a_diff_finds_exactly_what_differs(changes: dict[str, bytes], data: st.DataObject) -> None:
    store, _ = memory_store()
    files = many(100)
    removed = data.draw(st.sets(st.sampled_from(sorted(files)), max_size=10))
    after = {path: body for path, body in {**files, **changes}.items() if path not in removed}
    old = FileSet(store, [put_all(store, files)])
    operations = [Operation("put", path, b"", body) for path, body in changes.items()]
    operations += [Operation("delete", path) for path in removed]
    upper = layer_of(store, operations)
    expected = sorted(p for p in {*files, *after} if files.get(p) != after.get(p))
    for new in ([old.layers[0], upper], [put_all(store, after)]):
        assert [one.path for one in old.diff(FileSet(store, new))] == expected


def test_layers_can_be_sent_elsewhere() -> None:
    store, _ = memory_store()
    layer = put_all(store, {"a": b"1"}).at(7)
    assert pickle.loads(pickle.dumps(layer)) == layer
    assert Layer.from_bytes(layer.to_bytes()).seq == 7
    assert read_all(FileSet(store, [pickle.loads(pickle.dumps(layer))])) == {"a": b"1"}


def test_collisions_across_layers_are_found_in_any_shard() -> None:
    store, _ = memory_store()
    lower = put_all(store, {"a": b"file", "b/x": b"", "z": b""})
    upper = put_all(store, {"a/b/c": b"", "a-b": b""}, base=False)
    files = FileSet(store, [lower, upper])
    with pytest.raises(BadInput, match="'a' is a file and a folder"):
        files.check_collisions()
    with pytest.raises(BadInput, match="'a' is a file and a folder"):
        files.check_added(1)
    # A shard that begins below the file does not meet it by itself.
    with pytest.raises(BadInput, match="'a' is a file and a folder"):
        files.check_collisions("a/b/c")
    files.check_collisions("b")
    FileSet(store, [lower, put_all(store, {"c/d": b""}, base=False)]).check_added(1)
