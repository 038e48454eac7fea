"""Operations on files as data: drawn at random, replayed on a dictionary, written as layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from hypothesis import strategies as st

from holdfast.store.filesets import FileSet, FileSetWriter, Layer
from holdfast.store.gc.leases import Job
from holdfast.store.store import Store

PATHS = ("a", "a-b", "a/x", "a/y", "b", "b/c/d", "b/c/e", "b/z", "ü/1")
FOLDERS = ("a/", "b/", "b/c/", "")
TAGS = (b"1", b"2")

# path → tag → pieces
State = dict[str, dict[bytes, tuple[bytes, ...]]]

# The memory store needs no job.
NO_JOB = cast("Job", None)


class Operation(NamedTuple):
    """One call of a writer."""

    kind: str
    path: str
    tag: bytes = b""
    data: bytes = b""


def operations(max_size: int = 5) -> st.SearchStrategy[list[Operation]]:
    """Draw a list of operations."""
    content = st.sampled_from([b"", b"x", b"yy", b"z" * 600])
    with_data = st.builds(
        Operation,
        st.sampled_from(["append", "put", "replace_tag"]),
        st.sampled_from(PATHS),
        st.sampled_from(TAGS),
        content,
    )
    without = st.one_of(
        st.builds(Operation, st.just("delete_tag"), st.sampled_from(PATHS), st.sampled_from(TAGS)),
        st.builds(Operation, st.just("delete"), st.sampled_from(PATHS)),
        st.builds(Operation, st.just("delete_prefix"), st.sampled_from(FOLDERS)),
    )
    return st.lists(st.one_of(with_data, without), max_size=max_size)


def replay(given: Sequence[Operation], state: State | None = None) -> State:
    """Do the operations one after another on a dictionary."""
    files = dict(state or {})
    for kind, path, tag, data in given:
        if kind == "delete_prefix":
            files = {name: file for name, file in files.items() if not name.startswith(path)}
            continue
        file = dict(files.get(path, {}))
        if kind == "append":
            file[tag] = (*file.get(tag, ()), data)
        elif kind == "put":
            file = {tag: (data,)}
        elif kind == "replace_tag":
            file[tag] = (data,)
        elif kind == "delete_tag":
            file.pop(tag, None)
        else:
            file = {}
        files.pop(path, None)
        if file:
            files[path] = file
    return files


def content(state: State) -> dict[str, bytes]:
    """Return each file's bytes."""
    return {
        path: b"".join(piece for tag in sorted(file) for piece in file[tag])
        for path, file in sorted(state.items())
    }


def collides(state: State) -> bool:
    """Whether a path is a file and a folder."""
    return any(other.startswith(path + "/") for path in state for other in state)


def write(writer: FileSetWriter, given: Sequence[Operation]) -> None:
    """Do the operations with a writer."""
    for kind, path, tag, data in given:
        call: Any = getattr(writer, kind)
        if kind in ("append", "put", "replace_tag"):
            call(path, data, tag=tag)
        elif kind == "delete_tag":
            call(path, tag=tag)
        else:
            call(path)


def layer_of(store: Store, given: Sequence[Operation], job: Job = NO_JOB, **options: Any) -> Layer:
    """Return the layer that some operations make."""
    with FileSetWriter(store, job, **options) as writer:
        write(writer, given)
        return writer.close()


def put_all(
    store: Store, files: dict[str, bytes], job: Job = NO_JOB, *, base: bool = True, **options: Any
) -> Layer:
    """Return a layer of these files, and of nothing else if it is a base."""
    with FileSetWriter(store, job, **options) as writer:
        if base:
            writer.delete_prefix("")
        for path, data in files.items():
            writer.put(path, data)
        return writer.close()


def read_all(files: FileSet) -> dict[str, bytes]:
    """Return every file's bytes, in the order of the listing."""
    return {file.path: b"".join(files.content(file)) for file in files.files()}
