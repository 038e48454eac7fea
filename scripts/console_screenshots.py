"""Make the pictures of docs/guide/console.md: a gateway with traffic, looked at with Chromium."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.console.browser import page  # noqa: E402
from tests.console.running import RunningConsole, receiver  # noqa: E402
from tests.console.stored import make_store, using  # noqa: E402
from tests.graph.lineage import run_event  # noqa: E402
from tests.support.backend import HttpBackend  # noqa: E402

IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT = 1200, 760
JOBS = ("orders.load", "orders.clean", "customers.load", "daily_report")
SHOTS = (
    ("console-overview", "/", False, ".uplot canvas"),
    ("console-events", "/events?q=orders.load", False, ".timeline"),
    ("console-destination", "/destinations/datahub", True, "[name=reason]"),
    ("console-store", "/store", False, "select"),
)
# So that the charts have more than one point.
TRAFFIC_S = 45.0


def _nodes(up: str, down: str) -> dict[str, Any]:
    def http(url: str) -> dict[str, Any]:
        return {"kind": "exporter", "type": "http", "config": {"url": url}}

    return {
        "lineage": receiver("buffer"),
        "buffer": {"kind": "processor", "type": "quiver", "to": ["redact", "archive", "datahub"]},
        "redact": {
            "kind": "processor",
            "type": "redact",
            "config": {"paths": ["/job/facets"]},
            "to": ["marquez"],
        },
        "marquez": http(up),
        "datahub": http(down),
        "archive": {"kind": "exporter", "type": "files", "config": {"directory": "archive"}},
    }


async def _send(console: RunningConsole) -> None:
    """Send some events per second, a few of them broken."""
    ends_s = asyncio.get_running_loop().time() + TRAFFIC_S
    number = 0
    while asyncio.get_running_loop().time() < ends_s:
        event = run_event(job=JOBS[number % len(JOBS)])
        if number % 40 == 7:  # noqa: PLR2004
            del event["eventTime"]
        await asyncio.to_thread(console.send, json.dumps(event).encode())
        number += 1
        await asyncio.sleep(0.03)


async def _shoot(console: RunningConsole) -> None:
    async with page() as tab:
        sending = asyncio.create_task(_send(console))
        await tab.open(f"{console.address}/#token={console.token}")
        await asyncio.sleep(TRAFFIC_S / 2)
        for name, path, dark, what in SHOTS:
            await tab.resize(WIDTH, HEIGHT, dark=dark)
            await tab.open(f"{console.address}{path}")
            await tab.until(f"document.querySelector({what!r}) !== null")
            await asyncio.sleep(2.5)
            shot = await tab.screenshot(whole=False)
            await asyncio.to_thread((IMAGES / f"{name}.png").write_bytes, shot)
        await sending


def main() -> None:
    """Write the pictures."""
    IMAGES.mkdir(exist_ok=True)
    up, down = HttpBackend(), HttpBackend(503)
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-") as folder,
        RunningConsole(
            Path(folder),
            _nodes(up.url, down.url),
            pipelines=using(str(make_store(Path(folder) / "store"))),
        ) as console,
    ):
        asyncio.run(_shoot(console))
    up.close()
    down.close()


if __name__ == "__main__":
    main()
