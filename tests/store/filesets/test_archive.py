"""Archives: GNU tar lists and extracts ours, and ours holds what GNU tar's did."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from tests.store.filesets.memory import memory_store
from tests.store.filesets.operations import NO_JOB, put_all, read_all

from holdfast.errors import BadInput, Damaged, HoldfastError
from holdfast.store.filesets import (
    FileSet,
    FileSetWriter,
    Metadata,
    export_index,
    export_tar,
    import_tar,
)
from holdfast.store.store import Store

FILES = {
    "a": b"",
    "b/x": b"x" * 511,
    "b/y": b"y" * 512,
    "b/z": b"z" * 513,
    "d" * 90 + "/" + "f" * 90: b"split",
    "ü" * 110: b"long",
    "large": bytes(range(256)) * 300,
}


def gnu(*arguments: str, cwd: Path | None = None) -> bytes:
    """Run GNU tar; a warning is an error."""
    command = ["tar", "--quoting-style=literal", *arguments]
    done = subprocess.run(command, capture_output=True, cwd=cwd, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def exported(files: FileSet, folder: str = "") -> bytes:
    target = io.BytesIO()
    export_tar(files, target, folder=folder)
    return target.getvalue()


def imported(store: Store, archive: bytes, into: str = "") -> FileSet:
    with FileSetWriter(store, NO_JOB) as writer:
        import_tar(writer, io.BytesIO(archive), into=into)
        return FileSet(store, [writer.close()])


@pytest.fixture
def memory() -> Store:
    return memory_store()[0]


def test_gnu_tar_lists_and_extracts_an_export(memory: Store, tmp_path: Path) -> None:
    files = FileSet(memory, [put_all(memory, FILES)])
    (tmp_path / "export.tar").write_bytes(exported(files))
    listed = gnu("-tf", "export.tar", cwd=tmp_path).decode().splitlines()
    assert listed == sorted(FILES)
    (tmp_path / "out").mkdir()
    gnu("-xf", "../export.tar", cwd=tmp_path / "out")
    for path, data in FILES.items():
        assert (tmp_path / "out" / path).read_bytes() == data


def test_gnu_tar_lists_and_extracts_the_raw_stream(memory: Store, tmp_path: Path) -> None:
    layers = [put_all(memory, FILES), put_all(memory, {"second": b"layer"}, base=False)]
    with (tmp_path / "raw.tar").open("wb") as target:
        export_index(FileSet(memory, layers), target)
    command = ["tar", "--quoting-style=literal", "-tf", "raw.tar"]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, check=False)
    assert done.stdout.decode().splitlines() == [*sorted(FILES), "second"]
    (tmp_path / "out").mkdir()
    subprocess.run(
        ["tar", "-xf", "../raw.tar"], cwd=tmp_path / "out", capture_output=True, check=False
    )
    # Index entries are extracted as files that hold their messages.
    assert (tmp_path / "out/b/x").read_bytes().startswith(b"\n\x03b/x")


def test_an_export_is_the_same_after_import(memory: Store) -> None:
    with FileSetWriter(memory, NO_JOB) as writer:
        for path, data in FILES.items():
            writer.put(path, data)
        writer.put(
            "dressed",
            b"x",
            metadata=Metadata(mode=0o4755, mtime_ns=-7_000_000_001, uid=3_000_000, user="u" * 40),
        )
        writer.make_folder("empty", metadata=Metadata(mode=0o700, mtime_ns=10**18))
        writer.link("b/link", "../a")
        writer.link("longlink", "t" * 300)
        files = FileSet(memory, [writer.close()])
    once = exported(files)
    again = imported(memory, once)
    assert exported(again) == once
    assert read_all(again) == read_all(files)


def make_source(folder: Path) -> list[str]:
    """Make a folder for GNU tar, and return its names in order of their bytes."""
    for name in ("docs/readme", "docs/sub/deep", "plain", "zeta"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode() * 100)
    (folder / "plain").chmod(0o755)
    (folder / "hollow").mkdir()
    (folder / "docs/to-plain").symlink_to("../plain")
    (folder / ("long" * 30)).write_bytes(b"long name")
    for path in folder.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000), follow_symlinks=False)
    names = [
        str(path.relative_to(folder)) + ("/" if path.is_dir() and not path.is_symlink() else "")
        for path in folder.rglob("*")
    ]
    return sorted(names)


def test_a_sorted_archive_of_gnu_tar_is_exported_byte_by_byte(
    memory: Store, tmp_path: Path
) -> None:
    names = [name for name in make_source(tmp_path) if "long" not in name]
    archive = gnu("--format=ustar", "--no-recursion", "-cf", "-", *names, cwd=tmp_path)
    assert exported(imported(memory, archive)) == archive


@pytest.mark.parametrize("style", ["gnu", "pax", "ustar", "oldgnu"])
def test_any_archive_of_gnu_tar_is_imported_and_exported_alike(
    memory: Store, tmp_path: Path, style: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    names = [name for name in make_source(source) if style != "ustar" or "long" not in name]
    (source / "hard").hardlink_to(source / "zeta")
    names.append("hard")
    archive = gnu(f"--format={style}", "--no-recursion", "-cf", "-", *names, cwd=source)
    files = imported(memory, archive)
    once = exported(files)
    (tmp_path / "once.tar").write_bytes(once)
    (tmp_path / "theirs.tar").write_bytes(archive)
    for name in ("once", "theirs"):
        (tmp_path / name).mkdir()
        gnu("-xf", f"../{name}.tar", cwd=tmp_path / name)
    command = ["diff", "-r", "--no-dereference", "once", "theirs"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).stdout == b""
    with tarfile.open(fileobj=io.BytesIO(once)) as ours:
        by_name = {member.name: member for member in ours.getmembers()}
    with tarfile.open(fileobj=io.BytesIO(archive)) as theirs:
        for member in theirs.getmembers():
            found = by_name[member.name]
            assert (found.mode, int(found.mtime)) == (member.mode, int(member.mtime))
            assert (found.uid, found.gid) == (member.uid, member.gid)
            assert (found.uname, found.gname) == (member.uname, member.gname)
    assert exported(imported(memory, once)) == once


def test_a_folder_as_a_dot_is_imported(memory: Store, tmp_path: Path) -> None:
    make_source(tmp_path)
    archive = gnu("-cf", "-", ".", cwd=tmp_path)
    files = imported(memory, archive, into="below")
    assert files.read("below/docs/readme") == b"docs/readme" * 100
    assert files.exists("below/hollow/")


def packed(*members: tuple[str, bytes, str]) -> bytes:
    """Return an archive of (name, type, link target)."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            archive.addfile(info, io.BytesIO())
    return target.getvalue()


@pytest.mark.parametrize(
    ("name", "kind", "link"),
    [
        ("../evil", b"0", ""),
        ("/etc/passwd", b"0", ""),
        ("a/../../evil", b"0", ""),
        ("link", b"2", "/etc/passwd"),
        ("link", b"2", "../outside"),
        ("d/link", b"2", "../../outside"),
        ("hard", b"1", "../outside"),
        ("hard", b"1", "nothing"),
        ("device", b"3", ""),
        ("pipe", b"6", ""),
        ("unknown", b"Z", ""),
    ],
)
def test_a_hostile_archive_is_refused(memory: Store, name: str, kind: bytes, link: str) -> None:
    with FileSetWriter(memory, NO_JOB) as writer, pytest.raises(BadInput):
        import_tar(writer, io.BytesIO(packed(("fine", b"0", ""), (name, kind, link))), into="in")


@pytest.mark.parametrize(
    ("key", "value"), [("mtime", "1e999999"), ("mtime", "1e30"), ("size", "9" * 5_000)]
)
def test_a_number_beyond_all_bounds_is_damage(memory: Store, key: str, value: str) -> None:
    member = tarfile.TarInfo("f")
    member.pax_headers = {key: value}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member)
    with pytest.raises(Damaged, match=f"is not a {'time' if key == 'mtime' else key}"):
        imported(memory, out.getvalue())


def test_every_cut_archive_is_damage_or_ends_between_entries(memory: Store) -> None:
    archive = exported(FileSet(memory, [put_all(memory, {"a": b"1" * 600, "b": b"2"})]))
    whole = {512 + 1024, 512 + 1024 + 1024}
    for end in range(1, 512 + 1024 + 1024, 97):
        with pytest.raises(Damaged):
            imported(memory, archive[:end])
    for end in whole:
        with FileSetWriter(memory, NO_JOB) as writer:
            assert not import_tar(writer, io.BytesIO(archive[:end])).has_end


def test_an_archive_cut_off_before_an_entry_that_it_describes_is_damage(memory: Store) -> None:
    archive = exported(FileSet(memory, [put_all(memory, {"ü" * 110: b"long"})]))
    assert archive[156:157] == b"x", "its path stands in a header of its own"
    for cut in (archive[:1024], archive[:1024] + bytes(1024)):
        with pytest.raises(Damaged, match="before an entry that it describes"):
            imported(memory, cut)


@pytest.mark.parametrize("at", range(0, 512, 13))
def test_a_flipped_bit_in_a_header_is_damage(memory: Store, at: int) -> None:
    archive = bytearray(exported(FileSet(memory, [put_all(memory, {"a": b"1"})])))
    archive[at] ^= 4
    if at in (154, 155):
        return
    with pytest.raises(HoldfastError):
        imported(memory, bytes(archive))


def test_an_archive_comes_through_a_pipe_in_any_pieces(memory: Store) -> None:
    class Trickle:
        def __init__(self, data: bytes) -> None:
            self._file = io.BytesIO(data)

        def read(self, size: int, /) -> bytes:
            return self._file.read(min(size, 100))

    archive = exported(FileSet(memory, [put_all(memory, FILES)]))
    with FileSetWriter(memory, NO_JOB) as writer:
        moved = import_tar(writer, Trickle(archive))
        files = FileSet(memory, [writer.close()])
    assert moved == (len(FILES), sum(map(len, FILES.values())), True)
    assert read_all(files) == dict(sorted(FILES.items()))


def test_a_part_is_exported(memory: Store) -> None:
    files = FileSet(memory, [put_all(memory, FILES)])
    with tarfile.open(fileobj=io.BytesIO(exported(files, "b"))) as archive:
        assert archive.getnames() == ["b/x", "b/y", "b/z"]
