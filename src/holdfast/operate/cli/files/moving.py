"""`holdfast files put | get | export | import`: bring files in, and take them out."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.operate.cli.files.changing import message_option, tell
from holdfast.operate.cli.files.place import (
    CountedReader,
    CountedWriter,
    Place,
    opened_commit,
    opened_job,
    opened_parent,
    place_options,
    progress,
    status,
)
from holdfast.operate.cli.output import json_option, print_json, size

if TYPE_CHECKING:
    from holdfast.store.filesets import Commit, FileSetWriter
    from holdfast.store.filesets.folder_reader import OutsideLinks
    from holdfast.store.store import Store

_BLOCK_BYTES = 1024 * 1024


@click.command("put")
@click.argument("name")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--parent", metavar="COMMIT", help="Files that look as they do there are not read.")
@click.option("--into", default="", metavar="FOLDER", help="Beside what the parent holds.")
@click.option(
    "--outside-links",
    type=click.Choice(["refuse", "skip"]),
    default="refuse",
    show_default=True,
    help="What becomes of links that lead out of the folder.",
)
@message_option
@place_options
@json_option
def put_command(
    name: str,
    source: Path,
    parent: str | None,
    into: str,
    outside_links: OutsideLinks,
    message: str,
    place: Place,
    as_json: bool,
) -> None:
    """Store a file or a folder as a commit.

    A folder becomes all that the commit holds. With --into, or if SOURCE is a file, it comes beside
    what the parent holds, instead of what is there.
    """
    with place.open() as store:
        if source.is_dir() and not into:
            made = _put_folder(store, name, source, parent, outside_links, message)
        else:
            made = _put_beside(store, name, source, parent, into, outside_links, message)
        tell(made, as_json)


def _put_folder(
    store: Store,
    name: str,
    source: Path,
    parent: str | None,
    outside_links: OutsideLinks,
    message: str,
) -> Commit:
    from holdfast.store.filesets import Commits, put_tree

    commits = Commits(store)
    with opened_job(store, name) as job, opened_parent(store, parent) as files:
        seen = commits.get(parent).seen if parent is not None else ()
        with status(f"storing {source}"):
            tree = put_tree(
                store, job, source, parent=files, parent_seen=seen, outside_links=outside_links
            )
        if tree.lost_files:
            click.echo(f"read {tree.lost_files} files that the store had lost", err=True)
        if tree.skipped_links:
            click.echo(f"left out {tree.skipped_links} links that lead out of the folder", err=True)
        return commits.create(
            job, name, [tree.layer], parent=parent, message=message, seen=tree.seen
        )


def _put_beside(
    store: Store,
    name: str,
    source: Path,
    parent: str | None,
    into: str,
    outside_links: OutsideLinks,
    message: str,
) -> Commit:

    def write(writer: FileSetWriter) -> None:
        if source.is_dir():
            writer.put_tree(source, into=into, outside_links=outside_links)
        else:
            _put_file(writer, f"{into.rstrip('/')}/{source.name}" if into else source.name, source)

    return _added(store, name, parent, message, write)


def _put_file(writer: FileSetWriter, path: str, source: Path) -> None:
    from holdfast.store.filesets import Metadata

    known = source.stat()
    metadata = Metadata(mode=stat.S_IMODE(known.st_mode), mtime_ns=known.st_mtime_ns)
    with source.open("rb") as file, progress(path, known.st_size) as done:
        counted = CountedReader(file, done)
        writer.put(path, iter(lambda: counted.read(_BLOCK_BYTES), b""), metadata=metadata)


def _added(
    store: Store,
    name: str,
    parent: str | None,
    message: str,
    write: Callable[[FileSetWriter], object],
) -> Commit:
    """Make a commit of a new layer, on top of those of a parent."""
    from holdfast.store.filesets import Commits, FileSetWriter

    with opened_job(store, name) as job, opened_parent(store, parent) as files:
        with FileSetWriter(store, job) as writer:
            write(writer)
            layer = writer.close()
        older = list(files.layers) if files is not None else []
        return Commits(store).create(job, name, [*older, layer], parent=parent, message=message)


@click.command("get")
@click.argument("commit")
@click.argument("target", type=click.Path(file_okay=False, path_type=Path))
@click.option("--from", "folder", default="", metavar="FOLDER", help="Only what is below it.")
@click.option("--overwrite", is_flag=True, help="Replace files that are there already.")
@place_options
@json_option
def get_command(
    commit: str,
    target: Path,
    folder: str,
    overwrite: bool,
    place: Place,
    as_json: bool,
) -> None:
    """Restore a commit into a folder, checking every byte; nothing is written outside of it."""
    from holdfast.store.filesets import extract

    with (
        place.open() as store,
        opened_commit(store, commit) as files,
        status(f"restoring {commit}"),
    ):
        restored = extract(files, target, folder=folder, overwrite=overwrite)
    _tell_moved(restored.files, restored.size_bytes, as_json)


@click.command("export")
@click.argument("commit")
@click.argument("archive", type=click.Path(dir_okay=False, writable=True, allow_dash=True))
@click.option("--from", "folder", default="", metavar="FOLDER", help="Only what is below it.")
@click.option("--index", is_flag=True, help="The stored index entries themselves, not the files.")
@place_options
@json_option
def export_command(
    commit: str,
    archive: str,
    folder: str,
    index: bool,
    place: Place,
    as_json: bool,
) -> None:
    """Write a commit as a tar archive; - is the standard output."""
    from holdfast.store.filesets import export_index, export_tar

    with (
        place.open() as store,
        opened_commit(store, commit) as files,
        click.open_file(archive, "wb") as file,
        progress(f"exporting {commit}") as done,
    ):
        target = CountedWriter(file, done)
        if index:
            export_index(files, target)
            return
        moved = export_tar(files, target, folder=folder)
    # The archive may be the standard output: what is told goes beside it.
    if archive != "-":
        _tell_moved(moved.files, moved.size_bytes, as_json)


@click.command("import")
@click.argument("name")
@click.argument("archive", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--into", default="", metavar="FOLDER", help="Below this folder.")
@click.option("--parent", metavar="COMMIT", help="On top of what this commit holds.")
@message_option
@place_options
@json_option
def import_command(
    name: str,
    archive: str,
    into: str,
    parent: str | None,
    message: str,
    place: Place,
    as_json: bool,
) -> None:
    """Store a tar archive as a commit; - is the standard input. Paths that lead out are refused."""
    from holdfast.store.filesets import import_tar

    with (
        place.open() as store,
        click.open_file(archive, "rb") as file,
        progress(f"importing {name}") as done,
    ):
        counted = CountedReader(file, done)
        made = _added(
            store, name, parent, message, lambda writer: import_tar(writer, counted, into=into)
        )
    tell(made, as_json)


def _tell_moved(files: int, size_bytes: int, as_json: bool) -> None:
    if as_json:
        print_json({"files": files, "size_bytes": size_bytes})
    else:
        click.echo(f"{files:,} files, {size(size_bytes)}")
