"""Install Holdfast, with some of its extras, into `.venv`: quickly, quietly, with pip as a way out.

    python scripts/install.py EXTRA [STAMP]

A first look must not begin with minutes of an installer's output. uv resolves and unpacks in
seconds what takes pip minutes; where it is not on the PATH, pip fetches it into the environment.
Where packages come from is the machine's business: uv does not read pip's settings, so those that
say where to look are handed over. If uv fails nevertheless, pip does the work as it always did.
Everything that they print is in `.venv/install.log`, and is shown when it is of interest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
CONSTRAINTS = ROOT / "constraints.txt"
LOG = VENV / "install.log"
PYTHON_MIN = (3, 11)
LOG_LINES_SHOWN = 40
# What pip calls it (its last word is left out), and the option of uv.
OPTIONS = {
    "index": "--default-index",
    "extra-index": "--index",
    "find": "-f",
    "trusted": "--allow-insecure-host",
}


def main() -> int:
    """Bring the environment up to date."""
    if sys.version_info < PYTHON_MIN:
        found = ".".join(map(str, sys.version_info[:2]))
        say(f"Holdfast needs Python 3.11 or newer, and this is {found}.")
        say("Name another one: make PYTHON=python3.12 …")
        return 1
    extra = sys.argv[1]
    started_s = time.monotonic()
    say(f"installing what `{extra}` needs into .venv …")
    uv = fast_installer()
    environment = dict(os.environ)
    # Also for the environment in which the package is built: pip's two names of the setting.
    environment |= {"PIP_CONSTRAINT": str(CONSTRAINTS), "PIP_BUILD_CONSTRAINT": str(CONSTRAINTS)}
    what = ["--editable", f"{ROOT}[{extra}]"]
    done = False
    if uv is not None:
        constraints = ["--constraints", CONSTRAINTS, "--build-constraints", CONSTRAINTS]
        options, certificates = settings_of_pip()
        command = [uv, "pip", "install", "--python", PYTHON, *options, *constraints, *what]
        done = ran(command, environment | certificates)
    if not done:
        say("uv is not to be had here; pip takes a few minutes …")
        done = ran([PYTHON, "-m", "ensurepip"]) if not has_pip() else True
        done = done and ran([PYTHON, "-m", "pip", "install", *what], environment)
    if not done:
        lines = LOG.read_text(errors="replace").splitlines()
        sys.stderr.write("\n".join(lines[-LOG_LINES_SHOWN:]) + "\n")
        say(f"the installation failed; all of its output is in {LOG}")
        return 1
    for stamp in sys.argv[2:]:
        (VENV / stamp).touch()
    say(f"installed in {time.monotonic() - started_s:.0f} s")
    return 0


def say(line: str) -> None:
    sys.stderr.write(f"holdfast: {line}\n")


def fast_installer() -> str | None:
    """Make the environment, and return where uv is; None if there is none to be had."""
    uv = shutil.which("uv")
    if not PYTHON.exists():
        VENV.mkdir(exist_ok=True)
        made = uv is not None and ran(
            [uv, "venv", "--allow-existing", "--python", sys.executable, VENV]
        )
        if not made:
            subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    if uv is not None:
        return uv
    own = PYTHON.with_name("uv.exe" if os.name == "nt" else "uv")
    if own.exists() or (has_pip() and ran([PYTHON, "-m", "pip", "install", "uv"])):
        return str(own)
    return None


def has_pip() -> bool:
    return ran([PYTHON, "-c", "import pip"])


def settings_of_pip() -> tuple[list[str], dict[str, str]]:
    """Return where pip would look for packages, as options and variables of uv."""
    python = str(PYTHON) if has_pip() else sys.executable
    listed = subprocess.run(
        [python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    values = {}
    # In pip's own order: the environment after its files.
    for line in sorted(listed.stdout.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        values[name.rpartition(".")[2]] = value.strip().strip("'\"").replace("\\n", " ").split()
    options = []
    for name, words in values.items():
        option = OPTIONS.get(name.rpartition("-")[0])
        options += [part for word in words for part in (option, word) if option is not None]
    certificates = {"SSL_CERT_FILE": values["cert"][0]} if values.get("cert") else {}
    return [part for part in options if part is not None], certificates


def ran(command: list[str | Path], environment: dict[str, str] | None = None) -> bool:
    """Run something, with its output in the log."""
    with LOG.open("a") as log:
        log.write(f"$ {' '.join(map(str, command))}\n")
        log.flush()
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, check=False
        )
    return ended.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
