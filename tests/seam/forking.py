"""Running something in a forked child."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable

# A child that waits for a thread it does not have is ended by this, and the test fails.
CHILD_S = 60


def in_child(work: Callable[[], object]) -> None:
    """Run something in a forked child, and require that it ends, and ends well."""
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_S)
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
