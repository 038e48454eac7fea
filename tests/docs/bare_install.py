"""What `pip install .` gives, or with some extras, without waiting for pip.

A folder of links to the packages that the installation is made of, for an interpreter that is
started without its site-packages. What the tests' own environment has besides cannot be imported.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parents[2]
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(\[(?P<extras>[^]]*)\])?(?P<rest>.*)")


def make_install(folder: Path, *extras: str) -> None:
    """Fill a folder with Holdfast and what it needs; nothing else is to be found there."""
    folder.mkdir()
    for package in (ROOT / "src").iterdir():
        (folder / package.name).symlink_to(package)
    for one in _closure(distribution("holdfast"), set(extras), set()):
        for top in _tops(one):
            source = Path(str(one.locate_file(top)))
            if source.exists() and not (folder / top).exists():
                (folder / top).symlink_to(source)


COMMAND = "import sys; sys.argv[0] = 'holdfast'; from holdfast.operate.cli import main; main()"


def run_command(
    install: Path, *words: str, cwd: Path, code: str = COMMAND, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `holdfast …` (or other code) with that installation alone."""
    return subprocess.run(
        [sys.executable, "-S", "-c", code, *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        input=given,
        check=False,
        env={"PYTHONPATH": str(install), "PATH": "/usr/bin:/bin", "HOME": str(cwd)},
    )


def _closure(one: Distribution, extras: set[str], seen: set[str]) -> Iterator[Distribution]:
    for requirement in one.requires or ():
        name, wanted = _wanted(requirement, extras)
        key = re.sub(r"[-_.]+", "-", name).lower()
        if wanted is None or f"{key}{sorted(wanted)}" in seen:
            continue
        seen.add(f"{key}{sorted(wanted)}")
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # for another system
        if key != "holdfast":
            yield found
        yield from _closure(found, wanted, seen)


def _wanted(requirement: str, extras: set[str]) -> tuple[str, set[str] | None]:
    """Return what a requirement names, and its extras; None for these if it does not apply."""
    text, _, marker = requirement.partition(";")
    match = _REQUIREMENT.match(text.strip())
    assert match is not None, requirement
    asked = re.findall(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
    if asked and not extras.intersection(asked):
        return match["name"], None
    return match["name"], {name.strip() for name in (match["extras"] or "").split(",") if name}


def _tops(one: Distribution) -> set[str]:
    tops = {file.parts[0] for file in one.files or ()}
    return {top for top in tops if top not in ("..", "__pycache__")}
