"""What holds for every test: bytecode is kept, how hard hypothesis tries, no process is left."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.patience import SCALE

# Without bytecode beside the sources, every process that a test starts compiles all it imports
# again (1.3 s of a gateway's start), and pytest rewrites every test file (17 s). Containers often
# switch it off, to keep their image small; here it is on, for this process and for its children.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Where quick tests write: a sync costs nothing there, and a third of their time on a disk. That it
# is made, and before what, the simulated disk shows; the slow tests make theirs on the disk.
MEMORY = Path("/dev/shm")
# More than all tests together leave there. Containers often have 64 MB.
ROOM_BYTES = 2 * 1024**3

IN_CI = os.environ.get("CI") == "true"

THOROUGH = os.environ.get("HOLDFAST_THOROUGH") == "1"

# How many examples of a property are tried: few where slow tests are left out, as many as
# hypothesis tries by itself where they are not, and very many on demand. No deadlines anywhere: a
# busy machine is not a bug. In CI the same code must give the same verdict, so the examples are
# derived from the test alone.
for name, examples in {"few": 20, "usual": 100, "thorough": 5_000}.items():
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        derandomize=IN_CI and not THOROUGH,
        print_blob=True,
        # Where much else runs, the first example alone may take minutes.
        suppress_health_check=[HealthCheck.too_slow],
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples are tried, before a test file is read, and where tests write."""
    is_quick = "not slow" in config.option.markexpr
    settings.load_profile("thorough" if THOROUGH else "few" if is_quick else "usual")
    if is_quick and can_hold_tests(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def can_hold_tests(folder: Path) -> bool:
    """Return whether there is room, and programs may be run there: some tests install one."""
    if not folder.is_dir():
        return False
    told = os.statvfs(folder)
    return told.f_bavail * told.f_frsize > ROOM_BYTES and not told.f_flag & os.ST_NOEXEC


# Folders whose tests start Spark, gateways and other processes: few tests, and long ones.
LONG = ("dataflow", "prove", "bench", "gateway", "docs", "operate")
# A file of so few tests is likely one that tries many examples.
FEW = 2


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the long files, and scale what a test may take (tests/patience.py).

    A file goes to one process as a whole (`--dist loadfile`): a long one that comes last would be
    all that runs then.
    """
    if not THOROUGH:
        thin_out(items)
    tests_of = Counter(item.path for item in items)

    def rank(item: pytest.Item) -> tuple[bool, int, str]:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        is_long = folder in LONG or tests_of[item.path] <= FEW
        return not is_long, -tests_of[item.path], str(item.path)

    items.sort(key=rank)
    if SCALE == 1:
        return
    for item in items:
        mark = item.get_closest_marker("timeout")
        most_s = float(mark.args[0] if mark is not None else config.getini("timeout") or 0)
        item.add_marker(pytest.mark.timeout(most_s * SCALE), append=False)


def thin_out(items: list[pytest.Item]) -> None:
    """Mark as slow all but every n-th cell of a test that is marked `thinned(n)`."""
    seen: Counter[str] = Counter()
    for item in items:
        if (mark := item.get_closest_marker("thinned")) is not None:
            test, _, _ = item.nodeid.partition("[")
            if seen[test] % mark.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[test] += 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give the few quick tests that need Spark to one process: a second session costs 20 s.

    With the slow ones they are many, and every process gets its share.
    """
    if config.getvalue("dist") != "loadfile" or "not slow" not in config.option.markexpr:
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class SparkTogether(LoadFileScheduling):  # type: ignore[misc]  # xdist is not typed
        def _split_scope(self, nodeid: str) -> str:
            path: str = super()._split_scope(nodeid)
            return "spark" if needs_spark(config.rootpath / path) else path

    return SparkTogether(config, log)


@cache
def needs_spark(path: Path) -> bool:
    """Return whether a test file asks for the session of tests/dataflow/conftest.py."""
    return "spark: SparkSession" in path.read_text()


# How long a child that is already on its way out may take. Waited for only when there is one.
CHILD_GRACE_S = 5.0 * SCALE


@pytest.fixture(autouse=True)
def no_process_left_behind() -> Iterator[None]:
    """Fail a test that leaves a child process running or unreaped, and end that process.

    Children of wider fixtures are there before the test and may stay. Fixtures of the test itself
    are torn down before this one looks.
    """
    before = child_pids()
    yield
    left = child_pids() - before
    give_up_at_s = time.monotonic() + CHILD_GRACE_S
    while left and time.monotonic() < give_up_at_s:
        time.sleep(0.02)
        left = child_pids() - before
    if left:
        commands = [f"{pid} ({command_of(pid)})" for pid in sorted(left)]
        for pid in left:
            end_child(pid)
        pytest.fail(f"the test left child processes behind: {', '.join(commands)}", pytrace=False)


def child_pids() -> set[int]:
    """Return the children of this process, without those that multiprocessing keeps for itself."""
    if not sys.platform.startswith("linux") or not has_children():
        return set()
    pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    kept = {
        getattr(resource_tracker, "_resource_tracker")._pid,  # noqa: B009
        getattr(forkserver, "_forkserver")._forkserver_pid,  # noqa: B009
    }
    return {pid for pid in pids if parent_of(pid) == os.getpid()} - kept


def has_children() -> bool:
    """Ask the kernel with one call, because most tests start no process."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def parent_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None  # It ended between the listing and now.
    # The second field, the command in parentheses, may hold anything; the fourth is the parent.
    return int(stat[stat.rindex(b")") + 1 :].split()[1])


def command_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode(errors="replace").split("\0")
    except OSError:
        words = []
    return " ".join(words).strip() or "ended, never waited for"


def end_child(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # Somebody else was quicker.
