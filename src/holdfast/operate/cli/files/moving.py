"""`holdfast files get | export | import`: take files out, and bring archives in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.operate.cli.files.changing import added, message_option, tell
from holdfast.operate.cli.files.place import (
    INCOMPLETE_EXIT_CODE,
    ChosenStore,
    CountedReader,
    CountedWriter,
    opened_commit,
    outside_links_option,
    place_options,
    progress,
    shown_path,
    status,
)
from holdfast.operate.cli.output import json_option, print_json, printable, size

if TYPE_CHECKING:
    from holdfast.store.filesets import FileSetWriter
    from holdfast.store.filesets.extract import Restoring
    from holdfast.store.filesets.selection import OutsideLinks


_NOT_RESTORED = {
    "owner": "the owner",
    "xattrs": "an extended attribute",
    "time": "the time",
    "set_id": "set-id bits or capabilities (--set-id restores them)",
    "hard_link": "the hard link (a copy was made)",
    "outside_link": "the link out of the folder itself",
}


def _restoring_options(command: Callable[..., int]) -> Callable[..., int]:
    """Let a command be told how files are restored, as `how`."""

    @functools.wraps(command)
    def with_restoring(
        overwrite: bool,
        outside_links: OutsideLinks,
        owner: bool | None,
        numeric_ids: bool,
        set_id: bool,
        keep_going: bool,
        **others: object,
    ) -> int:
        from holdfast.store.filesets.extract import Restoring

        how = Restoring(overwrite, outside_links, owner, numeric_ids, set_id, keep_going)
        return command(how=how, **others)

    for option in (
        click.option("--keep-going", is_flag=True, help="Restore the rest if a file fails."),
        click.option("--set-id", is_flag=True, help="Restore set-id bits and capabilities."),
        click.option("--numeric-ids", is_flag=True, help="Owners by number, not by name."),
        click.option(
            "--owner/--no-owner",
            default=None,
            help="Give files to whom they belonged; by default if root runs it.",
        ),
        outside_links_option("keep"),
        click.option("--overwrite", is_flag=True, help="Replace files that are there already."),
    ):
        with_restoring = option(with_restoring)
    return with_restoring


@click.command("get")
@click.argument("commit")
@click.argument("target", type=click.Path(file_okay=False, path_type=Path))
@click.option("--from", "folder", default="", metavar="FOLDER", help="Only what is below it.")
@_restoring_options
@place_options
@json_option
def get_command(
    commit: str, target: Path, folder: str, how: Restoring, place: ChosenStore, as_json: bool
) -> int:
    """Restore a commit into a folder, checking every byte; nothing is written outside of it.

    A file has its name once all of it is there. With --keep-going, files that cannot be restored
    are told, the rest is restored, and the exit code is 3.
    """
    from holdfast.store.filesets import extract

    with (
        place.open() as store,
        opened_commit(store, commit) as files,
        status(f"restoring {commit}"),
    ):
        restored = extract(files, target, folder=folder, how=how)
    more = {
        "failed": restored.failed,
        "failures": [failure._asdict() for failure in restored.failures],
        "not_restored": dict(sorted(restored.not_restored.items())),
    }
    _tell_moved(restored.files, restored.size_bytes, as_json, more)
    for kind, count in sorted(restored.not_restored.items()):
        click.echo(f"not restored: {_NOT_RESTORED[kind]} of {count:,} files", err=True)
    for failure in restored.failures:
        click.echo(f"failed: {shown_path(failure.path)}: {printable(failure.why)}", err=True)
    if restored.failed > len(restored.failures):
        click.echo(f"and {restored.failed - len(restored.failures):,} more that failed", err=True)
    return INCOMPLETE_EXIT_CODE if restored.failed else 0


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
    place: ChosenStore,
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
    place: ChosenStore,
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


def _tell_moved(
    files: int, size_bytes: int, as_json: bool, more: Mapping[str, object] | None = None
) -> None:
    if as_json:
        print_json({"files": files, "size_bytes": size_bytes, **(more or {})})
    else:
        click.echo(f"{files:,} files, {size(size_bytes)}")
