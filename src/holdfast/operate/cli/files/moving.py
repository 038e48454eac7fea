"""`holdfast files get | export | import`: take files out, and bring archives in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.operate.cli.files.changing import added, message_option, tell
from holdfast.operate.cli.files.place import (
    CountedReader,
    CountedWriter,
    Place,
    opened_commit,
    outside_links_option,
    place_options,
    progress,
    status,
)
from holdfast.operate.cli.output import json_option, print_json, size

if TYPE_CHECKING:
    from holdfast.store.filesets import FileSetWriter
    from holdfast.store.filesets.selection import OutsideLinks


@click.command("get")
@click.argument("commit")
@click.argument("target", type=click.Path(file_okay=False, path_type=Path))
@click.option("--from", "folder", default="", metavar="FOLDER", help="Only what is below it.")
@click.option("--overwrite", is_flag=True, help="Replace files that are there already.")
@outside_links_option("keep")
@place_options
@json_option
def get_command(
    commit: str,
    target: Path,
    folder: str,
    overwrite: bool,
    outside_links: OutsideLinks,
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
        restored = extract(
            files, target, folder=folder, overwrite=overwrite, outside_links=outside_links
        )
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
@click.option("--keep-outside-links", is_flag=True, help="Store links that lead out.")
@message_option
@place_options
@json_option
def import_command(
    name: str,
    archive: str,
    into: str,
    parent: str | None,
    keep_outside_links: bool,
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

        def write(writer: FileSetWriter) -> None:
            import_tar(writer, counted, into=into, keep_outside_links=keep_outside_links)

        made = added(store, name, parent, message, write)
    tell(made, as_json)


def _tell_moved(files: int, size_bytes: int, as_json: bool) -> None:
    if as_json:
        print_json({"files": files, "size_bytes": size_bytes})
    else:
        click.echo(f"{files:,} files, {size(size_bytes)}")
