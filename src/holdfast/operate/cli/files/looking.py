"""`holdfast files ls | cat | tags | diff | log`: look at commits and what is in them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from holdfast.errors import BadInput
from holdfast.operate.cli.files.place import (
    STORED_PATH,
    ChosenStore,
    opened_commit,
    place_options,
    shown_path,
)
from holdfast.operate.cli.files.tags import tag_option
from holdfast.operate.cli.output import json_option, moment, print_json, print_table

if TYPE_CHECKING:
    from holdfast.store.filesets import Commit, Difference, FileInfo, FileSet


@click.command("ls")
@click.argument("commit", required=False)
@click.argument("path", default="", type=STORED_PATH)
@click.option("-r", "--recursive", is_flag=True, help="Everything below the path.")
@click.option("--glob", "pattern", metavar="PATTERN", help="Only paths that match: * ? [] and **.")
@place_options
@json_option
def list_command(
    commit: str | None,
    path: str,
    recursive: bool,
    pattern: str | None,
    place: ChosenStore,
    as_json: bool,
) -> None:
    """List a folder of a commit; without one, the commits themselves."""
    from holdfast.store.filesets import Commits

    with place.open() as store:
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
@place_options
def cat_command(
    commit: str,
    path: str,
    offset_bytes: int,
    size_bytes: int | None,
    tag: bytes | None,
    place: ChosenStore,
) -> None:
    """Write a file, or a range of its bytes, to the standard output."""
    with place.open() as store, opened_commit(store, commit) as files:
        for block in files.stream(path, offset_bytes, size_bytes, tag=tag):
            sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()


@click.command("tags")
@click.argument("commit")
@click.argument("path", type=STORED_PATH)
@place_options
@json_option
def tags_command(commit: str, path: str, place: ChosenStore, as_json: bool) -> None:
    """List the tags of a file in the order of their content: text, #NUMBER, or 0xHEX."""
    from holdfast.store.filesets import shown_tag

    with place.open() as store, opened_commit(store, commit) as files:
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
@place_options
@json_option
def diff_command(old: str, new: str, limit: int, place: ChosenStore, as_json: bool) -> None:
    """Say what differs between two commits: + added, - removed, M content, m metadata."""
    with (
        place.open() as store,
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
@place_options
@json_option
def log_command(commit: str, limit: int, place: ChosenStore, as_json: bool) -> None:
    """List a commit, its parent, and so on, as far as they still exist."""
    from holdfast.store.filesets import Commits

    with place.open() as store:
        _show_commits(commit, list(itertools.islice(Commits(store).log(commit), limit)), as_json)


def _show_commits(title: str, commits: list[Commit], as_json: bool) -> None:
    if as_json:
        print_json([commit_fields(commit) for commit in commits])
        return
    if not commits:
        click.echo("there are none")
        return
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
