"""Install clients that write lineage into build/clients, each in an environment of its own.

They are other people's programs, as users run them: dbt with OpenLineage's wrapper, and Airflow
with its provider. Tests run jobs with them; where one is not installed, its test is skipped. An
environment that is there and of the list below is left alone; one that cannot be made is reported
in one line, and the next is tried.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from install import ROOT, fast_installer, say, settings_of_pip

CLIENTS = {
    # From dbt-core 1.12 on, a part of it comes from outside of the package index.
    "dbt": ("dbt-core<1.12", "dbt-duckdb", "openlineage-dbt"),
    "airflow": ("apache-airflow", "apache-airflow-providers-openlineage"),
}
FOLDER = ROOT / "build" / "clients"
# Airflow brings more than a hundred packages.
SECONDS_MAX = 900.0


def main() -> int:
    """Install all of them, or the ones that are named."""
    for name in sys.argv[1:] or CLIENTS:
        folder = FOLDER / name
        stamp, wanted = folder / "installed.txt", "\n".join(CLIENTS[name])
        if stamp.exists() and stamp.read_text() == wanted:
            continue
        say(f"installing {name} into {folder.relative_to(ROOT)} …")
        if not install(folder, CLIENTS[name]):
            say(f"{name} is not to be had here, so its test is skipped; see {folder}/install.log")
            continue
        stamp.write_text(wanted)
    return 0


def install(folder: Path, packages: tuple[str, ...]) -> bool:
    """Make an environment with these packages; return whether it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    uv = fast_installer()
    options, certificates = settings_of_pip()
    command: list[str | Path] = [python, "-m", "pip", "install", *packages]
    if uv is not None:
        command = [uv, "pip", "install", "--python", python, *options, *packages]
    with (folder / "install.log").open("w") as log:
        try:
            done = subprocess.run(
                command,
                env={**os.environ, **certificates},
                stdout=log,
                stderr=log,
                timeout=SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
