"""Headers: the standard library's tarfile is the oracle, GNU tar the judge."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Damaged
from holdfast.store.filesets import header as tar
from holdfast.store.filesets.header import Header

PARTS = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=60)
NAMES = st.lists(PARTS, min_size=1, max_size=8).map(lambda parts: "/".join(parts).encode())

# Offsets 0 to 512 of an entry as it was first written: it must never change.
GOLDEN = Header(b"folder/file", tar.INDEX, 1234)


def by_tarfile(packed: bytes, size_bytes: int) -> tarfile.TarInfo:
    """Return what the standard library reads."""
    padded = packed + b"\0" * (size_bytes + -size_bytes % 512 + 1024)
    with tarfile.open(fileobj=io.BytesIO(padded), mode="r:", encoding="utf-8") as archive:
        member = archive.next()
        assert member is not None
        return member


@given(NAMES, st.integers(0, 5000), st.integers(0, 0o7777), st.integers(0, 2**40))
def test_tarfile_reads_what_is_packed(name: bytes, size: int, mode: int, mtime: int) -> None:
    packed = tar.pack(Header(name, tar.FILE, size, mode, mtime, 7, 8, b"", b"me", b"us"))
    member = by_tarfile(packed, size)
    assert member.name.encode("utf-8", "surrogateescape") == name
    assert (member.size, member.mode, int(member.mtime)) == (size, mode, mtime)
    assert (member.uid, member.gid, member.uname, member.gname) == (7, 8, "me", "us")


@given(NAMES.filter(lambda name: tar.split_name(name) is not None), st.integers(0, tar.SIZE_MAX))
def test_a_header_is_parsed_as_it_was_packed(name: bytes, size: int) -> None:
    header = Header(name, tar.FILE, size, 0o600, 5, 1, 2, b"target", b"user", b"group")
    packed = tar.pack(header)
    assert len(packed) == tar.BLOCK_BYTES
    assert tar.parse(packed, "here") == header


@given(NAMES, st.integers(0, 5000), st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE]))
def test_what_tarfile_packs_is_parsed(name: bytes, size: int, kind: bytes) -> None:
    info = tarfile.TarInfo(name.decode())
    info.size, info.type, info.mode = size, kind, 0o640
    if len(name) > tar.NAME_BYTES and tar.split_name(name) is None:
        return
    try:
        packed = info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")
    except ValueError:
        return  # it splits names elsewhere, and gives up earlier
    parsed = tar.parse(packed, "here")
    assert parsed.name.rstrip(b"/") == name.rstrip(b"/")
    assert (parsed.size_bytes, parsed.type, parsed.mode) == (size, kind, 0o640)


def test_the_packed_bytes_are_those_of_tarfile() -> None:
    info = tarfile.TarInfo("folder/file")
    info.size, info.mode, info.mtime = 5, 0o755, 1_700_000_000
    ours = tar.pack(Header(b"folder/file", tar.FILE, 5, 0o755, 1_700_000_000))
    theirs = info.tobuf(tarfile.USTAR_FORMAT)
    # It leaves the numbers of a device empty; GNU tar writes zeros, and so do we.
    for field in (slice(0, 148), slice(156, 329), slice(345, 512)):
        assert ours[field] == theirs[field]


@given(NAMES, st.integers(0, 2**40), st.sampled_from([tar.INDEX, tar.RANGE, tar.FILE]))
def test_the_quick_way_packs_the_same(name: bytes, size: int, kind: bytes) -> None:
    assert tar.pack_plain(name, kind, size) == tar.pack(Header(name, kind, size))


def test_a_golden_header() -> None:
    packed = tar.pack(GOLDEN)
    assert packed[:11] == b"folder/file"
    assert packed[100:157] == (
        b"0000644\x000000000\x000000000\x0000000002322\x0000000000000\x00011412\0 i"
    )
    assert packed[257:265] == b"ustar\x0000"
    assert packed[329:345] == b"0000000\x000000000\x00"
    assert packed[345:] == b"\0" * 167


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        (b"a" * 100, True),
        (b"a" * 101, False),
        (b"p" * 155 + b"/" + b"n" * 100, True),
        (b"p" * 156 + b"/" + b"n" * 99, False),
        (b"p" * 100 + b"/" + b"n" * 101, False),
        (b"p" * 120 + b"/", False),
        (b"p" * 50 + b"/" + b"q" * 60 + b"/", True),
    ],
)
def test_ustar_splits_names_at_a_slash_only(name: bytes, fits: bool) -> None:
    packed = tar.pack(Header(name, tar.FILE, 0))
    assert (len(packed) == tar.BLOCK_BYTES) is fits
    assert by_tarfile(packed, 0).name.encode().rstrip(b"/") == name.rstrip(b"/")


@pytest.mark.parametrize("size", [tar.SIZE_MAX, tar.SIZE_MAX + 1, 10**13])
def test_sizes_beyond_eight_gigabytes_go_into_a_pax_record(size: int) -> None:
    packed = tar.pack(Header(b"large", tar.FILE, size))
    assert (len(packed) == tar.BLOCK_BYTES) is (size <= tar.SIZE_MAX)
    if size > tar.SIZE_MAX:
        assert tar.parse_pax(packed[512 : 512 + 40].rstrip(b"\0"), "here") == {"size": b"%d" % size}


def test_gnu_tar_lists_long_and_odd_names(tmp_path: Path) -> None:
    names = ["ü" * 80, "d" * 200 + "/" + "f" * 120, "tab\there", "ordinary"]
    archive = tmp_path / "names.tar"
    archive.write_bytes(
        b"".join(tar.pack(Header(name.encode(), tar.FILE, 0)) for name in names) + b"\0" * 1024
    )
    command = ["tar", "--quoting-style=literal", "-tf", str(archive)]
    listed = subprocess.run(command, capture_output=True, check=True).stdout
    assert listed.decode().splitlines() == names


def test_a_pax_record_counts_its_own_digits() -> None:
    for length in (80, 90, 91, 92, 93, 94, 980, 990):
        value = b"v" * length
        packed = tar.pack(Header(value, tar.LINK, 0, link_target=b"t" * length))
        size = tar.parse(packed[:512], "here").size_bytes if len(packed) > 512 else 0
        if size:
            records = tar.parse_pax(packed[512 : 512 + size], "here")
            assert set(records.values()) <= {value, b"t" * length}


@pytest.mark.parametrize(
    "body", [b"9 path=a\n", b"12 path=a\n", b"x path=a\n", b"9 pathxa\n", b"8"]
)
def test_a_wrong_pax_record_is_damage(body: bytes) -> None:
    with pytest.raises(Damaged, match="PAX record"):
        tar.parse_pax(body[:-1] if body.startswith(b"9 path=") else body, "here")


def test_every_flipped_bit_of_a_header_is_found() -> None:
    sound = tar.pack(GOLDEN)
    checksum = sound[148:154]
    for at in range(512):
        for bit in range(8):
            packed = bytearray(sound)
            packed[at] ^= 1 << bit
            # In the checksum's own field two bytes mean nothing, and zeros in front may be spaces.
            is_same_number = packed[148:154].lstrip(b" 0") == checksum.lstrip(b" 0")
            if 148 <= at < 156 and is_same_number:
                continue
            with pytest.raises(Damaged):
                tar.parse(bytes(packed), "here")


def test_a_short_header_is_damage() -> None:
    with pytest.raises(Damaged, match="500 of 512"):
        tar.parse(tar.pack(GOLDEN)[:500], "here")


def test_numbers_in_base_256_are_read() -> None:
    block = bytearray(tar.pack(Header(b"large", tar.FILE, 0)))
    block[124:136] = b"\x80" + (10**13).to_bytes(11, "big")
    block[136:148] = (-5 % 256**12).to_bytes(12, "big")
    block[148:156] = b"%06o\0 " % tar.checksum(bytes(block))
    parsed = tar.parse(bytes(block), "here")
    assert (parsed.size_bytes, parsed.mtime_s) == (10**13, -5)
