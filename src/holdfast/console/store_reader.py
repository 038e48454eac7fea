"""Looks into a store, in a process of its own: asked on standard input, answers on standard output.

A store may be far away, or have millions of files, and its extra may be missing. Here none of that
touches the gateway: whoever started this process ends it when it takes too long (store_parts.py).

Nothing is changed. The database is opened read-only, so a commit cannot be pinned: one that is
deleted and collected during the look gives an error, as if it had been deleted before.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from holdfast.errors import BadInput, HoldfastError
from holdfast.extras import need

if TYPE_CHECKING:
    from holdfast.store.filesets import Commit, Difference, FileInfo, FileSet
    from holdfast.store.store import Store

# What one answer holds at most.
COMMITS_MAX = 200
ENTRIES_MAX = 200
DIFFERENCES_MAX = 500

Question = Mapping[str, str]


def answer(question: Question) -> dict[str, Any]:
    """Open the store that a question names, and answer it."""
    need("store")
    from holdfast.store.chunks.settings import StoreSettings
    from holdfast.store.gc.settings import GcSettings
    from holdfast.store.store import Store

    settings = StoreSettings(gc=GcSettings(read_only=True))
    database = question["database"] or None
    with Store.open(question["url"], database=database, settings=settings) as store:
        return ANSWERS[question["what"]](store, question)


def _commits(store: Store, question: Question) -> dict[str, Any]:
    """The newest commits, and what `holdfast gc status` says."""
    from holdfast.store.filesets import Commits

    found = sorted(Commits(store).list(), key=lambda one: (one.created_ns, one.id), reverse=True)
    return {
        "commits": [_commit_fields(one) for one in found[:COMMITS_MAX]],
        "more": len(found) > COMMITS_MAX,
        "collector": store.references.statistics().to_json(),
    }


def _files(store: Store, question: Question) -> dict[str, Any]:
    """A folder of a commit, from behind an entry of it on."""
    files, path = _opened(store, question["commit"]), question["path"]
    found: list[FileInfo] = []
    file = files.stat(path) if path else None
    if file is None or file.is_folder:
        path = file.path if file else ""
        found = list(islice(files.ls(path, after=question["after"]), ENTRIES_MAX + 1))
    else:
        found = [file]
    more = len(found) > ENTRIES_MAX
    entries = [_file_fields(one) for one in found[:ENTRIES_MAX]]
    return {"commit": question["commit"], "path": path, "entries": entries, "more": more}


def _diff(store: Store, question: Question) -> dict[str, Any]:
    """What differs between two commits."""
    old, new = question["old"], question["new"]
    differences = _opened(store, old).diff(_opened(store, new))
    found = list(islice(differences, DIFFERENCES_MAX + 1))
    shown = [_difference_fields(one) for one in found[:DIFFERENCES_MAX]]
    return {"old": old, "new": new, "differences": shown, "more": len(found) > DIFFERENCES_MAX}


ANSWERS: Mapping[str, Callable[[Store, Question], dict[str, Any]]] = {
    "commits": _commits,
    "files": _files,
    "diff": _diff,
}


def _opened(store: Store, name: str) -> FileSet:
    from holdfast.store.filesets import Commits, FileSet

    if not name:
        raise BadInput("no commit is named", hint="choose one of the list of commits")
    return FileSet(store, Commits(store).get(name).layers)


def _commit_fields(one: Commit) -> dict[str, Any]:
    return {
        "name": one.name,
        "id": f"{one.id:016x}",
        "created_ns": one.created_ns,
        "layers": len(one.layers),
        "entries": sum(layer.entries for layer in one.layers),
        "bytes": sum(layer.size_bytes for layer in one.layers),
        "parent": one.parent.name if one.parent else None,
        "message": one.message,
        "sinks": sorted(one.batch_records),
    }


def _file_fields(one: FileInfo) -> dict[str, Any]:
    return {
        "path": one.path,
        "kind": "folder" if one.is_folder else "link" if one.is_link else "file",
        "size_bytes": one.size_bytes,
        "mode": f"{one.mode:04o}",
        "modified_ns": one.mtime_ns,
        "link_target": one.link_target,
    }


def _difference_fields(one: Difference) -> dict[str, Any]:
    return {
        "path": one.path,
        "kind": one.kind,
        "old_bytes": one.old.size_bytes if one.old else None,
        "new_bytes": one.new.size_bytes if one.new else None,
    }


def main() -> int:
    """Answer one question; an error is JSON on standard error, as commands report theirs."""
    try:
        json.dump(answer(json.load(sys.stdin)), sys.stdout)
    except HoldfastError as error:
        json.dump({"message": error.message, "hint": error.hint}, sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
