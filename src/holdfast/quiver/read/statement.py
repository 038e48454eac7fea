"""What a quiver can state about event time at a position: the ground of a watermark.

A watermark is a promise: no accepted event with an earlier time is still to come. Whoever reads
quivers makes it (a *claim*), for all of them together, and never takes it back. What each quiver
adds is what only it can know, about everything beyond the position p up to which the reader has
taken its rows:

    min_event_us      the earliest event time it holds beyond p: sealed, open, synced or not
    pending_events    how many events are there; none is not yet silence, see below
    max_event_us      the latest event time it ever saw: its sources are at most some delay behind
    quiet_since_ns    when it last took something in, or turned somebody away, or was opened
    clock_ns          its own clock
    producer_watermarks   what its producers promised in turn, in the frames of their bundles

The reader may claim min(min_event_us, max_event_us - delay), and, where nothing is pending and the
quiver was quiet for long enough, later by as long as it was. A quiver that does not answer states
nothing: silence on the wire is not idleness, which is why this is asked for and never guessed.

**Late rows do not hold it.** An event that arrives with a time before the claim in force is late
already; if it counted, the claim would stand still until it is read, and nothing would be gained.
How is it known? The claim C in force is passed in. It rested on an earlier statement of this very
quiver, so nothing the quiver held then, beyond the position of then, had a time before C. Hence
whatever is beyond p now with a time before C came after that statement: it was late when it
arrived. Times before C are left out, and that is all; a time equal to C still counts. This holds
as long as claims never pass what was stated; where somebody lets them (a gateway that is given up),
the rows that come back are late, and are counted as such by whoever reads them.

**Times are clamped**, as in summaries (envelope.py): at most ingestion + `max_skew_s`, at least
1970. For `max_event_us` events dated in the future do not count at all: one dated 2099, among data
of last year that is sent in late, would take the claim to the present and make all the rest late.

**When it is true.** The clock is read first, the data after that, so everything acknowledged before
`clock_ns` is covered, with one exception: an append at level `memory` counts from the moment it is
written, some microseconds after its answer.

**What it costs.** Segments are judged by their summaries. Rows are looked at only in the segment
that p cuts, in segments with late rows or rows of the future, and in the open buffer, each bundle
of it once; what was found is kept (engine/event_times.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.quiver.ledger.outcome import Position


@dataclass(frozen=True)
class EventTimeStatement:
    """What a quiver knows of the event times beyond a position."""

    quiver_id: str
    position: Position
    # Nothing with an earlier time counted for `min_event_us`; None: everything did.
    claim_us: int | None
    # The newest bundle that was looked at.
    through_seq: int
    # None: nothing is there, or all of it came late.
    min_event_us: int | None
    # Late ones too.
    pending_events: int
    # Without events dated in the future; as far as this process, and the segments it still has, can
    # tell. None: it saw none.
    max_event_us: int | None
    quiet_since_ns: int
    clock_ns: int
    # In nanoseconds; of producers that gave one.
    producer_watermarks: Mapping[str, int]

    @property
    def quiet_s(self) -> float:
        """How long nothing was appended, by the quiver's own clock."""
        return max(0, self.clock_ns - self.quiet_since_ns) / 1e9
