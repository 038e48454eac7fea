"""The stopwatch of a tree: children count, also those that ended."""

from __future__ import annotations

import subprocess
import sys

from holdfast.bench.stopwatch import TreeStopwatch

WORK = "import time\nwhile time.process_time() < 1.0: pass"
# A child that works, below one that only waits for it.
NESTED = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORK!r}])"


def test_the_cpu_time_of_a_grandchild_that_ended_is_counted() -> None:
    with TreeStopwatch() as watch:
        subprocess.run([sys.executable, "-c", NESTED], check=True)
    assert watch.cpu_s > 0.5
    assert watch.wall_s > 0.5


def test_what_was_used_before_is_not_counted() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", f"{WORK}\nprint('done', flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        with TreeStopwatch() as watch:
            child.communicate(b"\n")
    assert 0 <= watch.cpu_s < 0.9


# In a process that has no other children: one of an earlier test that ends meanwhile takes its CPU
# time out of the sum.
ENDED_AND_RUNNING = f"""
import subprocess, sys
from holdfast.bench.stopwatch import tree_cpu_s

began_s = tree_cpu_s()
subprocess.run([sys.executable, "-c", {NESTED!r}], check=True)
ended_s = tree_cpu_s() - began_s
waits = {WORK!r} + "\\nprint('done', flush=True)\\ninput()"
with subprocess.Popen(
    [sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE
) as child:
    assert child.stdout.readline() == b"done\\n"
    running_s = tree_cpu_s() - began_s - ended_s
    child.communicate(b"\\n")
print(ended_s, running_s)
"""


def test_children_that_still_run_count_as_those_that_ended_do() -> None:
    """Java outlives what is measured, and is waited for by nobody."""
    told = subprocess.run(
        [sys.executable, "-c", ENDED_AND_RUNNING], check=True, capture_output=True, text=True
    )
    ended_s, running_s = map(float, told.stdout.split())
    assert ended_s > 0.9
    assert running_s > 0.9
