"""Record `holdfast demo` in a real terminal, and draw the recording as docs/demo.svg.

    python scripts/recording.py                # runs the demo; some minutes
    python scripts/recording.py RECORDING      # draws what was recorded before

A recording is an asciicast (a line of settings, then lines of `[seconds, "o", text]`), which
`asciinema play` plays as well. The drawing is an SVG whose frames take turns by CSS alone, since
that is what a README may show. Nothing is drawn that the terminal did not say; only long waits are
cut short.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from fcntl import ioctl
from html import escape
from itertools import groupby, pairwise
from pathlib import Path
from termios import TIOCSWINSZ
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
CAST = ROOT / "build" / "demo.cast"
DRAWING = ROOT / "docs" / "demo.svg"
COLUMNS, LINES = 96, 40
# A picture stays this long at least, and at most; the last one longer.
FRAME_S = (0.5, 1.6)
LAST_S = 6.0
# Of those under one title, which differ by their figures.
TITLE_FRAMES_MAX = 4
SIZE_BYTES_MAX = 300_000
CHARACTER_PX, LINE_PX, MARGIN_PX = 7.8, 17, 14
# How rich takes back what it drew: up to its first line, each line emptied.
_REDRAWN = re.compile(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*")
_CURSOR = re.compile(r"\x1b\[\?25[lh]")


class Frame(NamedTuple):
    """What the screen showed, and when it began to."""

    at_s: float
    text: str


def main() -> int:
    """Record if need be, and draw."""
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else CAST
    if len(sys.argv) == 1:
        record(given)
    drawn = draw(list(frames(given)))
    if len(drawn.encode()) > SIZE_BYTES_MAX:
        raise SystemExit(f"the drawing has {len(drawn):,} characters: fewer frames, please")
    DRAWING.write_text(drawn)
    return 0


def record(cast: Path) -> None:
    """Run the demo in a terminal of its own, and write down what it prints, and when."""
    ours, its = pty.openpty()
    ioctl(its, TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    command = [sys.executable, "-m", "holdfast", "demo"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": ""}
    cast.parent.mkdir(parents=True, exist_ok=True)
    child = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment)
    os.close(its)
    began_s = time.monotonic()
    with cast.open("w") as file:
        file.write(json.dumps({"version": 2, "width": COLUMNS, "height": LINES}) + "\n")
        for text in _printed(ours, child):
            file.write(json.dumps([round(time.monotonic() - began_s, 3), "o", text]) + "\n")
    os.close(ours)
    if child.wait() != 0:
        raise SystemExit(f"the demo ended with {child.returncode}; see {cast}")


def _printed(terminal: int, child: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield what comes, until the demo has ended and all is read."""
    while True:
        if not select.select([terminal], [], [], 0.2)[0]:
            if child.poll() is not None:
                return
            continue
        try:
            found = os.read(terminal, 65536)
        except OSError:
            return  # the last one to write has closed it
        if not found:
            return
        yield found.decode("utf-8", "replace")


# ---------------------------------------------------------------------------- drawing


def frames(cast: Path) -> Iterator[Frame]:
    """Yield the pictures of a recording: a few under each title, and what the end printed."""
    whole: list[Frame] = []
    text, at_s = "", 0.0
    for line in cast.read_text().splitlines()[1:]:
        at_s, _, said = json.loads(line)
        *finished, rest = _REDRAWN.split(text + _CURSOR.sub("", said))
        whole += [Frame(at_s, one) for one in finished if one.strip()]
        text = rest
    for _, same in groupby(whole, key=_title):
        shown = list(same)
        yield from shown[:: -(-len(shown) // TITLE_FRAMES_MAX)]
    # The tables of the end are longer than a screen: by halves, as one would scroll.
    rows = text.split("\n")
    for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        yield Frame(at_s, "\n".join(part))


def _title(frame: Frame) -> str:
    return frame.text.lstrip().partition("\n")[0]


def draw(found: list[Frame]) -> str:
    """Return the drawing."""
    waits = [
        min(max(later.at_s - one.at_s, FRAME_S[0]), FRAME_S[1]) for one, later in pairwise(found)
    ]
    waits[-1:] = [LAST_S, LAST_S]
    whole_s = sum(waits)
    lines_max = max(len(_screen(one)) for one in found)
    width = COLUMNS * CHARACTER_PX + 2 * MARGIN_PX
    height = lines_max * LINE_PX + 2 * MARGIN_PX
    parts, rules, at_s = [], [], 0.0
    for number, (one, wait_s) in enumerate(zip(found, waits, strict=True)):
        start, end = 100 * at_s / whole_s, 100 * (at_s + wait_s) / whole_s
        rules.append(
            f"@keyframes f{number}{{0%,{start:.2f}%{{visibility:hidden}}"
            f"{start + 0.01:.2f}%,{end:.2f}%{{visibility:visible}}"
            f"{min(100, end + 0.01):.2f}%,100%{{visibility:hidden}}}}"
            f"#f{number}{{animation:f{number} {whole_s:.1f}s step-end infinite}}"
        )
        parts.append(f'<g id="f{number}">{"".join(_rows(one))}</g>')
        at_s += wait_s
    # Whoever wants no motion sees how it ends.
    still = (
        "@media(prefers-reduced-motion:reduce){g{animation:none!important;visibility:hidden}"
        f"#f{len(found) - 1}{{visibility:visible!important}}}}"
    )
    style = (
        "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        "fill:#d8dee3;white-space:pre}.b{font-weight:700}.g{fill:#7fd09b}.r{fill:#f2938c}"
        ".d{fill:#8b989f}g{visibility:hidden}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">'
        "<title>holdfast demo: processes are killed, and nothing accepted is lost</title>"
        f"<style>{style}{''.join(rules)}{still}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="#12191c"/>{"".join(parts)}</svg>\n'
    )


def _screen(frame: Frame) -> list[Text]:
    """Return the lines that the terminal showed, the last of them if there were more."""
    text = Text.from_ansi(frame.text.replace("\r", ""))
    lines = [
        row
        for line in text.split("\n", allow_blank=True)
        for row in line.divide(range(COLUMNS, line.cell_len, COLUMNS))
    ]
    while lines and not lines[-1].plain.strip():
        lines.pop()
    return lines[-LINES:]


def _rows(frame: Frame) -> Iterator[str]:
    console = Console(width=COLUMNS, color_system="standard", force_terminal=True)
    for row, line in enumerate(_screen(frame)):
        x, y = MARGIN_PX, MARGIN_PX + (row + 1) * LINE_PX - 4
        pieces = []
        for segment in line.render(console):
            if not segment.text.strip():
                pieces.append(segment.text)
                continue
            kind = _classes(segment.style)
            said = escape(segment.text, quote=False)
            pieces.append(f'<tspan class="{kind}">{said}</tspan>' if kind else said)
        body = "".join(pieces).rstrip()
        if body:
            length = line.cell_len * CHARACTER_PX
            place = f'x="{x}" y="{y}" textLength="{length:.0f}"'
            yield f'<text {place} xml:space="preserve">{body}</text>'


def _classes(style: object) -> str:
    name = str(style)
    found = {"bold": "b", "color(2)": "g", "color(1)": "r", "dim": "d", "italic": "d"}
    return " ".join(short for word, short in found.items() if word in name and "not " not in name)


if __name__ == "__main__":
    sys.exit(main())
