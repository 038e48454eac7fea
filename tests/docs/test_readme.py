"""The README's examples run as printed, on the base install's own modules."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_examples_run_as_printed_one_after_the_other(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(examples())],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "bundle 0 with 2 events is safe" in result.stdout
    assert "[{'service': 'checkout', 'ms': 12.5}, {'service': 'cart', 'ms': 3.1}]" in result.stdout
    assert result.stdout.endswith("0 2\n1 1\nTrue\n")


def test_the_readme_names_both_commands_and_ci_runs_one_of_them() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
    assert "make test" in (ROOT / ".ci" / "run").read_text()
