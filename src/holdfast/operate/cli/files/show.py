"""`holdfast files ls | cat | tags | diff | log | index show`: look at commits and their files.

A commit is pinned while it is looked at (`opened_commit`): it may be deleted meanwhile, and what is
printed is still all of it. Lists are printed as they are found where that is possible, since a
commit may hold millions of files; a list with a limit looks one further, to say that there is more.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from holdfast.errors import BadInput
from holdfast.operate.cli.base.groups import CommandGroup
from holdfast.operate.cli.base.output import (
    json_option,
    moment,
    print_json,
    print_table,
    printable,
    short_hash,
    size,
)
from holdfast.operate.cli.base.target import Target, store_options
from holdfast.operate.cli.files.commits import STORED_PATH, opened_commit, shown_path, tag_option

if TYPE_CHECKING:
    from holdfast.store.filesets import Commit, Difference, FileInfo, FileSet
    from holdfast.store.filesets import fileset_pb2 as pb
    from holdfast.store.filesets.cursor import IndexChunk, LayerEntry


@click.command("ls")
@click.argument("commit", required=False)
@click.argument("path", default="", type=STORED_PATH)
@click.option("-r", "--recursive", is_flag=True, help="Everything below the path.")
@click.option("--glob", "pattern", metavar="PATTERN", help="Only paths that match: * ? [] and **.")
@store_options
@json_option
def list_command(
    commit: str | None,
    path: str,
    recursive: bool,
    pattern: str | None,
    chosen: Target,
    as_json: bool,
) -> None:
    """List a folder of a commit; without one, the commits themselves."""
    from holdfast.store.filesets import Commits

    with chosen.open_store() as store:
        if commit is None:
            _show_commits("commits", Commits(store).list(), as_json)
            return
        with opened_commit(store, commit) as files:
            found = _listed(files, path, recursive, pattern)
            if as_json:
                print_json([_file_fields(file) for file in found])
                return
            for file in found:
                _echo_file(file)


def _listed(files: FileSet, path: str, recursive: bool, pattern: str | None) -> Iterator[FileInfo]:
    if pattern is not None:
        return files.glob(pattern)
    if path:
        found = files.stat(path)
        if not found.is_folder:
            return iter([found])
        path = found.path
    return files.walk(path) if recursive else files.ls(path)


def _file_fields(file: FileInfo) -> dict[str, object]:
    return {
        "path": file.path,
        "kind": "folder" if file.is_folder else "link" if file.is_link else "file",
        "size_bytes": file.size_bytes,
        "mode": f"{file.mode:04o}",
        "modified_ns": file.mtime_ns,
        "link_target": file.link_target,
        "content_id": None if file.is_folder else file.content_id.hex(),
    }


def _echo_file(file: FileInfo) -> None:
    kind = "d" if file.is_folder else "l" if file.is_link else "-"
    when = moment(file.mtime_ns) if file.mtime_ns is not None else "-"
    arrow = f" -> {shown_path(file.link_target)}" if file.link_target is not None else ""
    click.echo(
        f"{kind}{file.mode:04o} {file.size_bytes:>14,} {when:>24} {shown_path(file.path)}{arrow}"
    )


@click.command("cat")
@click.argument("commit")
@click.argument("path", type=STORED_PATH)
@click.option("--offset", "offset_bytes", type=click.IntRange(min=0), default=0, metavar="BYTES")
@click.option("--size", "size_bytes", type=click.IntRange(min=0), metavar="BYTES")
@tag_option("Only what the file holds under this tag.")
@store_options
def cat_command(
    commit: str,
    path: str,
    offset_bytes: int,
    size_bytes: int | None,
    tag: bytes | None,
    chosen: Target,
) -> None:
    """Write a file, or a range of its bytes, to the standard output."""
    with chosen.open_store() as store, opened_commit(store, commit) as files:
        for block in files.stream(path, offset_bytes, size_bytes, tag=tag):
            sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()


@click.command("tags")
@click.argument("commit")
@click.argument("path", type=STORED_PATH)
@store_options
@json_option
def tags_command(commit: str, path: str, chosen: Target, as_json: bool) -> None:
    """List the tags of a file in the order of their content: text, #NUMBER, or 0xHEX."""
    from holdfast.store.filesets import shown_tag

    with chosen.open_store() as store, opened_commit(store, commit) as files:
        file = files.stat(path)
    if file.is_folder:
        raise BadInput(f"{path!r} is a folder, and has no tags", hint="Name a file.")
    tags = [(shown_tag(tag), size_bytes) for tag, size_bytes in file.tags]
    if as_json:
        print_json([{"tag": tag, "size_bytes": size_bytes} for tag, size_bytes in tags])
    else:
        print_table(shown_path(path), ("tag", "bytes"), tags)


_MARKS = {"added": "+", "removed": "-", "content": "M", "metadata": "m"}


@click.command("diff")
@click.argument("old")
@click.argument("new")
@click.option("--limit", type=click.IntRange(min=1), default=10_000, show_default=True)
@store_options
@json_option
def diff_command(old: str, new: str, limit: int, chosen: Target, as_json: bool) -> None:
    """List what differs between two commits: + added, - removed, M content, m metadata."""
    with (
        chosen.open_store() as store,
        opened_commit(store, old) as before,
        opened_commit(store, new) as after,
    ):
        differences = before.diff(after)
        found = list(itertools.islice(differences, limit))
        more = next(differences, None) is not None
    if as_json:
        print_json({"differences": [_difference_fields(one) for one in found], "more": more})
        return
    for one in found:
        click.echo(f"{_MARKS[one.kind]} {shown_path(one.path)}")
    if more:
        click.echo(f"and more than these {limit:,}; say --limit")


def _difference_fields(one: Difference) -> dict[str, object]:
    return {
        "path": one.path,
        "kind": one.kind,
        "old_bytes": one.old.size_bytes if one.old else None,
        "new_bytes": one.new.size_bytes if one.new else None,
    }


@click.command("log")
@click.argument("commit")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@store_options
@json_option
def log_command(commit: str, limit: int, chosen: Target, as_json: bool) -> None:
    """List a commit, its parent, and so on, as far as they still exist."""
    from holdfast.store.filesets import Commits

    with chosen.open_store() as store:
        _show_commits(commit, list(itertools.islice(Commits(store).log(commit), limit)), as_json)


def _show_commits(title: str, commits: list[Commit], as_json: bool) -> None:
    if as_json:
        print_json([commit_fields(commit) for commit in commits])
        return
    if not commits:
        click.echo("there are none")
        return
    # The same fields as in JSON, so that a table and a script cannot disagree.
    columns = ("name", "time", "layers", "entries", "bytes", "parent", "message")
    rows = [[commit_fields(commit)[column] for column in columns] for commit in commits]
    print_table(title, columns, rows)


def commit_fields(commit: Commit) -> dict[str, object]:
    """Return what a commit says of itself."""
    return {
        "name": commit.name,
        "id": f"{commit.id:016x}",
        "time": moment(commit.created_ns),
        "layers": len(commit.layers),
        "entries": sum(layer.entries for layer in commit.layers),
        "bytes": sum(layer.size_bytes for layer in commit.layers),
        "parent": commit.parent.name if commit.parent else None,
        "message": commit.message,
        "sinks": sorted(commit.batch_records),
    }


_CHUNK_COLUMNS = ("layer", "level", "kind", "entries", "files", "size", "chunk", "first", "last")
_ENTRY_COLUMNS = ("layer", "operation", "bytes", "refs", "tags")


@click.group("index", cls=CommandGroup)
def index_group() -> None:
    """Inspect the indexes of a commit."""


@index_group.command("show")
@click.argument("commit")
@click.argument("path", default="", type=STORED_PATH)
@click.option(
    "--level",
    "lowest_level",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Show no chunks below this level.",
)
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True)
@store_options
@json_option
def show_command(
    commit: str, path: str, lowest_level: int, limit: int, chosen: Target, as_json: bool
) -> None:
    """List the index chunks of each layer, from the root down, with the paths they span.

    A chunk holds entries of kind i (one path each, level 1) or r (one range each, above). With
    PATH, only chunks that may hold it or what is below it, and what each layer says of it.
    """
    from holdfast.store.filesets.cursor import entries_of, index_chunks

    with chosen.open_store() as store, opened_commit(store, commit) as files:
        chunks = index_chunks(files.nodes, files.layers, path, lowest_level=lowest_level)
        found = list(itertools.islice(chunks, limit))
        more = next(chunks, None) is not None
        entries = list(entries_of(files.nodes, files.layers, path)) if path else []
    if as_json:
        chunk_fields = [{**chunk._asdict(), "hash": chunk.hash.hex()} for chunk in found]
        entry_fields = [_entry_fields(entry) for entry in entries]
        print_json({"chunks": chunk_fields, "entries": entry_fields, "more": more})
        return
    if not found:
        click.echo("there are none")
        return
    print_table(f"index of {commit}", _CHUNK_COLUMNS, map(_chunk_row, found))
    if more:
        click.echo(f"and more than these {limit:,}; say --limit")
    if entries:
        title = f"what layers say of {shown_path(path)}"
        print_table(title, _ENTRY_COLUMNS, map(_entry_row, entries))
    faults = [(one.layer_seq, one.fault) for one in found]
    for layer_seq, fault in faults + [(one.layer_seq, one.fault) for one in entries]:
        if fault:
            click.echo(f"layer {layer_seq}: {printable(fault)}", err=True)


def _chunk_row(chunk: IndexChunk) -> list[object]:
    return [
        chunk.layer_seq,
        chunk.level,
        chunk.kind,
        chunk.entries,
        chunk.files,
        size(chunk.size_bytes),
        short_hash(chunk.hash),
        shown_path(chunk.first_path),
        shown_path(chunk.last_path),
    ]


def _entry_fields(entry: LayerEntry) -> dict[str, object]:
    from holdfast.store.filesets import shown_tag
    from holdfast.store.filesets.fileset_pb2 import Op

    if entry.message is None:
        return {"layer_seq": entry.layer_seq, "fault": entry.fault}
    operation = entry.message.data_op
    tags = [
        {"tag": shown_tag(tag.id), "size_bytes": tag.size_bytes, "does": _does(tag)}
        for tag in operation.tags
    ]
    return {
        "layer_seq": entry.layer_seq,
        "operation": Op.Name(operation.op),
        "size_bytes": entry.message.size_bytes,
        "refs": len(operation.data_ref),
        "tags": tags,
    }


def _entry_row(entry: LayerEntry) -> list[object]:
    from holdfast.store.filesets import shown_tag

    if entry.message is None:
        return [entry.layer_seq, "cannot be read", None, None, None]
    fields = _entry_fields(entry)
    tags = [f"{_does(tag)} '{shown_tag(tag.id)}'" for tag in entry.message.data_op.tags]
    counts = [fields[name] for name in ("layer_seq", "operation", "size_bytes", "refs")]
    return [*counts, ", ".join(tags)]


def _does(tag: pb.Tag) -> str:
    return "deletes" if tag.deleted else "replaces" if tag.set else "appends"
