"""The page that names the modules which one event passes: `scripts/walk.py` sees the same ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
_SECTION = re.compile(r"^## One event, module by module\n(.*?)^## ", re.DOTALL | re.MULTILINE)
_MODULE = re.compile(r"^\| `([\w.]+)` \|", re.MULTILINE)


def test_the_page_names_the_modules_that_an_event_passes() -> None:
    section = _SECTION.search((ROOT / "ARCHITECTURE.md").read_text())
    assert section is not None
    named = _MODULE.findall(section[1])
    # In a process of its own: threads of other tests would be counted, too.
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "walk.py"],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    passed = set(seen["way"])
    # What also runs without an event is called by a timer, or was on its way when it was counted.
    perhaps = {*seen["sometimes"], *seen["idle"]}
    assert len(named) == len(set(named))
    assert passed - set(named) - perhaps == set(), "add these to the tables in ARCHITECTURE.md"
    assert set(named) - passed - perhaps == set(), "remove these from them"
