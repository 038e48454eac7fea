"""The interpreter of a gateway looks for garbage seldom, and not at all at what never changes."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys

import pytest
from tests.patience import PATIENCE_S

from holdfast.operate.up import NEW_CONTAINERS, SWITCH_S

# In a process of its own: all of it is for the whole interpreter.
_PROGRAM = """
import gc, sys
from holdfast.operate.up import leave_alone_what_is_here, suit_a_gateway
suit_a_gateway()
leave_alone_what_is_here()
print(gc.get_threshold()[0], sys.getswitchinterval(), gc.get_freeze_count(), len(gc.get_objects()))
class Cycle: pass
for _ in range(2 * gc.get_threshold()[0]):
    one = Cycle(); one.itself = one
print(gc.get_stats()[0]["collections"], len(gc.get_objects()))
"""


def test_a_gateway_looks_at_what_is_new_and_seldom() -> None:
    before = gc.get_threshold()
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    settings, garbage = done.stdout.splitlines()
    threshold, switch_s, frozen, left = settings.split()
    assert (int(threshold), float(switch_s)) == (NEW_CONTAINERS, SWITCH_S)
    assert int(frozen) > 10 * int(left), "what was there before is still looked at"
    _, alive = garbage.split()
    assert int(alive) < 2 * NEW_CONTAINERS, "cycles stay for ever"
    assert gc.get_threshold() == before


# Large requests come and go twice, with something small behind each that stays: how many MB do?
_LARGE_BLOCKS = """
import re, sys
import pyarrow as pa
from holdfast.operate.up import suit_a_gateway
suit_a_gateway()
def made_by_python():
    return b"x" * 4_000_000
def made_by_arrow():
    made = pa.allocate_buffer(4_000_000)
    memoryview(made).cast("B")[:] = b"x" * 4_000_000
    return made
make = made_by_arrow if sys.argv[1] == "arrow" else made_by_python
def held_mb():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024
before = held_mb()
small = []
for _ in range(2):
    large = []
    for _ in range(16):
        large.append(make())
        small.append(b"y" * 100_000)
    del large
print(held_mb() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has its own ways")
@pytest.mark.parametrize("maker", ["python", "arrow"])
def test_a_gateway_gives_large_blocks_back(maker: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LARGE_BLOCKS, maker],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert int(done.stdout) < 15
