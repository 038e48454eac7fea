"""Events that were refused for good: is it the event, or the destination?

One event that is refused while others are taken is at fault itself, and becomes a dead letter. A
destination that refuses everything (a wrong path, a broken proxy, a validation gone mad) must not
turn a whole backlog into dead letters. Nobody can tell from the first refusal. So a verdict is held
until the next answers tell:

    the next event is taken, or refused for another reason    the verdict stands
    `run_max` different events in a row, same code            it is the destination: verdicts are
                                                              taken back, everything is sent again
    nothing comes for `hold_s`                                the verdict stands, but still counts

Because of the last line up to `run_max - 1` events of a destination that refuses everything may
become dead letters when they come far apart; never more. Order is safe either way: what is sent
behind a held event either proves its verdict, or was refused as well.
"""

from __future__ import annotations

from holdfast.deliver.window import Item, Verdict
from holdfast.quiver import Position


class Refusals:
    """The current run of refusals with one code, over all lanes."""

    def __init__(self, run_max: int, hold_s: float) -> None:
        self.held: list[Item] = []
        self._run_max = run_max
        self._hold_s = hold_s
        self._code: str | None = None
        self._seen: set[Position] = set()
        self._latest_s = 0.0

    @property
    def is_proven(self) -> bool:
        """Whether the destination refuses everything."""
        return 0 < self._run_max <= len(self._seen)

    def refused(self, item: Item, verdict: Verdict, now_s: float) -> list[Item]:
        """Note a refusal; return the events whose verdicts stand because of it."""
        item.verdict = verdict
        if self._run_max == 0:
            return [item]
        stand = [] if verdict.code == self._code else self.broken()
        self._code, self._latest_s = verdict.code, now_s
        self.held.append(item)
        if not self.is_proven:
            self._seen.add(item.position)
        return stand

    def broken(self) -> list[Item]:
        """Note that an event was taken; return those whose verdicts stand because of it."""
        held, self.held = self.held, []
        self._code = None
        self._seen.clear()
        return held

    def overdue(self, now_s: float) -> list[Item]:
        """Return the events whose verdicts stand because nothing came for long."""
        if self.is_proven or now_s < self._latest_s + self._hold_s:
            return []
        held, self.held = self.held, []
        return held

    def hold_left_s(self, now_s: float) -> float | None:
        """Return how long until held verdicts stand by time alone; None: they do not."""
        if not self.held or self.is_proven:
            return None
        return max(0.0, self._latest_s + self._hold_s - now_s)

    def take_back(self) -> None:
        """Forget the verdicts of a proven run: all of it is sent again; one more refusal tells."""
        held, self.held = self.held, []
        for item in held:
            item.verdict = None

    def forget(self) -> None:
        """Leave out held events that were decided by others."""
        self.held = [item for item in self.held if item.decision is None]
