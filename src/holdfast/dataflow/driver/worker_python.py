"""Python for the workers of a Spark on this machine: the installed pyspark, not its zipped copy.

Spark puts `pyspark.zip` before everything else on a worker's path. There is no compiled code in it,
so every process that Spark starts for Python (one that plans for each stream, some for each kind of
work) compiles pyspark anew: three times the CPU of a start. Spark gives a process ten seconds, and
on a busy machine that was not enough. So workers are started by a launcher of ours that leaves the
zip out; the same pyspark, unpacked and compiled, is in the interpreter's own packages.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

_LAUNCHER = Path(__file__).parent / "python_home" / "bin" / "python"


def worker_environment() -> dict[str, str]:
    """Return what makes workers start quickly; for a Spark that runs on this machine only."""
    found = find_spec("pyspark")
    if found is None or found.origin is None or not os.access(_LAUNCHER, os.X_OK):
        return {}
    return {
        "PYSPARK_PYTHON": str(_LAUNCHER),
        # Whatever belongs to a data source is started by this one: also what plans and reads.
        "PYSPARK_DRIVER_PYTHON": str(_LAUNCHER),
        "HOLDFAST_PYTHON": sys.executable,
        "HOLDFAST_PYSPARK_LIB": str(Path(found.origin).parent / "python" / "lib"),
    }
