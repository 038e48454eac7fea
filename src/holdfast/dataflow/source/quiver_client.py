"""What the planner needs of a quiver, and the two ways to get it: opened here, or over Flight.

A quiver that the source opens itself is for data directories that no gateway has open: the process
that plans the query owns the directory then. Everything else goes to the server beside the owner.
`OwnerGone` is the only error that is not the end of a query: the gateway does not answer, its rows
have to wait, and the watermark with them.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

from holdfast.dataflow.source.options import SourceOptions
from holdfast.dataflow.source.quiver_location import QuiverLocation, connect, with_directory
from holdfast.dataflow.watermark.claims import NOTHING_CLAIMED_US, EventTimeReport
from holdfast.errors import BadConfig
from holdfast.quiver import Cursor, EventTimeStatement, Position, Quiver, QuiverConfig, Range
from holdfast.quiver.read.sealed import names_between
from holdfast.remote import PlannedRange, RemoteCursor, RemoteQuiver
from holdfast.seam import Seam
from holdfast.signals.registry import extractors


class QuiverClient(ABC):
    """One quiver, attached as one subscriber when it is first needed. One thread."""

    # Set by `_attach`, of a quiver that has a subscriber.
    _quiver: Quiver | RemoteQuiver
    _cursor: Cursor | RemoteCursor

    def __init__(self, place: QuiverLocation, options: SourceOptions) -> None:
        self.place = place
        self._options = options
        self._quiver_id: str | None = None

    @property
    def name(self) -> str:
        """How people call it."""
        return self.place.name

    @property
    def quiver_id(self) -> str | None:
        """Its identity; None until it has answered once."""
        return self._quiver_id

    def reach(self) -> str:
        """Return its identity, after attaching to it if that has not been done."""
        if self._quiver_id is None:
            self._quiver_id = self._attach()
        return self._quiver_id

    @abstractmethod
    def _attach(self) -> str:
        """Attach, and return the quiver's id."""

    def position(self) -> Position:
        """Return the first event that is not acknowledged."""
        return self._cursor.position

    def seal(self) -> int:
        """Have everything sealed that is there now; return where it ends."""
        newest_seq = self._quiver.statement().through_seq
        self._quiver.flush()
        return newest_seq + 1

    @abstractmethod
    def plan(self, start: Position, max_rows: int, max_bytes: int) -> PlannedRange | None:
        """Pin the next sealed bundles; None if there is none."""

    @abstractmethod
    def replan(self, start: Position, end: Position) -> PlannedRange:
        """Pin exactly a range that was planned before; raise if some of it is gone."""

    @abstractmethod
    def commit(self, start: Position, end: Position) -> None:
        """Acknowledge a range."""

    def statement(self, position: Position, claim_us: int) -> EventTimeStatement:
        """Return what the quiver states about event time."""
        return self._quiver.statement(position, claim_us=claim_us)

    @abstractmethod
    def close(self) -> None:
        """Detach."""

    def acknowledge(self, end: Position) -> Position:
        """Resolve everything before a position, and return up to where everything is."""
        position = self.position()
        if position < end:
            self.commit(position, end)
        return max(position, end)

    def report(self, position: Position, claim_us: int) -> EventTimeReport:
        """Report what waits from a position on; what is older than the claim does not hold it.

        The quiver states facts; whether it counts as idle, and whose promises hold, is decided
        here, because it follows from the settings of this pipeline and another one has its own.
        """
        known = self.statement(position, claim_us)
        is_idle = not known.pending_events and known.quiet_s >= self._options.idle_after
        producers_us = _earliest_promise(known, self._options.producers)
        clock_us = known.clock_ns // 1000
        return EventTimeReport(
            pending_us=known.min_event_us,
            newest_us=known.max_event_us,
            idle=is_idle,
            clock_us=clock_us,
            quiet_us=int(known.quiet_s * 1e6),
            producers_us=producers_us,
        )


def _earliest_promise(known: EventTimeStatement, producers: Sequence[str]) -> int | None:
    """Return how far the slowest of some producers has come; None if there are none."""
    promised = [known.producer_watermarks.get(name, NOTHING_CLAIMED_US) for name in producers]
    return min(promised) // 1000 if promised else None


class LocalQuiverClient(QuiverClient):
    """A quiver in a directory, opened here. A second driver is refused by the directory's lock."""

    _quiver: Quiver
    _cursor: Cursor

    def __init__(self, place: QuiverLocation, options: SourceOptions, seam: Seam) -> None:
        super().__init__(place, options)
        self._seam = seam
        # What `commit` needs, by where it ends.
        self._ranges: dict[Position, Range] = {}

    def _attach(self) -> str:
        """Open the directory, which no other process may have open, and its subscriber."""
        config = config_of(self._options)
        self._quiver = Quiver.open(self.place.directory, config, seam=self._seam)
        try:
            self._quiver.flush()  # what a crash left in the log; nothing is appended here later
            self._cursor = self._quiver.cursor(
                self._options.subscriber,
                start=self._options.start,
                on_data_loss=self._options.on_data_loss,
            )
        except BaseException:
            self._quiver.close()
            raise
        return self._quiver.quiver_id

    def plan(self, start: Position, max_rows: int, max_bytes: int) -> PlannedRange | None:
        """See `QuiverClient`."""
        planned = self._cursor.plan(
            max_events=max_rows, max_bytes=max_bytes, start=start, sealed_only=True
        )
        return None if planned is None else self._keep(planned)

    def replan(self, start: Position, end: Position) -> PlannedRange:
        """See `QuiverClient`."""
        return self._keep(self._cursor.replan(start, end))

    def _keep(self, planned: Range) -> PlannedRange:
        """Remember a range for `commit`, and return it with the segments that executors read."""
        self._ranges[planned.end] = planned
        names = names_between(self._quiver.segments(), planned.start, planned.end)
        return PlannedRange(
            self._quiver.quiver_id,
            planned.start,
            planned.end,
            planned.events,
            planned.size_bytes,
            tuple(names),
        )

    def commit(self, start: Position, end: Position) -> None:
        """See `QuiverClient`."""
        planned = self._ranges.get(end)
        if planned is None or planned.start != start:
            planned = self._cursor.replan(start, end)
        if self._options.on_data_loss == "count":
            # Tasks passed over what is damaged: it is recorded so, and not as delivered.
            for _ in self._cursor.read(planned):
                pass
        self._cursor.commit(planned)
        self._ranges = {last: kept for last, kept in self._ranges.items() if last > end}

    def close(self) -> None:
        """Let go of the directory."""
        if self._quiver_id is not None:
            self._quiver_id = None
            self._quiver.close()


class FlightQuiverClient(QuiverClient):
    """A quiver at a server. A driver that attaches later fences this one off."""

    _quiver: RemoteQuiver
    _cursor: RemoteCursor

    def _attach(self) -> str:
        """Connect, and take the subscriber over from whichever driver had it before."""
        place = self.place
        self._quiver = connect(place.location, place.quiver, self._options.client)
        self.place = with_directory(place, self._quiver)
        self._cursor = self._quiver.cursor(
            self._options.subscriber,
            start=self._options.start,
            on_data_loss=self._options.on_data_loss,
        )
        return self._quiver.quiver_id

    def plan(self, start: Position, max_rows: int, max_bytes: int) -> PlannedRange | None:
        """See `QuiverClient`."""
        return self._cursor.plan(max_events=max_rows, max_bytes=max_bytes, start=start)

    def replan(self, start: Position, end: Position) -> PlannedRange:
        """See `QuiverClient`."""
        return self._cursor.replan(start, end)

    def commit(self, start: Position, end: Position) -> None:
        """See `QuiverClient`."""
        self._cursor.commit(self._cursor.replan(start, end))

    def close(self) -> None:
        """Detach; the connection stays open for the next reader of this process."""
        if self._quiver_id is not None:
            self._quiver_id = None
            self._cursor.close()


def open_quiver_client(place: QuiverLocation, options: SourceOptions, seam: Seam) -> QuiverClient:
    """Return the client for a quiver; nothing is opened yet."""
    return (
        FlightQuiverClient(place, options)
        if place.location
        else LocalQuiverClient(place, options, seam)
    )


def config_of(options: SourceOptions) -> QuiverConfig:
    """Return the configuration with which a directory is opened.

    What a crash left is sealed then, and without extractors a table's items would have no times.
    """
    if options.table and not options.quiver_config:
        return QuiverConfig(extractors=extractors())
    return load_config(options.quiver_config)


def load_config(reference: str) -> QuiverConfig:
    """Return the configuration that `module:name` names; the default one without a name."""
    if not reference:
        return QuiverConfig()
    module, _, name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadConfig(
            f"there is no quiver_config {reference!r}: {error}",
            hint="write module:name, of a QuiverConfig or of a function that returns one",
        ) from error
    config = found() if callable(found) else found
    if not isinstance(config, QuiverConfig):
        raise BadConfig(
            f"quiver_config {reference!r} is {type(config).__name__}",
            hint="name a QuiverConfig, or a function that returns one",
        )
    return config
