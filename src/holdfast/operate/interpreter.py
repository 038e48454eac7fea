"""The interpreter below a gateway: how often it looks for garbage, and who waits for whom.

Python looks for cycles whenever there are 700 new containers more than were freed, and now and then
goes through every object of the process. A gateway keeps what it accepted until it is sealed, so
that this took a seventh of its time, nearly all of it spent on modules that never change.

A thread that works keeps the interpreter for 5 ms from one that has a packet to read. While a
segment is sealed that is the latency of every request.
"""

from __future__ import annotations

import gc
import sys

# More containers than were freed, between two looks; old ones are looked at with every 10th and
# 100th, as Python does.
NEW_CONTAINERS = 10_000
SWITCH_S = 0.001


def suit_a_gateway() -> None:
    """Set what a process that serves wants; before it starts."""
    gc.set_threshold(NEW_CONTAINERS, 10, 10)
    sys.setswitchinterval(SWITCH_S)


def leave_alone_what_is_here() -> None:
    """Look for garbage once, then never again at what is left: modules, settings, schemas."""
    gc.collect()
    gc.freeze()
