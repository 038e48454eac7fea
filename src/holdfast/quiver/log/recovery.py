"""Recovery: from whatever a crash left to a catalog, an open buffer and the next sequence number.

    1. identity     read FORMAT; if it is damaged, ask the WAL files and manifests who they are
    2. segments     sweep unfinished ones, read all summaries (more only of rivals), sync their
                    folder: a segment whose name is not durable must not let its WAL go
    3. replay       what the WAL holds beyond the segments (replay.py), cut into buffers
    4. numbering    after a clean shutdown go on at the next number; otherwise skip to the
                    `seq_limit` of the newest file: no number given out and lost is used again

Damaged files never stop a start: they go to quarantine. Only data of a newer format does, because
going on without it would lose it. So everything is read before anything is moved, removed or
written: what is refused is left as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from holdfast.errors import WrongQuiver
from holdfast.quiver.base import names
from holdfast.quiver.base.config import QuiverConfig
from holdfast.quiver.base.frame import NOTHING, Totals
from holdfast.quiver.base.identity import (
    FormatFault,
    QuiverIdentity,
    read_identity,
    unknown_format,
    write_identity,
)
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log.quarantine import Damage, Quarantine
from holdfast.quiver.log.replay import Replay, WalContent, read_wal_file
from holdfast.quiver.log.reserve import DiskReserve, ReserveShare
from holdfast.quiver.log.wal import (
    HEADER_BYTES,
    SEQ_BLOCK,
    ClosedWalFile,
    HeaderFault,
    NewerVersion,
    WalHeader,
)
from holdfast.quiver.log.writer_state import LastAppend, OpenBuffer, Producers, WriterStart
from holdfast.quiver.segments import manifest
from holdfast.quiver.segments.data_file import DAMAGE_ERRORS
from holdfast.quiver.segments.segment import Catalog, Segment, choices
from holdfast.seam import Seam
from holdfast.seam.disk import remove_tree
from holdfast.seam.randomness import random_uuid

# WAL files without a header that are believed to have existed: a stray file may have any number.
_LOST_FILES_MAX = 1 << 20


@dataclass
class RecoveryReport:
    """What a start found. `damages` is what was lost, by name; everything else cost nothing."""

    segments: int = 0
    wal_files: int = 0
    replayed_bundles: int = 0
    skipped_bundles: int = 0
    torn_bytes: int = 0
    dropped_transactions: int = 0
    clean_shutdown: bool = False
    new_identity: bool = False
    # Lines of the ledger that were not synced when the power went.
    ledger_torn_bytes: int = 0
    damages: list[Damage] = field(default_factory=list)


@dataclass(frozen=True)
class Recovered:
    """What the threads begin with."""

    start: WriterStart
    # Full buffers, to be sealed first.
    backlog: list[OpenBuffer]
    # Old WAL files, each with the highest seq still needed from it (-1: none).
    wal_files: list[ClosedWalFile]


class Recovery:
    """Reads a data directory once, at open."""

    def __init__(
        self,
        seam: Seam,
        root: PurePath,
        config: QuiverConfig,
        catalog: Catalog,
        reserve: DiskReserve,
    ) -> None:
        self.report = RecoveryReport()
        self.quarantine = Quarantine(seam.disk, root)
        self._seam = seam
        self._disk = seam.disk
        self._root = root
        self._segments_dir = root / names.SEGMENTS_DIR
        self._config = config
        self._catalog = catalog
        self._reserve = reserve
        self._producers = Producers(config.producers)
        # The ids this store has or had; data of any other is foreign.
        self.own_ids: set[str] = set()
        self._wal_numbers = [0]
        # Of files whose header is lost.
        self._headless = [0]
        self._names_are_durable = True
        # What to write, move and remove once all is known to be readable.
        # A list of closures instead of immediate calls, because the last file read may still turn
        # out to be of a newer format, and then nothing may have been touched.
        self._due: list[Callable[[], None]] = []

    def run(self, expected_id: str | None) -> Recovered:
        """Do all four steps."""
        files = self._read_wal_headers()
        identity = self._identify(files, expected_id)
        self.own_ids = {identity.quiver_id, *identity.former_ids}
        self._load_segments()
        files = self._only_own(files)
        replay = Replay(self._catalog)
        needed = replay.walk_all(files)
        for action in self._due:
            action()
        self._quarantine_holes(replay, needed)
        return self._number(identity, files, (replay, needed))

    # ------------------------------------------------------------ 1. identity

    def _identify(self, files: Sequence[WalContent], expected_id: str | None) -> QuiverIdentity:
        """Return who this store is; FORMAT is due where it is missing, damaged or outlived."""
        claims = {content.header.quiver_id for content in files}
        try:
            found = read_identity(self._disk, self._root)
        except FormatFault as fault:
            self._set_aside(self._root / names.FORMAT, str(fault))
            found = None
        # FORMAT alone is not enough: without any WAL file of that id the sequence floor is gone,
        # and new numbers under the old id could repeat old ones.
        if found is not None and found.quiver_id in claims:
            identity = found
        else:
            identity = self._new_identity(found, claims)
            self._due.append(
                lambda: self._reserve.lend(
                    ReserveShare.HEADERS, lambda: write_identity(self._disk, self._root, identity)
                )
            )
        if expected_id is not None and identity.quiver_id != expected_id:
            raise self._wrong_quiver(found or identity, expected_id)
        return identity

    def _wrong_quiver(self, found: QuiverIdentity, expected_id: str) -> WrongQuiver:
        if found.quiver_id == expected_id:
            return WrongQuiver(
                f"quiver {expected_id} has lost its sequence floor and must take a new id",
                hint="restore its wal folder, or open it without naming the id: positions of the "
                "old id end here, stored bundles stay readable",
                path=str(self._root),
            )
        return WrongQuiver(
            f"the directory holds quiver {found.quiver_id}, not {expected_id}",
            hint="check the directory; positions of one quiver mean nothing in another",
            path=str(self._root),
        )

    def _new_identity(self, found: QuiverIdentity | None, claims: set[str]) -> QuiverIdentity:
        """Return the id the WAL files agree on, or a new one: then the sequence floor is lost.

        Former ids are remembered as long as stored data carries them.
        """
        former = self._segment_claims()
        if found is not None:
            former = (former | claims) & {found.quiver_id, *found.former_ids}
        # Only FORMAT is lost. All WAL files agree, so the id and the floor survive in them.
        if found is None and len(claims) == 1:
            (quiver_id,) = claims
        else:
            quiver_id = random_uuid(self._seam.randomness)
            self.report.new_identity = True
        former.discard(quiver_id)
        return QuiverIdentity(quiver_id, self._seam.clock.wall_ns(), tuple(sorted(former)))

    def _segment_claims(self) -> set[str]:
        claims = set()
        for entry in self._disk.list(self._segments_dir):
            try:
                claims.add(self._read_manifest(self._segments_dir / entry.name).quiver_id)
            except (manifest.ManifestFault, manifest.NewerManifest):
                continue
        return claims

    def _read_manifest(self, segment: PurePath) -> manifest.Summary:
        try:
            return manifest.read(self._disk, segment)
        except OSError as error:
            if error.errno not in DAMAGE_ERRORS:
                raise
            raise manifest.ManifestFault(error.strerror) from error

    # ------------------------------------------------------------ 2. segments

    def _load_segments(self) -> None:
        """Read all summaries, and note what is to be swept or set aside; nothing is moved yet."""
        try:
            self._disk.sync_dir(self._segments_dir, QuiverPoint.RECOVER_SYNC)
        except OSError:
            self._names_are_durable = False  # then no WAL goes before the next seal has synced it
        found: list[Segment] = []
        for entry in self._disk.list(self._segments_dir):
            path = self._segments_dir / entry.name
            name = names.parse_segment_dir(entry.name)
            if name is not None:
                segment = self._open_segment(path, name)
                if segment is not None:
                    found.append(segment)
            elif names.is_building_dir(entry.name):
                self._sweep(path)
            else:
                self._set_aside(path, "not a segment's name")
        for kept, copies, doubtful in choices(found):
            self._add(kept)
            for segment in copies:
                self._sweep(segment.path)
            for segment in doubtful:
                self._set_aside(segment.path, f"{kept.path.name} has the same seqs")

    def _open_segment(self, path: PurePath, name: names.SegmentName) -> Segment | None:
        self._catalog.reserve(name.segment_seq)
        try:
            summary = self._read_manifest(path)
        except manifest.NewerManifest as newer:
            raise unknown_format(path, str(newer)) from None
        except manifest.ManifestFault as fault:
            self._set_aside(path, f"the manifest cannot be read: {fault}", name)
            return None
        if summary.name != name:
            self._set_aside(path, "its name and its manifest disagree", name)
            return None
        if summary.quiver_id not in self.own_ids:
            self._set_aside(path, f"a segment of quiver {summary.quiver_id}", name)
            return None
        return Segment(self._disk, path, summary)

    def _add(self, segment: Segment) -> None:
        self._catalog.add(segment)
        self.report.segments += 1
        # The newest last: when there are too many producers, the first are forgotten first.
        for producer, last in reversed(segment.summary.producers.items()):
            if last.epoch:
                append = LastAppend(last.epoch, last.seq, last.bundles, last.events, last.time_ns)
                self._producers.absorb(producer, append)

    # -------------------------------------------------------------- 3. replay

    def _read_wal_headers(self) -> list[WalContent]:
        directory = self._root / names.WAL_DIR
        files = []
        faults: dict[int, tuple[PurePath, int, str]] = {}
        for entry in self._disk.list(directory):
            path = directory / entry.name
            if names.is_spare_wal_file(entry.name):
                self._sweep(path)
                continue
            number = names.parse_wal_file(entry.name)
            if number is None or entry.is_dir:
                self._set_aside(path, "not a WAL file")
                continue
            self._wal_numbers.append(number)
            try:
                files.append(read_wal_file(self._disk, path))
            except NewerVersion as newer:
                raise unknown_format(path, str(newer)) from None
            except HeaderFault as fault:
                faults[number] = path, entry.size_bytes, str(fault)
        self._headless += faults
        # A file's successor records what the file held when it was left. With its own header
        # unreadable, that is the only record of what it cost.
        left = {content.header.previous_number: content.header for content in files}
        for number, (path, size_bytes, fault_reason) in faults.items():
            self._leave_out(path, size_bytes, fault_reason, left.get(number))
        # Not by name: a copy has the name it was given.
        return sorted(files, key=lambda content: content.header.number)

    def _leave_out(
        self, path: PurePath, size_bytes: int, reason: str, later: WalHeader | None
    ) -> None:
        """Set a file without a header aside; sweep it if its creation was interrupted."""
        held = None if later is None else later.previous_holds
        if size_bytes > HEADER_BYTES or held not in (None, NOTHING):
            self._set_aside(path, reason, held=held)
        else:
            self.report.torn_bytes += size_bytes
            self._sweep(path)

    def _only_own(self, files: Sequence[WalContent]) -> list[WalContent]:
        own = []
        for content in files:
            if content.header.quiver_id in self.own_ids:
                own.append(content)
            else:
                self._set_aside(content.path, f"a WAL file of quiver {content.header.quiver_id}")
        return own

    def _quarantine_holes(self, replay: Replay, needed: dict[PurePath, int]) -> None:
        # The file that was read last: damages come file by file, and a WAL file is read once for
        # all its holes.
        read: tuple[PurePath | None, memoryview] = None, memoryview(b"")
        for content, damage in replay.real_damages():
            self.report.damages.append(damage)
            end = damage.offset + damage.size_bytes
            try:
                if read[0] != content.path:
                    read = content.path, content.read()
                self.quarantine.copy(read[1][damage.offset : end], damage)
            except OSError:
                needed.pop(content.path, None)  # the only copy stays where it is

    def _buffers(self, replay: Replay) -> list[OpenBuffer]:
        """Cut the replayed bundles into buffers that fit, and that do not span a segment.

        Nor do they span a bundle that may be missing: a segment covers its whole range, and what is
        damaged now, or lies in quarantine, would count as sealed at the next start.
        """
        now_s = self._seam.clock.monotonic_s()
        buffers = [OpenBuffer(now_s)]
        for seq in sorted(replay.bundles):
            held, open_buffer = replay.bundles[seq], buffers[-1]
            if open_buffer.bundles and self._must_part(open_buffer, seq):
                open_buffer = OpenBuffer(now_s)
                buffers.append(open_buffer)
            open_buffer.add(held)
            if held.producer is not None and held.epoch:
                append = LastAppend(held.epoch, seq, 1, held.events, held.ingestion_ns)
                self._producers.absorb(held.producer, append)
        # What is appended next must not share a segment with what was replayed: the segment's
        # range would reach over the damaged seqs between them.
        if buffers[-1].bundles and self.report.damages:
            buffers.append(OpenBuffer(now_s))
        return buffers

    def _must_part(self, buffer: OpenBuffer, seq: int) -> bool:
        """Whether a replayed bundle begins another buffer.

        A segment holds consecutive seqs as far as is known: if there is a segment, or may be
        damage, between two bundles, one segment over both would claim seqs that are not in it.
        """
        if buffer.size_bytes >= self._config.segment.target_size_bytes:
            return True
        if seq == buffer.last_seq + 1:
            return False
        segments = self._catalog.snapshot()
        between = any(buffer.last_seq < s.summary.first_seq < seq for s in segments)
        return between or bool(self.report.damages)

    # ----------------------------------------------------------- 4. numbering

    def _number(
        self,
        identity: QuiverIdentity,
        files: Sequence[WalContent],
        replayed: tuple[Replay, dict[PurePath, int]],
    ) -> Recovered:
        """Put together what the threads begin with."""
        replay, needed = replayed
        *backlog, open_buffer = self._buffers(replay)
        self.report.wal_files = len(files)
        self.report.replayed_bundles = len(replay.bundles)
        self.report.skipped_bundles = replay.skipped_bundles
        self.report.torn_bytes += replay.torn_bytes
        self.report.dropped_transactions = replay.dropped_transactions
        newest = files[-1].header.number if files else 0
        if newest < max(self._headless):
            replay.closed_at_seq = None  # another process came after that clean end
        self.report.clean_shutdown = replay.closed_at_seq is not None
        start = WriterStart(
            quiver_id=identity.quiver_id,
            next_seq=self._next_seq(files, replay),
            next_wal_number=max(self._wal_numbers) + 1,
            previous=(replay.newest, replay.synced_through, replay.synced_holds),
            copied=replay.copied,
            trusted=replay.trusted,
            accepted=self._accepted(files, replay),
            producers=self._producers,
            buffer=open_buffer,
        )
        sizes = {content.path: content.size_bytes for content in files}
        kept = [
            ClosedWalFile(path, self._keep_through(seq, replay), sizes[path])
            for path, seq in needed.items()
        ]
        return Recovered(start, backlog, kept)

    def _keep_through(self, last_seq: int, replay: Replay) -> int:
        # If the names of the segments could not be synced, a power cut may take a segment back;
        # then every WAL file stays until the next seal has synced the folder.
        return last_seq if self._names_are_durable else max(last_seq, replay.last_seq)

    def _accepted(self, files: Sequence[WalContent], replay: Replay) -> Totals:
        """Return what this quiver ever accepted: before the oldest file, and in the files.

        Or before the newest and in it: a file between them may have lost its header.
        """
        if files:
            by_files = files[0].header.accepted_before.plus(*replay.accepted)
            return max(by_files, files[-1].header.accepted_before.plus(*replay.sound_holds))
        sealed = self._catalog.snapshot()
        return Totals(sum(s.summary.bundles for s in sealed), sum(s.summary.events for s in sealed))

    def _next_seq(self, files: Sequence[WalContent], replay: Replay) -> int:
        """Return the first number that was certainly never given out."""
        sealed = max((s.summary.last_seq for s in self._catalog.snapshot()), default=-1)
        if replay.closed_at_seq is not None:
            return max(replay.closed_at_seq, sealed + 1, replay.last_seq + 1)
        if not files:
            return 0 if sealed < 0 else sealed + SEQ_BLOCK
        limit = max(content.header.seq_limit for content in files)
        # Every file behind the newest readable one may have begun at the limit of the one before.
        lost_files = max(0, max(self._headless) - files[-1].header.number)
        limit += min(lost_files, _LOST_FILES_MAX) * SEQ_BLOCK
        return max(limit, sealed + 1, replay.last_seq + 1)

    # ---------------------------------------------------------------- insides

    def _sweep(self, path: PurePath) -> None:
        """Have removed what an interrupted step left."""
        self._due.append(lambda: self._remove(path))

    def _remove(self, path: PurePath) -> None:
        """Remove a file or a directory; what cannot be removed now is swept next time."""
        try:
            if path.parent.name == names.WAL_DIR:
                self._disk.unlink(path, QuiverPoint.RECOVER_SWEEP)
            else:
                remove_tree(self._disk, path, QuiverPoint.RECOVER_SWEEP)
        except OSError:
            return

    def _set_aside(
        self,
        path: PurePath,
        reason: str,
        name: names.SegmentName | None = None,
        held: Totals | None = None,
    ) -> None:
        """Have a damaged or foreign file moved into quarantine."""
        self._due.append(lambda: self._move(path, reason, name, held))

    def _move(
        self, path: PurePath, reason: str, name: names.SegmentName | None, held: Totals | None
    ) -> None:
        """Set a file or directory aside, with a note of the bundles that it costs."""
        try:
            size_bytes = self._disk.used_bytes(path)
            # What another segment holds too is not missed, such as the rest of a copy half removed.
            missed = name is not None and not self._catalog.covers(name.first_seq)
            content = name[1:] if name and missed else (None, None, *(held or (None, None)))
            damage = Damage(path.name, reason, 0, size_bytes, *content)
            self.report.damages.append(damage)
            self.quarantine.move(path, damage)
        except OSError:
            return  # it stays where it is, unread, and is tried again at the next start
