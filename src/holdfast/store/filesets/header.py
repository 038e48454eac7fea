"""The 512 bytes in front of every entry of a tar stream: UStar (POSIX.1-1988), packed and parsed.

Headers that say the same are the same bytes: what is not known is zero, every number is octal in
full width, and the name is split where the first part is longest. A path or number that UStar
cannot hold goes into a PAX record (POSIX.1-2001), an entry of type 'x' in front of the header.

    offset  bytes  field          offset  bytes  field
    0       100    name           257     6      magic "ustar\\0"
    100     8      mode           263     2      version "00"
    108     8      uid            265     32     user
    116     8      gid            297     32     group
    124     12     size           329     8      device, major
    136     12     mtime          337     8      device, minor
    148     8      checksum       345     155    prefix of the name
    156     1      type           500     12     zeros
    157     100    link target
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.errors import Damaged

BLOCK_BYTES = 512
NAME_BYTES = 100
PREFIX_BYTES = 155
SIZE_MAX = 8**11 - 1
MTIME_S_MAX = 8**11 - 1
ID_MAX = 8**7 - 1

FILE = b"0"
HARD_LINK = b"1"
LINK = b"2"
FOLDER = b"5"
PAX = b"x"
PAX_GLOBAL = b"g"
# Ours: an index of one entry, and of a range of entries.
INDEX = b"i"
RANGE = b"r"

_MAGIC = b"ustar\x0000"
_OLD_GNU_MAGIC = b"ustar  \x00"
_OWNER_BYTES = 31
_DEVICES = b"0000000\x000000000\x00"
_PAX_NAME = b"././@PaxHeader"
_BLANKS = b" " * 8
# PAX records that are UTF-8 unless it is said that they are not.
_TEXTS = ("path", "linkpath", "uname", "gname")
# The first byte of a number in GNU's own form.
_BASE_256 = 0x80
_BASE_256_NEGATIVE = 0xFF

# The fields of a header of which nothing but name, type and size is known.
_PLAIN_FRONT = b"0000644\x000000000\x000000000\x00"
_PLAIN_MTIME = b"\x0000000000000\x00"
_PLAIN_BACK = b"\0" * NAME_BYTES + _MAGIC + b"\0" * 64 + _DEVICES + b"\0" * (PREFIX_BYTES + 12)
_PLAIN_SUM = sum(_PLAIN_FRONT + _PLAIN_MTIME + _BLANKS + _PLAIN_BACK)


class Header(NamedTuple):
    """What a header says. `name` is the bytes of prefix and name, joined."""

    name: bytes
    type: bytes
    size_bytes: int
    mode: int = 0o644
    mtime_s: int = 0
    uid: int = 0
    gid: int = 0
    link_target: bytes = b""
    user: bytes = b""
    group: bytes = b""


def split_name(name: bytes) -> tuple[bytes, bytes] | None:
    """Return (prefix, name) as UStar stores them, or None if it cannot."""
    if len(name) <= NAME_BYTES:
        return b"", name
    # The name must not be empty, so a folder's last slash stays with it.
    # The longest prefix that fits. Any cut would be valid tar; a fixed rule makes equal paths
    # equal bytes.
    cut = name.rfind(b"/", 0, min(PREFIX_BYTES + 1, len(name) - 1))
    if cut <= 0 or len(name) - cut - 1 > NAME_BYTES:
        return None
    return name[:cut], name[cut + 1 :]


def pack(header: Header, more: Mapping[str, bytes] | None = None) -> bytes:
    """Return the 512 bytes, and the PAX entry in front of them if one is needed.

    It has `more` records, too, which go before what the header would say.
    """
    records: dict[str, bytes] = {}
    split = split_name(header.name)
    if split is None:
        records["path"] = header.name
        split = b"", _cut_text(header.name)
    target = header.link_target
    if len(target) > NAME_BYTES:
        records["linkpath"] = target
        target = _cut_text(target)
    owners = (("uname", header.user), ("gname", header.group))
    records.update({key: owner for key, owner in owners if len(owner) > _OWNER_BYTES})
    numbers = _numbers(header, records)
    records.update(more or {})
    block = _block(split, header, numbers, target)
    return _pax_entry(records) + block if records else block


def pack_plain(name: bytes, kind: bytes, size_bytes: int) -> bytes:
    """Return what `pack` does for a header of which nothing else is known, as of index entries.

    Most of its bytes are always the same, and so is what they add to the checksum.
    """
    if len(name) > NAME_BYTES or size_bytes > SIZE_MAX:
        return pack(Header(name, kind, size_bytes))
    size = b"%011o" % size_bytes
    total = _PLAIN_SUM + sum(name) + sum(size) + kind[0]
    return b"%b%b%b%b%06o\0 %b%b" % (
        name.ljust(NAME_BYTES, b"\0"),
        _PLAIN_FRONT,
        size,
        _PLAIN_MTIME,
        total,
        kind,
        _PLAIN_BACK,
    )


def _numbers(header: Header, records: dict[str, bytes]) -> tuple[int, int, int, int]:
    """Return uid, gid, size and mtime as the header can hold them; what it cannot is recorded."""
    limits = (
        ("uid", header.uid, ID_MAX),
        ("gid", header.gid, ID_MAX),
        ("size", header.size_bytes, SIZE_MAX),
        ("mtime", header.mtime_s, MTIME_S_MAX),
    )
    fitting = []
    for key, value, limit in limits:
        fits = 0 <= value <= limit
        if not fits:
            records[key] = b"%d" % value
        fitting.append(value if fits else 0)
    return fitting[0], fitting[1], fitting[2], fitting[3]


def _block(
    split: tuple[bytes, bytes], header: Header, numbers: tuple[int, int, int, int], target: bytes
) -> bytes:
    prefix, name = split
    uid, gid, size_bytes, mtime_s = numbers
    front = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0" % (
        name.ljust(NAME_BYTES, b"\0"),
        header.mode & 0o7777,
        uid,
        gid,
        size_bytes,
        mtime_s,
    )
    back = b"%b%b%b%b%b%b%b" % (
        header.type,
        target.ljust(NAME_BYTES, b"\0"),
        _MAGIC,
        header.user[:_OWNER_BYTES].ljust(32, b"\0"),
        header.group[:_OWNER_BYTES].ljust(32, b"\0"),
        _DEVICES,
        prefix.ljust(PREFIX_BYTES + 12, b"\0"),
    )
    return b"%b%06o\0 %b" % (front, sum(front) + sum(back) + sum(_BLANKS), back)


def padding(size_bytes: int) -> bytes:
    """Return the zeros that fill the last block of a body."""
    return b"\0" * (-size_bytes % BLOCK_BYTES)


def _cut_text(name: bytes) -> bytes:
    """Return as much of a name as the header holds, not cut within a character."""
    return name[:NAME_BYTES].decode("utf-8", "ignore").encode()


def _pax_entry(records: dict[str, bytes]) -> bytes:
    if any(not _is_utf_8(records[key]) for key in _TEXTS if key in records):
        records["hdrcharset"] = b"BINARY"
    body = b"".join(
        _pax_record(key.encode("utf-8", "surrogateescape"), records[key]) for key in sorted(records)
    )
    header = Header(_PAX_NAME, PAX, len(body))
    return _block((b"", _PAX_NAME), header, (0, 0, len(body), 0), b"") + body + padding(len(body))


def _is_utf_8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _pax_record(key: bytes, value: bytes) -> bytes:
    """Return one record; its length counts the digits that it is written with."""
    rest = b" %b=%b\n" % (key, value)
    length = len(rest) + 1
    # The length counts its own digits: adding one may add another. Two rounds at most.
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return b"%d%b" % (length, rest)


def parse_pax(body: bytes, where: str) -> dict[str, bytes]:
    """Return the records of a PAX entry's body."""
    records = {}
    at = 0
    while at < len(body):
        blank = body.find(b" ", at, at + 20)
        digits = body[at:blank] if blank > 0 else b""
        length = int(digits) if digits.isdigit() else 0
        record = body[at : at + length]
        key, equals, value = record[len(digits) + 1 :].partition(b"=")
        if not equals or len(record) != length or not value.endswith(b"\n"):
            raise damaged("a PAX record is not what it says it is", where)
        records[key.decode("utf-8", "surrogateescape")] = value[:-1]
        at += length
    return records


def parse(block: bytes | memoryview, where: str) -> Header:
    """Return what 512 bytes say, after comparing them with their checksum."""
    block = bytes(block)
    if len(block) != BLOCK_BYTES:
        raise damaged(f"a header ends after {len(block)} of {BLOCK_BYTES} bytes", where)
    if _number(block[148:156], where) != checksum(block):
        raise damaged("a header does not match its checksum", where)
    name = _text(block[:NAME_BYTES])
    if block[257:265] not in (_MAGIC, _OLD_GNU_MAGIC):
        raise damaged("a header is not of the UStar format", where)
    if block[257:265] == _MAGIC and block[345]:
        # Only for UStar: old GNU headers have other things where the prefix is.
        name = _text(block[345:500]) + b"/" + name
    return Header(
        name=name,
        type=FILE if block[156:157] in (b"\0", b"7") else block[156:157],
        size_bytes=_number(block[124:136], where),
        mode=_number(block[100:108], where) & 0o7777,
        mtime_s=_number(block[136:148], where),
        uid=_number(block[108:116], where),
        gid=_number(block[116:124], where),
        link_target=_text(block[157:257]),
        user=_text(block[265:297]),
        group=_text(block[297:329]),
    )


def checksum(block: bytes) -> int:
    """Return the sum of a header's bytes, with blanks in place of the checksum."""
    return sum(block) - sum(block[148:156]) + sum(_BLANKS)


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes, where: str) -> int:
    """Return an octal number, or one in GNU's base 256."""
    if field[0] == _BASE_256:
        return int.from_bytes(field[1:], "big")
    if field[0] == _BASE_256_NEGATIVE:
        return int.from_bytes(field, "big", signed=True)
    digits = field.partition(b"\0")[0].strip()
    if not digits:
        return 0
    if digits.translate(None, b"01234567"):
        raise damaged(f"a header has {digits!r} where a number should be", where)
    return int(digits, 8)


def damaged(message: str, where: str) -> Damaged:
    """Return the error for bytes of a tar stream that cannot be right."""
    return Damaged(
        f"{where}: {message}",
        hint="The bytes were changed or cut off. Take another copy of them; for a commit, "
        "`holdfast store fsck` says what else is damaged.",
    )
