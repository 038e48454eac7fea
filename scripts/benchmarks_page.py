"""Write measured figures into docs/benchmarks.md: `python scripts/benchmarks_page.py FILE…`.

The page is written by hand but for two columns: in every row that begins with the name of a figure,
median and spread are replaced by those of a file, the output of `holdfast bench NAME --json`. Which
benchmark a table is of is said by the comment `<!-- bench: NAME -->` before it or, where a table is
of several, by the row itself (`NAME.figure`). Rows whose figure is in none of the files stay as
they are, and are listed.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BENCH = re.compile(r"^<!-- bench: (?P<name>\w+) -->$")
ROW = re.compile(r"^\| `(?P<name>[\w.]+)` \|(?P<what>[^|]*)\|[^|]*\|[^|]*\|(?P<bar>[^|]*)\|$")


WITH_DIGITS_BELOW = 1000


def number(value: float) -> str:
    """Return a figure as people read it."""
    return f"{value:,.0f}" if abs(value) >= WITH_DIGITS_BELOW else f"{value:.4g}"


def refreshed(line: str, spreads: dict[str, dict[str, float]], left: list[str]) -> str:
    """Return a line of the page with the figures of this run."""
    row = ROW.match(line)
    if row is None:
        return line
    spread = spreads.get(row["name"])
    if spread is None:
        left.append(row["name"])
        return line
    median = number(spread["median"])
    quartiles = f"{number(spread['lower_quartile'])}, {number(spread['upper_quartile'])}"
    between = f"{number(spread['min'])} \N{EN DASH} {number(spread['max'])} (quartiles {quartiles})"
    if spread["rounds"] == 1:
        between = "one run"
    return f"| `{row['name']}` |{row['what']}| {median} | {between} |{row['bar']}|"


def main(files: list[str]) -> None:
    """Refresh the page."""
    found = [json.loads(Path(file).read_text()) for file in files]
    benches: dict[str, dict[str, dict[str, float]]] = {one["bench"]: one["spread"] for one in found}
    of_several = {
        f"{of}.{name}": spread for of, all_of in benches.items() for name, spread in all_of.items()
    }
    spreads = of_several
    left: list[str] = []
    lines = []
    for line in PAGE.read_text().splitlines():
        marked = BENCH.match(line)
        if marked:
            spreads = of_several | benches.get(marked["name"], {})
        lines.append(refreshed(line, spreads, left))
    PAGE.write_text("\n".join(lines) + "\n")
    sys.stderr.write(f"not in these files: {', '.join(left) or 'none'}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
