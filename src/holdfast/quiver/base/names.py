"""Every file and directory name of a quiver, built and parsed in one place.

ROOT/
  FORMAT                      format version and quiver_id
  LOCK                        held by the owning process
  wal/0000000000000007.wal    write-ahead log files, numbered
  wal/0000000000000005.spare  one whose bundles are all in segments, kept to be written over
  segments/
    0000000000000003-65537-70211-300-5120/    segment_seq, first seq, last seq
      manifest                       summary, twice, with checksums
      bundles.arrow                  one row per bundle
      000-<slot>.arrow               rows of one slot and one schema
      000-<slot>.ids                 a filter on the ids in them, if they have any
    tmp-0000000000000004-3/          a segment being built (attempt 3)
  ledger/0000000000000002.log what became of every bundle
  trash/                      segments being removed
  quarantine/                 damaged bytes, set aside
  reserve/segment-1           blocks kept for a full disk
  handoff/MEMBERS             who its data nodes are (handoff/membership.py)
  control.sock                where the owner listens to tools
  control.path                where it listens instead, if that name is too long for a socket
  BACKUP                      this is a copy, to be restored and not to be opened

Where several quivers share a root, each of them is a folder of it: core-00/, core-01/, …
"""

from __future__ import annotations

import re
from typing import NamedTuple

FORMAT = "FORMAT"
FORMAT_TEMPORARY = "FORMAT.tmp"
LOCK = "LOCK"
CONTROL_SOCKET = "control.sock"
CONTROL_PATH = "control.path"
BACKUP = "BACKUP"
WAL_DIR = "wal"
SEGMENTS_DIR = "segments"
LEDGER_DIR = "ledger"
TRASH_DIR = "trash"
QUARANTINE_DIR = "quarantine"
RESERVE_DIR = "reserve"
HANDOFF_DIR = "handoff"
MEMBERS = "MEMBERS"
MANIFEST = "manifest"
BUNDLES = "bundles.arrow"

# A segment's number has 16 digits in its name.
SEGMENT_SEQ_END = 10**16

SLOT_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}")
_WAL_PATTERN = re.compile(r"(\d{16,})\.wal")
_SPARE_PATTERN = re.compile(r"\d{16,}\.spare")
_LEDGER_PATTERN = re.compile(r"(\d{16,})\.log")
_SEGMENT_PATTERN = re.compile(r"(\d{16})-(\d+)-(\d+)-(\d+)-(\d+)")
_CORE_PATTERN = re.compile(r"core-(\d{2,})")
_DATA_PATTERN = re.compile(r"(\d{3,})-(.+)\.arrow")
_RESERVE_PATTERN = re.compile(r"([a-z]+)-\d+")
_QUARANTINED_PATTERN = re.compile(r"\.\d+$")
_BUILDING_PATTERN = re.compile(r"tmp-\d{16}-\d+")


class SegmentName(NamedTuple):
    """What a segment's directory name says."""

    segment_seq: int
    first_seq: int
    last_seq: int
    # So that losing the manifest does not lose count.
    bundles: int
    events: int


def wal_file(number: int) -> str:
    """Return the name of a WAL file."""
    return f"{number:016d}.wal"


def parse_wal_file(name: str) -> int | None:
    """Return the number in a WAL file's name, or None for a foreign name."""
    match = _WAL_PATTERN.fullmatch(name)
    return int(match[1]) if match else None


def spare_wal_file(wal_file_name: str) -> str:
    """Return the name that a WAL file has while it is kept to be written over."""
    return wal_file_name.removesuffix(".wal") + ".spare"


def is_spare_wal_file(name: str) -> bool:
    """Whether a WAL file was kept under this name to be written over."""
    return _SPARE_PATTERN.fullmatch(name) is not None


def ledger_file(number: int) -> str:
    """Return the name of a ledger file."""
    return f"{number:016d}.log"


def parse_ledger_file(name: str) -> int | None:
    """Return the number in a ledger file's name, or None for a foreign name."""
    match = _LEDGER_PATTERN.fullmatch(name)
    return int(match[1]) if match else None


def segment_dir(name: SegmentName) -> str:
    """Return the name of a sealed segment's directory."""
    return f"{name.segment_seq:016d}-" + "-".join(map(str, name[1:]))


def parse_segment_dir(name: str) -> SegmentName | None:
    """Return what a segment's name says, or None for a foreign name."""
    match = _SEGMENT_PATTERN.fullmatch(name)
    return SegmentName(*map(int, match.groups())) if match else None


def building_dir(segment_seq: int, attempt: int) -> str:
    """Return the name of a segment that is being built."""
    return f"tmp-{segment_seq:016d}-{attempt}"


def is_building_dir(name: str) -> bool:
    """Whether an interrupted seal left this directory."""
    return _BUILDING_PATTERN.fullmatch(name) is not None


def core_dir(core_id: int) -> str:
    """Return the name of one of several quivers that share a root."""
    return f"core-{core_id:02d}"


def parse_core_dir(name: str) -> int | None:
    """Return the number in a core's name, or None for a foreign name."""
    match = _CORE_PATTERN.fullmatch(name)
    return int(match[1]) if match and name == core_dir(int(match[1])) else None


def data_file(index: int, slot: str) -> str:
    """Return the name of the file for one slot and one schema."""
    return f"{index:03d}-{slot}.arrow"


def ids_file(data_file_name: str) -> str:
    """Return the name of the filter on the ids in a data file."""
    return data_file_name.removesuffix(".arrow") + ".ids"


def parse_data_file(name: str) -> tuple[int, str] | None:
    """Return index and slot in a data file's name, or None for a foreign name."""
    match = _DATA_PATTERN.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def reserve_file(share: str, number: int) -> str:
    """Return the name of a part of the reserve."""
    return f"{share}-{number}"


def parse_reserve_file(name: str) -> str | None:
    """Return the share that a part of the reserve belongs to, or None for a foreign name."""
    match = _RESERVE_PATTERN.fullmatch(name)
    return match[1] if match else None


def without_quarantine_number(name: str) -> str:
    """Return the name that something in quarantine had before: `x.2` was `x`."""
    return _QUARANTINED_PATTERN.sub("", name)
