"""What the source needs of a quiver, wherever it is: plans, pieces to read, statements."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from holdfast.dataflow.watermark.statement import Statement


class Piece(NamedTuple):
    """Some bundles of one sealed segment, to be read by an executor."""

    segment: str
    first_seq: int
    end_seq: int
    # Events of the first bundle that are resolved already.
    first_row: int
    size_bytes: int


class Planned(NamedTuple):
    """A pinned range: it can be read again until it is committed."""

    start_seq: int
    end_seq: int
    events: int
    # The newest event time in it that is not dated in the future; None if there are no events.
    newest_us: int | None


class Gateway(Protocol):
    """One quiver, attached as one subscriber. Everything raises `HoldfastError`."""

    @property
    def name(self) -> str:
        """How people call it."""

    @property
    def quiver_id(self) -> str:
        """Its identity."""

    def position(self) -> int:
        """Return the first seq that is not acknowledged."""

    def newest(self) -> int:
        """Return the end of what could be planned now."""

    def plan(
        self, start_seq: int, end_seq: int | None, max_rows: int, max_bytes: int
    ) -> Planned | None:
        """Pin the next sealed bundles from a seq on (and before another); None if there is none."""

    def replan(self, start_seq: int, end_seq: int) -> Planned:
        """Pin exactly a range that was planned before; raise if some of it is gone."""

    def pieces(self, start_seq: int, end_seq: int) -> list[Piece]:
        """Return what to read of a planned range."""

    def acknowledge(self, end_seq: int) -> None:
        """Resolve everything before a seq; what was resolved before stays so."""

    def statement(self, position_seq: int, claimed_us: int) -> Statement:
        """Say what waits from a seq on; what is older than the claim is late, and does not hold."""

    def close(self) -> None:
        """Detach."""
