"""What an answer means: for each event, for its lane, and for the destination as a whole.

An event is given up for one reason only: it was sent alone, and the answer is about it (too large,
or never to be taken). Of a request that held several nobody knows for sure, so they are sent in
smaller ones, down to one. Every other answer, and none at all, is about the destination: the event
waits at the head of its lane and is tried again, for ever; see `Trial` in `lanes.py` for the
exception that somebody may ask for.

Nothing here waits or writes. Judging decides events that are delivered, and puts those that are to
become dead letters on the list `due`; what a lane may do next is in the lane and in the breaker.

Why so reluctant to give up: a dead letter needs a person. A destination that answers 404 after a
bad deployment refuses everything, and whoever reads "refused" as "this event is bad" turns an
outage of an hour into a hundred thousand letters. So a class of answers is about the event only if
it cannot be said of the destination (`classify.py` lists them), and only of a request that held
nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from holdfast.deliver.exporter import Answer, Failure, FailureClass
from holdfast.deliver.lanes import DeliveryLane, is_suspect
from holdfast.deliver.sending import Backoff, Breaker, Cause
from holdfast.deliver.settings import DeliverySettings
from holdfast.deliver.statistics import DeliveryCounters, DeliveryLog
from holdfast.deliver.window import DELIVERED, DeadLetterReason, Decision, Item
from holdfast.signals.event import Unit

_REFUSALS = (FailureClass.PERMANENT, FailureClass.TOO_LARGE)
# The code of what a destination cannot be given at all.
NOT_TAKEN = "not_taken"
# And of a dead letter that processors keep from the destination when it is sent again.
FILTERED = "filtered"
FILTERED_LETTER = Failure(FailureClass.PERMANENT, "a processor filters it", code=FILTERED)


class Taken(NamedTuple):
    """An event that was delivered, as it was sent."""

    key: str
    event: Unit


class Judge:
    """Judges the answers of one destination."""

    def __init__(
        self,
        name: str,
        settings: DeliverySettings,
        randomness: random.Random,
        counters: DeliveryCounters,
        decide: Callable[[Item, Decision], None],
    ) -> None:
        self.breaker = Breaker(settings.breaker_failures, settings.breaker_open_s)
        self.backoff = Backoff(settings, randomness)
        self.log = DeliveryLog(name, settings)
        # Events whose verdicts stand, and whose letters are not stored yet.
        self.due: list[Item] = []
        # The last event that was taken; kept only where events are compared with it.
        self.last_taken: Taken | None = None
        self._settings = settings
        self._counters = counters
        self._decide = decide

    def judge(
        self, lane: DeliveryLane, batch: Sequence[Item], answer: Answer, now_s: float
    ) -> None:
        """Judge the answer to a send."""
        failed = answer.failed
        if failed:
            self._count(batch, failed)
        for signal, items in answer.rejected_items.items():
            self._counters.items[signal].rejected += items
        for index, item in enumerate(batch):
            if index not in failed:
                self._delivered(item)
        # One event taken proves that the destination works, whatever became of the others. The
        # breaker counts outages, not bad events.
        if len(failed) < len(batch):
            self.breaker.succeeded()
            if self.log.failing_since_s is not None:
                self.log.worked(now_s)
        if not failed:
            lane.grow()
        else:
            self._failed(lane, batch, failed, now_s)
        # The head has an outcome, whatever failed behind it. Pauses and trials are about one head,
        # and start over with the next.
        if lane.failures and (batch[0].decision is not None or batch[0].verdict is not None):
            lane.went_on()

    def judge_other(self, other: Item, answer: Answer, now_s: float) -> None:
        """Judge the answer to an event that was sent, alone, only to compare it with the head.

        A failure of it that may pass changes nothing: it is behind the head of its lane, and is
        sent again in its turn. Only what an answer to the event alone may decide is decided here,
        too.
        """
        self._count([other], answer.failed)
        failure = answer.failed.get(0)
        if failure is None:
            self._delivered(other)
        elif failure.kind in _REFUSALS:
            self._set_aside(other, failure)
        elif failure.kind is FailureClass.AUTH:
            self._alarm(failure, now_s)

    def judge_pair(self, lane: DeliveryLane, head: Item, answer: Answer, now_s: float) -> None:
        """Judge the head of a lane after a pair in which the other event was taken."""
        assert lane.trial is not None, "BUG: compared, and `poison:` is not set"
        in_round = lane.trial.round_of(head.position)
        self.breaker.succeeded()
        self.judge(lane, [head], answer, now_s)
        failure = answer.failed.get(0)
        if failure is None or not is_suspect(failure):
            return
        lane.trial.compared(in_round)
        if lane.trial.is_proven(now_s):
            message = f"it failed {head.attempts} times while others were taken: {failure.reason}"
            head.verdict = DeadLetterReason("poison", failure.code, message)
            self.due.append(head)
            lane.went_on()

    def skip(self, lane: DeliveryLane, head: Item, reason: str, now_s: float) -> None:
        """Set the head of a lane aside, because somebody said so."""
        assert lane.failure is not None, "BUG: skipped, and did not fail"
        failed = f"it failed {head.attempts} times, last with {lane.failure}"
        message = f"{reason} ({failed if head.attempts else lane.failure.reason})"
        head.verdict = DeadLetterReason("skipped", lane.failure.code, message)
        self.due.append(head)
        lane.went_on()
        lane.retry_at_s = now_s

    def cannot_take(self, lane: DeliveryLane, head: Item, why: str, now_s: float) -> None:
        """Hold a lane whose head is of a signal that the destination does not take.

        It is not sent, so nothing is known of it that could make it a dead letter. Looked at again
        now and then anyway: retention, or an operator, may have decided it.
        """
        lane.failed(Failure(FailureClass.TRANSIENT, why, code=NOT_TAKEN), now_s)
        lane.retry_at_s = now_s + self._settings.retry_max_s
        self._counters.last_error = why
        self.log.cannot_take(head.position, why, now_s)

    def cannot_process(self, item: Item, error: BaseException) -> None:
        """Note that a processor raised for an event: it can be neither sent nor left out."""
        name = type(error).__name__
        item.verdict = DeadLetterReason("processor", name, f"a processor raised {name}")
        self._counters.last_error = item.verdict.message
        self.due.append(item)

    def forget_decided(self) -> None:
        """Leave out events that others have decided."""
        self.due[:] = [item for item in self.due if item.decision is None]

    # ------------------------------------------------------------------ one event

    def _delivered(self, item: Item) -> None:
        assert item.ready is not None, "BUG: delivered, and never sent"
        self._counters.sent_events += item.event.rows
        self._counters.sent_bytes += item.ready.size_bytes
        if (items := item.ready.items) is not None:
            self._counters.items[item.ready.signal].sent += items
        if self._settings.poison is not None:
            self.last_taken = Taken(item.key, item.ready)
        self._decide(item, DELIVERED)

    def _set_aside(self, item: Item, failure: Failure) -> None:
        word = "too_large" if failure.kind is FailureClass.TOO_LARGE else "permanent"
        item.verdict = DeadLetterReason(word, failure.code or word, failure.reason)
        self.due.append(item)

    # -------------------------------------------------------------- more than one

    def _failed(
        self, lane: DeliveryLane, batch: Sequence[Item], failed: Mapping[int, Failure], now_s: float
    ) -> None:
        """Handle each failure for what it is: a batch may be answered with both kinds.

        A refusal shrinks the next batch, and everything else makes the lane wait.
        """
        refused = {i: f for i, f in failed.items() if f.kind in _REFUSALS}
        if refused:
            self._refused(lane, batch, refused)
        waits = {i: f for i, f in failed.items() if f.kind not in _REFUSALS}
        if waits:
            self._wait(lane, batch, waits, now_s)

    def _refused(
        self, lane: DeliveryLane, batch: Sequence[Item], refused: Mapping[int, Failure]
    ) -> None:
        """Set an event aside that was refused alone; send smaller batches to find it otherwise.

        Halves while the destination refuses a batch as a whole: log2(n) sends to find one bad
        event. If it names the ones it refused, the next batch is a single event, since the name
        may be wrong and only an answer to that event alone is believed.
        """
        if len(batch) == 1:
            # It answers, and what it says is about this event.
            self._set_aside(batch[0], refused[0])
            self.breaker.succeeded()
        elif len(refused) == len(batch):
            lane.shrink(len(batch) // 2)
        else:
            lane.shrink(1)

    def _wait(
        self, lane: DeliveryLane, batch: Sequence[Item], failed: Mapping[int, Failure], now_s: float
    ) -> None:
        """Let a lane wait after failures that are about the destination."""
        first = min(failed)
        failure = failed[first]
        lane.failed(failure, now_s)
        auth = next((f for f in failed.values() if f.kind is FailureClass.AUTH), None)
        if auth is not None:
            self._alarm(auth, now_s)
            return
        # The longest of what was asked for: the answers came together, from one destination.
        asked_s = max(one.retry_after_s or 0.0 for one in failed.values())
        lane.retry_at_s = now_s + self.backoff.pause_s(lane.failures, asked_s)
        # Only a send of which nothing was taken speaks against the destination.
        if len(failed) == len(batch):
            self.breaker.failed(now_s)
            self.log.failed(failure, lane.failures, now_s)
        if not is_suspect(failure):
            return
        if len(batch) == 1:
            if lane.trial is not None:
                lane.trial.failed(batch[0].position, now_s)
        elif len(failed) == len(batch):
            # Perhaps one of them does it: those before it need not wait for that.
            lane.shrink(len(batch) // 2)

    def _alarm(self, auth: Failure, now_s: float) -> None:
        """Stop all sending at once: trying on would lock the account."""
        again_s = self._settings.auth_retry_s
        self.breaker.trip(Cause.AUTH, now_s, again_s)
        what = f"our credentials were refused: {auth.reason}"
        self.log.stopped(Cause.AUTH, what, again_s, now_s)

    def _count(self, batch: Sequence[Item], failed: Mapping[int, Failure]) -> None:
        for index, failure in failed.items():
            self._counters.failed[failure.kind.value] += 1
            self._counters.last_error = str(failure)
            sent = batch[index].ready
            if sent is not None and (items := sent.items) is not None:
                self._counters.items[sent.signal].failed += items
