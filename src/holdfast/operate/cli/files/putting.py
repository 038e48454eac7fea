"""`holdfast files put`: bring files and folders in."""

from __future__ import annotations

import functools
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from holdfast.errors import BadInput
from holdfast.operate.cli.files.changing import added, message_option, tell
from holdfast.operate.cli.files.place import (
    INCOMPLETE_EXIT_CODE,
    ChosenStore,
    CountedReader,
    opened_job,
    opened_parent,
    outside_links_option,
    place_options,
    progress,
    shown_path,
    status,
)
from holdfast.operate.cli.files.tags import tag_option
from holdfast.operate.cli.output import counted, json_option, printable
from holdfast.seam.names import stored_name

if TYPE_CHECKING:
    from holdfast.store.filesets import Commit, FileSetWriter
    from holdfast.store.filesets.folder_reader import FolderReport
    from holdfast.store.filesets.selection import OutsideLinks, Selection
    from holdfast.store.store import Store

_BLOCK_BYTES = 1024 * 1024
_WORDS: dict[str, str] = {
    "excluded": "excluded",
    "socket": "sockets",
    "pipe": "pipes",
    "device": "devices",
    "outside_link": "links that lead out",
    "vanished": "that went meanwhile",
    "name": "with paths that cannot be stored",
    "unreadable": "that cannot be read",
}


def _selection_options(command: Callable[..., int]) -> Callable[..., int]:
    """Let a command be told what of a folder is stored, as `selection`."""

    @functools.wraps(command)
    def with_selection(
        exclude: Sequence[str],
        include: Sequence[str],
        pattern_files: Sequence[TextIO],
        exclude_caches: bool,
        outside_links: OutsideLinks,
        **others: object,
    ) -> int:
        from holdfast.store.filesets.selection import Selection, split_patterns

        left_out, kept = list(exclude), list(include)
        for file in pattern_files:
            more_left_out, more_kept = split_patterns(file)
            left_out += more_left_out
            kept += more_kept
        selection = Selection(
            left_out, kept, exclude_caches=exclude_caches, outside_links=outside_links
        )
        return command(selection=selection, **others)

    for option in (
        outside_links_option("keep"),
        click.option("--exclude-caches", is_flag=True, help="Leave out what has a CACHEDIR.TAG."),
        click.option(
            "--exclude-file",
            "pattern_files",
            multiple=True,
            type=click.File("r", encoding="utf-8", errors="surrogateescape"),
            help="Patterns, one in a line; with a ! before it, what is stored all the same.",
        ),
        click.option(
            "--include", multiple=True, metavar="PATTERN", help="Store it although excluded."
        ),
        click.option(
            "--exclude", multiple=True, metavar="PATTERN", help="Leave it out, as in .gitignore."
        ),
    ):
        with_selection = option(with_selection)
    return with_selection


@dataclass(frozen=True)
class _Put:
    """What `put` was asked for."""

    name: str
    source: Path
    parent: str | None
    into: str
    selection: Selection
    message: str
    tag: bytes | None
    append: bool


@click.command("put")
@click.argument("name")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--parent", metavar="COMMIT", help="Files that look as they do there are not read.")
@click.option("--into", default="", metavar="FOLDER", help="Beside what the parent holds.")
@tag_option("Store a file's content under this tag; what the parent has under others stays.")
@click.option("--append", is_flag=True, help="Behind what the parent has there.")
@_selection_options
@message_option
@place_options
@json_option
def put_command(place: ChosenStore, as_json: bool, **options: Any) -> int:
    """Store a file or a folder as a commit.

    A folder becomes all that the commit holds. With --into, or if SOURCE is a file, it comes beside
    what the parent holds, instead of what is there. Sockets, pipes and devices are left out, and so
    is what cannot be read: the commit is made all the same, and the exit code is 3.

    A file may consist of tags, whose content follows in their order: --tag replaces one of them.
    """
    asked = _Put(**options)
    is_folder = asked.source.is_dir()
    if is_folder and (asked.append or asked.tag is not None):
        raise BadInput(f"{asked.source} is a folder", hint="--tag and --append are for one file.")
    with place.open() as store:
        if is_folder and not asked.into:
            made, report, fields = _put_folder(store, asked)
        else:
            made, report, fields = _put_beside(store, asked)
    tell(made, as_json, {**fields, **_report_fields(report)})
    _tell_report(report)
    return INCOMPLETE_EXIT_CODE if report.missed else 0


def _report_fields(report: FolderReport) -> dict[str, object]:
    return {
        "left_out": dict(report.left_out),
        "changed_files": report.changed_files,
        "large_xattrs": report.large_xattrs,
        "told": [told._asdict() for told in report.first],
    }


def _tell_report(report: FolderReport) -> None:
    """Say beside the output what is not stored as it stands."""
    counts = [f"{count:,} {_WORDS[reason]}" for reason, count in report.left_out.items()]
    if counts:
        click.echo(f"left out: {', '.join(counts)}", err=True)
    if report.changed_files:
        click.echo(f"changed while they were read: {report.changed_files:,} files", err=True)
    for told in report.first:
        why = f": {printable(told.why)}" if told.why else ""
        click.echo(f"  {told.what.replace('_', ' ')}: {shown_path(told.path)}{why}", err=True)


def _put_folder(store: Store, asked: _Put) -> tuple[Commit, FolderReport, dict[str, object]]:
    from holdfast.store.filesets import Commits, put_tree

    commits, parent = Commits(store), asked.parent
    with opened_job(store, asked.name) as job, opened_parent(store, parent) as files:
        seen = commits.get(parent).seen if parent is not None else ()
        with status(f"storing {asked.source}"):
            tree = put_tree(
                store,
                job,
                asked.source,
                parent=files,
                parent_seen=seen,
                selection=asked.selection,
            )
        if tree.lost_files:
            click.echo(f"read {counted(tree.lost_files, 'file')} that the store had lost", err=True)
        made = commits.create(
            job, asked.name, [tree.layer], parent=parent, message=asked.message, seen=tree.seen
        )
    counts = ("files", "read_files", "read_bytes", "lost_files")
    return made, tree.report, {count: getattr(tree, count) for count in counts}


def _put_beside(store: Store, asked: _Put) -> tuple[Commit, FolderReport, dict[str, object]]:
    from holdfast.store.filesets.folder_reader import FolderReport

    reports = [FolderReport()]

    def write(writer: FileSetWriter) -> None:
        source, into = asked.source, asked.into
        if source.is_dir():
            reports[:] = [
                writer.put_tree(
                    source,
                    into=into,
                    selection=asked.selection,
                )
            ]
        else:
            name = stored_name(source.name)
            _put_file(writer, f"{into.rstrip('/')}/{name}" if into else name, asked)

    made = added(store, asked.name, asked.parent, asked.message, write)
    return made, reports[0], {}


def _put_file(writer: FileSetWriter, path: str, asked: _Put) -> None:
    from holdfast.store.filesets import Metadata

    source, tag = asked.source, asked.tag
    known = source.stat()
    metadata = Metadata(mode=stat.S_IMODE(known.st_mode), mtime_ns=known.st_mtime_ns)
    with source.open("rb") as file, progress(path, known.st_size) as done:
        counted = CountedReader(file, done)
        blocks = iter(lambda: counted.read(_BLOCK_BYTES), b"")
        if asked.append:
            writer.append(path, blocks, tag=tag or b"", metadata=metadata)
        elif tag is not None:
            writer.replace_tag(path, blocks, tag=tag)
        else:
            writer.put(path, blocks, metadata=metadata)
