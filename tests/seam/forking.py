"""Running something in a forked child."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable

from tests.patience import PATIENCE_S


def in_child(work: Callable[[], object]) -> None:
    """Run something in a forked child, and require that it ends, and ends well."""
    child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE_S))
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
