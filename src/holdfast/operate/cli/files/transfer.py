"""`holdfast files put | get | import | export`: bring files and archives in, and take them out.

A backup that stops at the first odd file is none, and one that leaves files out in silence is
worse. So `put` and `get` do what they can, name the rest on standard error, and end with 3. An
archive is different: its maker had all of it, so what cannot be stored of it is refused.
"""

from __future__ import annotations

import functools
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from holdfast.errors import BadInput
from holdfast.operate.cli.base.output import (
    Command,
    counted,
    json_option,
    print_json,
    printable,
    size,
)
from holdfast.operate.cli.base.target import Target, store_options
from holdfast.operate.cli.base.work import CountedReader, CountedWriter, progress, status
from holdfast.operate.cli.files.commits import (
    INCOMPLETE_EXIT_CODE,
    STORED_PATH,
    forked_walk,
    forked_workers,
    opened_commit,
    opened_job,
    opened_parent,
    outside_links_option,
    put_record,
    shown_path,
    tag_option,
)
from holdfast.operate.cli.files.edit import added, message_option, tell
from holdfast.seam.names import stored_name

if TYPE_CHECKING:
    from holdfast.store.filesets import Commit, FileSetWriter
    from holdfast.store.filesets.folder_walk import FolderReport, ForkedWalk
    from holdfast.store.filesets.restore import Restoring
    from holdfast.store.filesets.selection import OutsideLinks, Selection
    from holdfast.store.store import Store

_NOT_RESTORED = {
    "owner": "the owner",
    "xattrs": "an extended attribute",
    "time": "the time",
    "set_id": "set-id bits or capabilities (--set-id restores them)",
    "hard_link": "the hard link (a copy was made)",
    "outside_link": "the link out of the folder itself",
}


_dry_run_option: Callable[[Command], Command] = click.option(
    "--dry-run", is_flag=True, help="Say what would be done, and do nothing."
)


def _restoring_options(command: Callable[..., int]) -> Callable[..., int]:
    """Pass a command how files are restored, as `how`."""

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
        from holdfast.store.filesets.restore import Restoring

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
@click.argument("target", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path))
@click.argument("paths", nargs=-1, type=STORED_PATH)
@click.option("--from", "folder", default="", metavar="PATH", help="Only what is below it.")
@_dry_run_option
@_restoring_options
@store_options
@json_option
def get_command(
    commit: str,
    target: Path,
    paths: Sequence[str],
    folder: str,
    dry_run: bool,
    how: Restoring,
    chosen: Target,
    as_json: bool,
) -> int:
    """Restore a commit into a folder, checking every byte; nothing is written outside of it.

    With PATHS, only these files and folders of it; * ? [] and ** stand for others. A file has its
    name once all of it is there. With --keep-going, files that cannot be restored are named, the
    rest is restored, and the exit code is 3.
    """
    from holdfast.store.filesets.restore import WRITE_THREADS, RangeRestorer, extract, planned

    if dry_run:
        with chosen.open_store() as store, opened_commit(store, commit) as files:
            would = planned(files, folder=folder, only=paths)
        _tell_moved(would.files, would.size_bytes, as_json, {"dry_run": True})
        return 0
    with (
        forked_workers(chosen, RangeRestorer) as workers,
        chosen.open_store() as store,
        opened_commit(store, commit) as files,
        status(f"restoring {commit}"),
    ):
        by = workers or WRITE_THREADS
        restored = extract(files, target, folder=folder, only=paths, how=how, threads=by)
    more = {
        "failed": restored.failed,
        "failures": [failure._asdict() for failure in restored.failures],
        "not_restored": dict(sorted(restored.not_restored.items())),
    }
    _tell_moved(restored.files, restored.size_bytes, as_json, more)
    for kind, count in sorted(restored.not_restored.items()):
        click.echo(f"not restored: {_NOT_RESTORED[kind]} of {counted(count, 'file')}", err=True)
    for failure in restored.failures:
        click.echo(f"failed: {shown_path(failure.path)}: {printable(failure.why)}", err=True)
    if restored.failed > len(restored.failures):
        click.echo(f"and {restored.failed - len(restored.failures):,} more that failed", err=True)
    return INCOMPLETE_EXIT_CODE if restored.failed else 0


@click.command("export")
@click.argument("commit")
@click.argument("archive", type=click.Path(dir_okay=False, writable=True, allow_dash=True))
@click.option("--from", "folder", default="", metavar="PATH", help="Only what is below it.")
@click.option("--index", is_flag=True, help="The stored index entries themselves, not the files.")
@store_options
@json_option
def export_command(
    commit: str,
    archive: str,
    folder: str,
    index: bool,
    chosen: Target,
    as_json: bool,
) -> None:
    """Write a commit as a tar archive; - is the standard output."""
    from holdfast.store.filesets import export_index, export_tar

    with (
        chosen.open_store() as store,
        opened_commit(store, commit) as files,
        click.open_file(archive, "wb") as file,
        progress(f"exporting {commit}") as done,
    ):
        target = CountedWriter(file, done)
        if index:
            export_index(files, target)
            return
        moved = export_tar(files, target, folder=folder)
    # The archive may be the standard output: then nothing else is printed there.
    if archive != "-":
        _tell_moved(moved.files, moved.size_bytes, as_json)


@click.command("import")
@click.argument("name")
@click.argument("archive", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--into", default="", metavar="FOLDER", help="Below this folder.")
@click.option("--parent", metavar="COMMIT", help="On top of what this commit holds.")
@click.option("--keep-outside-links", is_flag=True, help="Store links that lead out.")
@message_option
@store_options
@json_option
def import_command(
    name: str,
    archive: str,
    into: str,
    parent: str | None,
    keep_outside_links: bool,
    message: str,
    chosen: Target,
    as_json: bool,
) -> None:
    """Store a tar archive as a commit; - is the standard input. Paths that lead out are refused.

    An archive without the zeros that end one is stored, and said to be: it may have been cut off.
    """
    from holdfast.store.filesets import import_tar

    with (
        chosen.open_store() as store,
        click.open_file(archive, "rb") as file,
        progress(f"importing {name}") as done,
    ):
        counted = CountedReader(file, done)
        has_end = True

        def write(writer: FileSetWriter) -> None:
            nonlocal has_end
            moved = import_tar(writer, counted, into=into, keep_outside_links=keep_outside_links)
            has_end = moved.has_end

        made = added(store, name, parent, message, write)
    tell(made, as_json, {"archive_has_end": has_end})
    if not has_end:
        click.echo(
            "the archive has no end: if it was cut off between two entries, the rest is missing",
            err=True,
        )


def _tell_moved(
    files: int, size_bytes: int, as_json: bool, more: Mapping[str, object] | None = None
) -> None:
    if as_json:
        print_json({"files": files, "size_bytes": size_bytes, **(more or {})})
    else:
        click.echo(f"{counted(files, 'file')}, {size(size_bytes)}")


_BLOCK_BYTES = 1024 * 1024
_WORDS: dict[str, str] = {
    "excluded": "excluded",
    "socket": "sockets",
    "pipe": "pipes",
    "device": "devices",
    "outside_link": "links that lead out",
    "vanished": "that were removed meanwhile",
    "name": "with paths that cannot be stored",
    "unreadable": "that cannot be read",
}


def _selection_options(command: Callable[..., int]) -> Callable[..., int]:
    """Pass a command what of a folder is stored, as `selection`."""

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
    no_parent: bool
    dry_run: bool
    into: str
    selection: Selection
    message: str
    tag: bytes | None
    append: bool


@click.command("put")
@click.argument("words", nargs=-1, metavar="[NAME] SOURCE")
@click.option(
    "--parent",
    metavar="COMMIT",
    help="Files that look as they do there are not read; by default the folder's last commit.",
)
@click.option("--no-parent", is_flag=True, help="Read every file.")
@_dry_run_option
@click.option("--into", default="", metavar="FOLDER", help="Beside what the parent holds.")
@tag_option("Store a file's content under this tag; what the parent has under others stays.")
@click.option("--append", is_flag=True, help="Behind what the parent has there.")
@_selection_options
@message_option
@store_options
@json_option
def put_command(chosen: Target, as_json: bool, words: Sequence[str], **options: Any) -> int:
    """Store a file or a folder as a commit, called NAME, or after the folder and the time.

    A folder becomes all that the commit holds. With --into, or if SOURCE is a file, it comes beside
    what the parent holds, instead of what is there. Sockets, pipes and devices are left out, and so
    is what cannot be read: the commit is made all the same, and the exit code is 3.

    A file may consist of tags, whose content follows in their order: --tag replaces one of them.
    """
    name, source = _named(words)
    asked = _Put(name, source, **options)
    is_folder = asked.source.is_dir()
    if is_folder and (asked.append or asked.tag is not None):
        raise BadInput(f"{asked.source} is a folder", hint="--tag and --append are for one file.")
    if asked.dry_run:
        return _plan_put(chosen, asked, as_json)
    if is_folder and not asked.into:
        with forked_walk(chosen, asked.source, asked.selection) as walk:
            made, report, fields = _put_folder(chosen, asked, walk)
    else:
        with chosen.open_store() as store:
            made, report, fields = _put_beside(store, asked)
    tell(made, as_json, {**fields, **_report_fields(report)})
    if fields and not as_json:
        _tell_sizes(fields)
    _tell_report(report)
    return INCOMPLETE_EXIT_CODE if report.missed else 0


def _named(words: Sequence[str]) -> tuple[str, Path]:
    """Return the name of a commit and what is stored; without a name, one that sorts by time."""
    if not 1 <= len(words) <= 2:  # noqa: PLR2004 - a name and a source
        raise click.UsageError("Name what is to be stored, and before it the commit, if you like.")
    known = click.Path(exists=True, path_type=Path)
    source = Path(str(known.convert(words[-1], None, click.get_current_context())))
    if len(words) > 1:
        return words[0], source
    now = datetime.now(UTC)
    return f"{stored_name(source.resolve().name)}/{now:%Y-%m-%dT%H%M%S.%fZ}", source


def _tell_sizes(fields: Mapping[str, Any]) -> None:
    """Say how much there is, how much was read, and what of it the store did not have."""
    total, new = fields["size_bytes"], fields["new_bytes"]
    click.echo(
        f"{counted(fields['files'], 'file')}, {size(total)}: "
        f"read {fields['read_files']:,}, {size(fields['read_bytes'])}; "
        f"new {size(new)} ({size(fields['stored_bytes'])} stored), "
        f"shared {size(max(0, total - new))}"
    )


def _plan_put(chosen: Target, asked: _Put, as_json: bool) -> int:
    """Say what a put would read; nothing is stored."""
    if not asked.source.is_dir() or asked.into:
        raise BadInput("only a put of a whole folder can be planned", hint="Leave --into out.")
    from holdfast.store.filesets import Commits
    from holdfast.store.filesets.folder_writer import plan_tree

    with chosen.open_store() as store:
        parent = _parent(store, asked)
        with opened_parent(store, parent) as files:
            seen = Commits(store).get(parent).seen if parent is not None else ()
            plan = plan_tree(
                asked.source, parent=files, parent_seen=seen, selection=asked.selection
            )
    counts = {name: value for name, value in plan._asdict().items() if name != "report"}
    if as_json:
        fields = {"name": asked.name, "parent": parent, "dry_run": True}
        print_json({**fields, **counts, **_report_fields(plan.report)})
    else:
        click.echo(
            f"would store {counted(plan.files, 'file')}, {size(plan.size_bytes)}, and read "
            f"{plan.read_files:,} of them, {size(plan.read_bytes)}"
        )
    _tell_report(plan.report)
    return 0


def _parent(store: Store, asked: _Put) -> str | None:
    """Return the parent: the one that was named, or the last commit of the same folder."""
    if asked.parent is not None or asked.no_parent:
        return asked.parent
    from holdfast.store.filesets.commits import last_of_folder

    found = last_of_folder(store.references, put_record(asked.source))
    return found.name if found is not None else None


def _report_fields(report: FolderReport) -> dict[str, object]:
    return {
        "left_out": dict(report.left_out),
        "changed_files": report.changed_files,
        "large_xattrs": report.large_xattrs,
        "told": [one._asdict() for one in report.first],
    }


def _tell_report(report: FolderReport) -> None:
    """Report on standard error what is not stored as it is."""
    counts = [f"{count:,} {_WORDS[reason]}" for reason, count in report.left_out.items()]
    if counts:
        click.echo(f"left out: {', '.join(counts)}", err=True)
    if report.changed_files:
        click.echo(
            f"changed while they were read: {counted(report.changed_files, 'file')}", err=True
        )
    for one in report.first:
        why = f": {printable(one.why)}" if one.why else ""
        click.echo(f"  {one.what.replace('_', ' ')}: {shown_path(one.path)}{why}", err=True)


def _put_folder(
    chosen: Target, asked: _Put, walk: ForkedWalk | None
) -> tuple[Commit, FolderReport, dict[str, object]]:
    """Store a folder as all that the commit holds; files that look unchanged are not read."""
    from holdfast.store.filesets import Commits, put_tree
    from holdfast.store.filesets.commits import PUT_SINK
    from holdfast.store.filesets.folder_reader import READ_THREADS
    from holdfast.store.filesets.ranges import RangeStorer

    # The parent is open until the commit is made: unchanged files are taken over from it by
    # reference, and must not be collected meanwhile.
    with (
        forked_workers(chosen, RangeStorer) as workers,
        chosen.open_store() as store,
        opened_job(store, asked.name) as job,
        opened_parent(store, parent := _parent(store, asked)) as files,
    ):
        commits = Commits(store)
        seen = commits.get(parent).seen if parent is not None else ()
        with status(f"storing {asked.source}"):
            tree = put_tree(
                store,
                job,
                walk or asked.source,
                parent=files,
                parent_seen=seen,
                selection=asked.selection,
                threads=workers or READ_THREADS,
            )
        if tree.lost_files:
            click.echo(f"read {counted(tree.lost_files, 'file')} that the store had lost", err=True)
        made = commits.create(
            job,
            asked.name,
            [tree.layer],
            parent=parent,
            message=asked.message,
            batch_records={PUT_SINK: put_record(asked.source)},
            seen=tree.seen,
        )
    counts = ("files", "size_bytes", "read_files", "read_bytes", "lost_files")
    new = {
        "new_chunks": tree.new.chunks,
        "new_bytes": tree.new.plain_bytes,
        "stored_bytes": tree.new.stored_bytes,
    }
    return made, tree.report, {count: getattr(tree, count) for count in counts} | new


def _put_beside(store: Store, asked: _Put) -> tuple[Commit, FolderReport, dict[str, object]]:
    """Store a file or a folder as a layer on top of what the parent holds."""
    from holdfast.store.filesets.folder_walk import FolderReport

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
    """Store one file, as a whole, behind what is there, or as one of its tags."""
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
