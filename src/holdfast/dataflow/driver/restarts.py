"""Queries whose Python process did not come up in time: they are begun again, so many times.

Spark starts a Python process for each stream that plans, and others for the tasks. It gives the
former ten seconds and the latter sixty, which nobody can set, and ends the query if that was not
enough. Nothing is wrong with such a query but that the machine was busy with something else: begun
again it goes on from its checkpoint, as after any other end. It is not begun for ever: a Python
that never comes up (none is installed on an executor) is a fault that somebody has to mend.
"""

from __future__ import annotations

from holdfast.dataflow.durable_file import texts_of

# What Spark 4.3 says: of a process that plans, and of one for tasks.
_TEXTS = (
    "Python worker failed to connect back",
    "waiting for the Python worker to connect back",
)


def is_no_worker(error: BaseException) -> bool:
    """Whether a query ended because a Python process did not come up in time."""
    return any(text in told for told in texts_of(error) for text in _TEXTS)


class Restarts:
    """How often one query may still be begun."""

    def __init__(self, attempts_max: int) -> None:
        self._attempts_max = attempts_max
        self._attempts = 1
        # How many batches it had done when it was begun last.
        self._batches_done = 0

    def may_begin(self, error: BaseException, batches_done: int = 0) -> bool:
        """Whether to begin it again, now that it ended; the count is of attempts in a row."""
        if not is_no_worker(error):
            return False
        if batches_done > self._batches_done:
            self._attempts = 0
        self._batches_done = batches_done
        self._attempts += 1
        return self._attempts <= self._attempts_max
