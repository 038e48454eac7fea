"""Guides that are run: their snippets, with what is to be done with each, typed into one shell.

Comments that a reader does not see say what is to be done with the block that follows:

    run            typed into one shell, together with all others, in a folder of its own
    file: NAME     written to that file first

and what must be seen after it: `shows: TEXT`; `wait: COMMAND` waits until a command succeeds. A
guide may have further marks, which its test explains.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.patience import PATIENCE_S, until

_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[^>]*) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```\n"
    r"(?P<after>(?:<!-- (?:shows|wait): [^\n]* -->\n)*)",
    re.DOTALL,
)
_AFTER = re.compile(r"<!-- (shows|wait): (.*) -->")
_END = "=== end of a block ==="


@dataclass
class Block:
    """A snippet, and what is to be done with it."""

    mark: str
    language: str
    text: str
    shows: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)

    def script(self) -> str:
        """Return what is typed, and what is waited for afterwards."""
        return self.text + "".join(f"until {wait}; do sleep 0.1; done\n" for wait in self.waits)


def blocks(guide: Path) -> Iterator[Block]:
    for found in _BLOCK.finditer(guide.read_text()):
        after = _AFTER.findall(found["after"])
        yield Block(
            found["mark"] or "",
            found["language"],
            found["text"],
            [text for kind, text in after if kind == "shows"],
            [text for kind, text in after if kind == "wait"],
        )


@contextlib.contextmanager
def typed(folder: Path, scripts: list[str]) -> Iterator[list[str]]:
    """Type scripts into one shell; give what each printed, while what they started still runs.

    Fewer than there are scripts if one of them failed.
    """
    script, output = folder / "typed.sh", folder / "typed.out"
    whole = "".join(f"{one}echo '{_END}'\n" for one in scripts)
    script.write_text(f"set -e\n{whole}sleep infinity\n")
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "COLUMNS": "200"}
    with output.open("wb") as file:
        shell = subprocess.Popen(
            ["bash", str(script)],
            cwd=folder,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )
    try:
        until(
            lambda: output.read_text().count(_END) == len(scripts) or shell.poll() is not None,
            "the end of the guide",
            lambda: output.read_text() + logs_in(folder),
            patience_s=3 * PATIENCE_S,
        )
        yield output.read_text().split(f"{_END}\n")[:-1]
    finally:
        # Everything that was started in the background is in the shell's group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def logs_in(folder: Path) -> str:
    """Return what was logged by all that a guide started."""
    return "".join(path.read_text() for path in folder.glob("*.log"))
