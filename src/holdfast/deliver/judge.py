"""What an answer means: for each event, for its lane, and for the destination as a whole.

Nothing here waits or writes. Judging decides events that are delivered, and puts those that are to
become dead letters on the list `due`; what a lane may do next is in the lane and in the breaker.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from holdfast.deliver.backoff import Backoff
from holdfast.deliver.breaker import Breaker, BreakerState, Cause
from holdfast.deliver.exporter import Answer, Failure, FailureClass
from holdfast.deliver.lanes import Lane
from holdfast.deliver.news import News
from holdfast.deliver.poison import is_suspect
from holdfast.deliver.refusals import Refusals
from holdfast.deliver.settings import DeliverySettings
from holdfast.deliver.statistics import Counters
from holdfast.deliver.window import DELIVERED, Decision, Item, Verdict

_REFUSALS = (FailureClass.PERMANENT, FailureClass.TOO_LARGE)


class Judge:
    """Judges the answers of one destination."""

    def __init__(
        self,
        name: str,
        settings: DeliverySettings,
        randomness: random.Random,
        counters: Counters,
        decide: Callable[[Item, Decision], None],
    ) -> None:
        self.breaker = Breaker(settings.breaker_failures, settings.breaker_open_s)
        self.refusals = Refusals(settings.refusals_max, settings.refusal_hold_s)
        self.backoff = Backoff(settings, randomness)
        self.news = News(name, settings)
        # Events whose verdicts stand, and whose letters are not stored yet.
        self.due: list[Item] = []
        self._settings = settings
        self._counters = counters
        self._decide = decide

    def judge(self, lane: Lane, batch: Sequence[Item], answer: Answer, now_s: float) -> None:
        """Judge the answer to a send."""
        failed = answer.failed
        self._count(failed)
        if len(batch) > 1 and _tells_nothing(batch, failed):
            lane.shrink(len(batch))
            return
        for index, item in enumerate(batch):
            failure = failed.get(index)
            if failure is None:
                self._delivered(item)
            elif failure.kind in _REFUSALS:
                self._refused(lane, item, failure, len(batch), now_s)
        if len(failed) < len(batch):
            self._works(now_s)
        if not failed:
            lane.grow()
        self._transient(lane, batch, failed, now_s)
        if batch[0].decision is not None or batch[0].verdict is not None:
            lane.failures = 0
        self._alarm(failed, now_s)

    def judge_probe(
        self, lane: Lane, head: Item, probe: Item, answer: Answer, now_s: float
    ) -> None:
        """Judge the answer to the second event of a lane, tried because the first one fails."""
        self._count(answer.failed)
        self._alarm(answer.failed, now_s)
        if not answer.failed:
            self._poisoned(lane, head)
            self._delivered(probe)
            self._works(now_s)
            lane.failures, lane.retry_at_s = 0, now_s

    def cannot_process(self, item: Item, error: Exception) -> None:
        """Note that a processor raised for an event: it can be neither sent nor left out."""
        name = type(error).__name__
        item.verdict = Verdict("processor", name, f"a processor raised {name}")
        self._counters.last_error = item.verdict.message
        self.due.append(item)

    def let_verdicts_stand(self, now_s: float) -> None:
        """Put refused events on the list for which nothing new was heard for long."""
        self.due += self.refusals.overdue(now_s)

    def forget_decided(self) -> None:
        """Leave out refused events that others have decided."""
        self.refusals.forget()
        self.due[:] = [item for item in self.due if item.decision is None]

    # ------------------------------------------------------------------ one event

    def _delivered(self, item: Item) -> None:
        assert item.ready is not None, "BUG: delivered, and never sent"
        self._counters.sent_events += 1
        self._counters.sent_bytes += len(item.ready.payload)
        self._decide(item, DELIVERED)
        self.due += self.refusals.broken()

    def _refused(
        self, lane: Lane, item: Item, failure: Failure, sent_events: int, now_s: float
    ) -> None:
        too_large = failure.kind is FailureClass.TOO_LARGE
        if sent_events > 1 and (too_large or failure.shared):
            lane.shrink(sent_events)
            return
        word = "too_large" if too_large else "permanent"
        verdict = Verdict(word, failure.code or word, failure.reason)
        self.due += self.refusals.refused(item, verdict, now_s)
        if not self.refusals.is_proven:
            # It answers, and was not seen to refuse everything.
            self.breaker.succeeded()

    def _poisoned(self, lane: Lane, item: Item) -> None:
        failure = lane.streak.failure
        assert failure is not None, "BUG: poison that never failed"
        item.verdict = Verdict("poison", failure.code, failure.reason)
        self.due.append(item)

    # -------------------------------------------------------------- more than one

    def _transient(
        self, lane: Lane, batch: Sequence[Item], failed: Mapping[int, Failure], now_s: float
    ) -> None:
        """Let a lane wait after failures that will pass, and look whether one will not."""
        transient = {i: f for i, f in failed.items() if f.kind is FailureClass.TRANSIENT}
        if not transient:
            return
        lane.failures += 1
        asked_s = max(failure.retry_after_s or 0.0 for failure in transient.values())
        lane.retry_at_s = now_s + self.backoff.pause_s(lane.failures, asked_s)
        first = min(transient)
        if len(failed) == len(batch):
            self.breaker.failed(now_s)
            self.news.failed(transient[first], now_s)
        if not is_suspect(transient[first]):
            return
        if len(batch) > 1 and len(failed) == len(batch):
            lane.shrink(len(batch))
            return
        suspect = batch[first]
        lane.streak.failed(suspect.position, transient[first], self._counters.sent_events)
        if lane.streak.is_proven and not self._settings.strict_order:
            self._poisoned(lane, suspect)

    def _works(self, now_s: float) -> None:
        self.breaker.succeeded()
        self.news.worked(now_s)

    def _alarm(self, failed: Mapping[int, Failure], now_s: float) -> None:
        """Stop all sending at once if trying on would do harm."""
        auth = next((f for f in failed.values() if f.kind is FailureClass.AUTH), None)
        if auth is not None:
            what = f"our credentials were refused: {auth.reason}"
            self._trip(Cause.AUTH, what, self._settings.auth_retry_s, now_s)
        elif self.refusals.is_proven and self.refusals.held:
            verdict = self.refusals.held[-1].verdict
            assert verdict is not None, "BUG: held without a verdict"
            what = f"it refuses everything: {verdict.message}"
            self._trip(Cause.REFUSALS, what, self._settings.refusal_retry_s, now_s)

    def _trip(self, cause: Cause, what: str, again_s: float, now_s: float) -> None:
        self.breaker.trip(cause, now_s, again_s)
        self.news.stopped(cause, what, again_s, now_s)

    def _count(self, failed: Mapping[int, Failure]) -> None:
        for failure in failed.values():
            self._counters.failed[failure.kind.value] += 1
            self._counters.last_error = str(failure)

    @property
    def refuses_everything(self) -> bool:
        """Whether a probe after a run of refusals is due, and so their verdicts are void."""
        return self.refusals.is_proven and self.breaker.state is BreakerState.HALF_OPEN


def _tells_nothing(batch: Sequence[Item], failed: Mapping[int, Failure]) -> bool:
    """Whether all was refused for one reason: perhaps because of one event, nobody knows which."""
    if len(failed) < len(batch):
        return False
    kinds = {(failure.kind, failure.code) for failure in failed.values()}
    return len(kinds) == 1 and next(iter(kinds))[0] in _REFUSALS
