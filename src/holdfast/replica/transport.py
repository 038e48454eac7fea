"""How a sender talks to a data node, and how that fails.

Every call has a deadline, and every failure is one of errors.py: `OwnerGone` for a node that cannot
be reached, does not answer in time or is something else (the call may be repeated: all of them
may), `NotAllowed` for one that does not let us in, and whatever it raised itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple, Protocol

from holdfast.errors import OwnerGone
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.replica.messages import (
    PARTS_LISTED_MAX,
    RANGES_ASKED_MAX,
    HealthPage,
    Holding,
    ListedPart,
    NodeHealth,
    PartAnswer,
    digest,
)
from holdfast.replica.part import Part, PartId, Slice, slices
from holdfast.seam.disk import Disk

# A put cannot be cancelled, so it is kept short: at most so many bytes, unless one part has more.
QUANTUM_BYTES_MAX = 64 << 20
# What a put may take besides its bytes, and the slowest network that is waited for.
PUT_PATIENCE_S = 10.0
_RATE_MIN_BYTES_S = 1 << 20


def put_timeout_s(size_bytes: int, patience_s: float = PUT_PATIENCE_S) -> float:
    """Return how long a put of so many bytes may take."""
    return patience_s + size_bytes / _RATE_MIN_BYTES_S


class OutgoingPart(NamedTuple):
    """A part, and where its bytes are."""

    part: Part
    disk: Disk
    folder: PurePath

    @property
    def slices(self) -> Iterator[Slice]:
        """Its bytes, from the beginning."""
        return slices(self.disk, self.folder, self.part)


class FetchedPart(NamedTuple):
    """A part of a node, and its bytes, which are read once."""

    part: Part
    slices: Iterator[Slice]


class Transport(Protocol):
    """The way to one data node. Safe to use from several threads.

    Between two probes another node may come to answer at the address. So every call but `health`
    names the node that is meant, and another one does nothing: it answers each part `WRONG_NODE`,
    and raises `BadInput` where no part is answered.
    """

    def offer(self, node_id: str, parts: Sequence[Part]) -> list[PartAnswer]:
        """Say what there is; return an answer for each part, in order."""

    def send(self, node_id: str, parts: Sequence[OutgoingPart | FetchedPart]) -> list[PartAnswer]:
        """Send parts, from a disk or from another node; return the answers that came, in order.

        Fewer than there are parts if the node went meanwhile: those that answered are settled, and
        the others are offered again. Raises if there is no answer at all.
        """

    def tell_not_owned(self, node_id: str, quiver_id: str, ranges: IntervalSet) -> None:
        """Say which seqs are none of the node's, so that it does not wait for them."""

    def health(self, page: HealthPage | None = None, known_digest: str = "") -> NodeHealth:
        """Return a page of its statement; without holdings if they are those of the digest."""

    def parts(self, node_id: str, quiver_id: str, ranges: IntervalSet) -> list[ListedPart]:
        """Return the parts that have seqs of some ranges, in order: `PARTS_LISTED_MAX` at most."""

    def fetch(self, node_id: str, part_id: PartId) -> FetchedPart:
        """Return the bytes of a part that the node has; raise `UnknownPosition` if it has not."""

    def close(self) -> None:
        """Hang up."""


def whole_health(transport: Transport, known_digest: str = "") -> NodeHealth:
    """Return all pages of a statement as one.

    If the node took or removed a part between two pages, the statement is of no single moment. Its
    digest is empty then, so that whoever compares digests asks again.
    """
    first = page = transport.health(None, known_digest)
    holdings = list(first.holdings)
    is_one_moment = True
    while page.next_page is not None:
        page = transport.health(page.next_page)
        holdings += page.holdings
        is_one_moment &= page.digest == first.digest
    joined = tuple(_joined(holdings))
    if first.holdings and digest(joined) != first.digest:
        is_one_moment = False
    return replace(
        first, holdings=joined, next_page=None, digest=first.digest if is_one_moment else ""
    )


def all_parts(
    transport: Transport, node_id: str, quiver_id: str, ranges: IntervalSet
) -> Iterator[ListedPart]:
    """Yield every part of a node that has seqs of some ranges, in order, each once."""
    wanted = list(ranges)
    seen_seq = -1
    while wanted:
        asked = IntervalSet(wanted[:RANGES_ASKED_MAX])
        page = transport.parts(node_id, quiver_id, asked)
        new = [one for one in page if one.part.id.first_seq > seen_seq]
        yield from new
        seen_seq = new[-1].part.id.last_seq if new else seen_seq
        if len(page) < PARTS_LISTED_MAX:
            wanted = wanted[RANGES_ASKED_MAX:]
            continue
        if not new:
            raise OwnerGone("the node lists the same parts again", hint="is it a data node?")
        wanted = [(max(start, seen_seq + 1), end) for start, end in wanted if end > seen_seq + 1]


def _joined(holdings: Iterable[Holding]) -> Iterator[Holding]:
    """Yield one holding for each quiver."""
    found: dict[str, Holding] = {}
    for one in holdings:
        known = found.get(one.quiver_id, Holding(one.quiver_id))
        found[one.quiver_id] = Holding(
            one.quiver_id, known.stored.union(one.stored), known.seen.union(one.seen)
        )
    yield from found.values()
