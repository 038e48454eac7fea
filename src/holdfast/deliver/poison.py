"""Events that alone make a destination fail: distinguished from chance by a fair test.

Only with `poison:`; without it an event that fails is tried for ever. The test must not be faked by
a destination that fails at random, whatever the share: for every request, for a connection, or
because one of its replicas is broken. So nothing is concluded from how often the head of a lane
failed. Once that was `attempts` times, it is tried in pairs: the head and another event, one right
after the other, in an order that is drawn by lot. A pair speaks against the head if the head fails
and the other one is taken.

    The destination did not see the lot. If it does not care which event it is sent, then of all
    pairs of which exactly one is taken, each is as likely to be for the head as against it: however
    it fails, and whatever it makes of two requests in a row. The first pair for the head ends the
    test, because the head is delivered then. So `pairs` pairs against it, and none for it, have a
    probability of at most 2 ** -pairs.

There are two rounds. In the first the other event is one that was taken before, sent once more: it
costs a duplicate, and no order. But a destination may know what it has already, and take it without
doing any work. So the second round compares with the events behind the head, each of them new: they
overtake it, for which the first round has shown good reason. If nothing is behind the head, it
holds up nobody, and stays. Both rounds together take at least `held_s`, so that a part of the
destination that only some events need (a shard, a table) has time to come back.
"""

from __future__ import annotations

import re
from enum import StrEnum

from holdfast.deliver.exporter import Failure, FailureClass
from holdfast.deliver.settings import PoisonSettings
from holdfast.quiver import Position

# How failures of the exporter itself are coded: an exception names what it could not handle, and
# that may well be one event.
EXCEPTION_CODE = "exception "

_SERVER_ERROR = re.compile(r"5\d\d")
# By its meaning it is about the server; one that sheds load says it to some and not to others.
_UNAVAILABLE = "503"


class Round(StrEnum):
    """With what the head of a lane is compared."""

    # It has not failed often enough, or `poison:` is not set.
    NONE = "none"
    # With an event that was taken before.
    REPEATED = "repeated"
    # With an event that comes behind it.
    NEW = "new"


def is_suspect(failure: Failure) -> bool:
    """Whether a failure may be the event's doing: a server error, or an exception while sending."""
    if failure.kind is not FailureClass.TRANSIENT or failure.code == _UNAVAILABLE:
        return False
    is_server_error = _SERVER_ERROR.fullmatch(failure.code) is not None
    return is_server_error or failure.code.startswith(EXCEPTION_CODE)


class Trial:
    """What speaks against the head of one lane."""

    def __init__(self, settings: PoisonSettings | None) -> None:
        self._position: Position | None = None
        self._settings = settings
        self._failures = 0
        self._since_s = 0.0
        self._against = {Round.REPEATED: 0, Round.NEW: 0}

    def failed(self, position: Position, now_s: float) -> None:
        """Note that the head failed, sent alone, in a way that may be its own doing."""
        if position != self._position:
            self._position, self._failures, self._since_s = position, 0, now_s
            self._against = dict.fromkeys(self._against, 0)
        self._failures += 1

    def round_of(self, position: Position) -> Round:
        """With what the head of the lane is to be compared when it is sent next."""
        if self._settings is None or position != self._position:
            return Round.NONE
        if self._failures < self._settings.attempts:
            return Round.NONE
        is_first = self._against[Round.REPEATED] < self._settings.pairs
        return Round.REPEATED if is_first else Round.NEW

    def compared(self, in_round: Round) -> None:
        """Note a pair against the head."""
        self._against[in_round] += 1

    def is_proven(self, now_s: float) -> bool:
        """Whether it is the head, and not the destination."""
        if self._settings is None or now_s < self._since_s + self._settings.held_s:
            return False
        return all(count >= self._settings.pairs for count in self._against.values())
