"""The console in a real browser: every page and action, no error, nothing that bars people."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.console.browser import CHROMIUM, WITHOUT_CHROMIUM, Page, page
from tests.console.running import RunningConsole, receiver
from tests.console.stored import make_store, using
from tests.graph.lineage import run_event
from tests.patience import until
from tests.support.backend import HttpBackend

from holdfast.console.pages import SECTIONS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=WITHOUT_CHROMIUM),
]

ROOT = Path(__file__).parents[2]
AXE = ROOT / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
WITHOUT_AXE = "axe-core is not installed: `make setup-axe`"
WIDTHS = (380, 768, 1600)
JOB = "load_orders"


@pytest.fixture
def backend() -> Iterator[HttpBackend]:
    one = HttpBackend()
    yield one
    one.close()


@pytest.fixture
def console(tmp_path: Path, backend: HttpBackend) -> Iterator[RunningConsole]:
    """A gateway that has delivered, rejected, has an undelivered letter, and names a store."""
    to = {
        "kind": "exporter",
        "type": "http",
        "config": {"url": backend.url},
        "delivery": {"retry_max": "50ms"},
    }
    archive = {"kind": "exporter", "type": "files", "config": {"directory": "archive"}}
    buffer = {"kind": "processor", "type": "quiver", "to": ["to", "archive"]}
    nodes = {"lineage": receiver("buffer"), "buffer": buffer, "to": to, "archive": archive}
    make_store(tmp_path / "store", many=3)
    with RunningConsole(tmp_path, nodes, pipelines=using("store")) as running:
        event = json.dumps(run_event(job=JOB)).encode()
        broken = json.dumps({**run_event(job=JOB), "eventTime": "yesterday"}).encode()
        assert running.send(event, event, broken) == [200, 200, 400]
        until(lambda: len(backend.events) == 2)
        backend.status = 400
        assert running.send(event) == [200]
        until(lambda: "undelivered" in running.get("/api/dead-letters", token=running.token).body)
        backend.status = 200
        yield running


async def click(tab: Page, words: str) -> None:
    """Click the button with these words, as a person sees them."""
    await tab.until(
        f"[...document.querySelectorAll('button')].some(b => b.innerText.trim() === {words!r}"
        " && !b.disabled)"
    )
    await tab.run(
        f"[...document.querySelectorAll('button')].find(b => b.innerText.trim() === {words!r})"
        ".click()"
    )


async def says(tab: Page, text: str) -> None:
    """Wait until the page says something; between two pages there is no body."""
    await tab.until(f"document.body?.innerText.includes({text!r})")


def test_every_page_at_every_width_without_an_error(console: RunningConsole) -> None:
    async def look() -> None:
        async with page() as tab:
            await tab.open(f"{console.address}/#token={console.token}")
            # The token stays in no address, and nowhere but in this tab.
            await tab.until("location.hash === '' && sessionStorage.getItem('holdfast-token')")
            assert await tab.run("document.cookie + localStorage.length") == "0"
            for path in [*(path for path, _ in SECTIONS), "/destinations/to", f"/events?q={JOB}"]:
                for width in WIDTHS:
                    await tab.resize(width, 900, dark=width == WIDTHS[0])
                    await tab.open(f"{console.address}{path}")
                    await says(tab, "live")
                    if path.startswith("/events?"):
                        await says(tab, "to: acked")
                    if path == "/store":
                        await says(tab, "made reports/2")
                    if path == "/":
                        await tab.until("document.querySelector('.uplot canvas') !== null")
                    # Wide tables scroll inside of the page, never the page itself.
                    assert await tab.run("document.documentElement.scrollWidth") <= width, path
                    await bars_nobody(tab, path)
            assert tab.errors == []

    asyncio.run(look())


def test_a_store_is_browsed_and_compared(console: RunningConsole) -> None:
    async def look() -> None:
        async with page() as tab:
            await tab.resize(WIDTHS[0], 900, dark=False)
            await tab.open(f"{console.address}/#token={console.token}")
            await tab.open(f"{console.address}/store")
            await says(tab, "made reports/2")
            await click(tab, "reports/2")
            await says(tab, "caf\\xe9")
            await click(tab, "daily/")
            await says(tab, "<b>new.csv")
            await bars_nobody(tab, "the files of a commit")
            await click(tab, "all")
            await says(tab, "a.csv")
            await tab.run("document.getElementById('old-0').value = 'reports/1'")
            await tab.run("document.getElementById('new-0').value = 'reports/2'")
            await click(tab, "Compare")
            await says(tab, "From reports/1 to reports/2")
            await says(tab, "daily/old.csv")
            assert await tab.run("document.documentElement.scrollWidth") <= WIDTHS[0]
            await bars_nobody(tab, "what differs")
            assert tab.errors == []

    asyncio.run(look())


async def bars_nobody(tab: Page, path: str) -> None:
    """Let axe look at the page, where it is installed."""
    if not AXE.exists():
        return
    # A part that is being loaded is pale for that moment.
    await tab.until("document.querySelector('.htmx-request') === null")
    await tab.run(AXE.read_text() + "; true")
    found = await tab.run(
        "axe.run().then(r => r.violations.filter(v => ['serious', 'critical'].includes(v.impact))"
        ".map(v => v.id + ': ' + v.nodes.map(n => n.target.join(' ')).join(', ')))"
    )
    assert found == [], path


def test_the_accessibility_of_pages_is_checked() -> None:
    if not AXE.exists():
        pytest.skip(WITHOUT_AXE)


def test_figures_change_while_one_looks(console: RunningConsole) -> None:
    async def look() -> None:
        async with page() as tab:
            await tab.open(console.address)
            await tab.until("document.querySelector('[data-live=accepted]').innerText === '3'")
            event = json.dumps(run_event(job=JOB)).encode()
            await asyncio.to_thread(console.send, event, event)
            await tab.until("document.querySelector('[data-live=accepted]').innerText === '5'")
            assert tab.errors == []

    asyncio.run(look())


def test_every_action(console: RunningConsole, backend: HttpBackend) -> None:
    async def act() -> None:
        async with page() as tab:
            # Without the token the page asks for it, and an action does nothing.
            await tab.open(f"{console.address}/destinations/to")
            await click(tab, "Pause")
            await tab.until("document.getElementById('unlock').open")
            assert console.get("/api/destinations/to").json()["state"] == "running"
            await tab.run(f"document.getElementById('token').value = {console.token!r}")
            await tab.run("document.querySelector('#unlock form').requestSubmit()")
            tab.errors.clear()  # the browser logs the 401 itself

            await click(tab, "Pause")
            await says(tab, "to is paused.")
            await tab.until(
                "document.querySelector('[data-live=\"dest:to:state\"]').innerText === 'paused'"
            )
            await click(tab, "Resume")
            await says(tab, "to is resumed.")
            await click(tab, "Look")
            await says(tab, "Nothing has passed since the tap was opened.")
            event = json.dumps(run_event(job="through_the_tap")).encode()
            await asyncio.to_thread(console.send, event)
            await until_clicked(tab, "Look", "through_the_tap")

            await skip(tab, console, backend)
            await redrive_correct_and_purge(tab)
            assert tab.errors == []

    asyncio.run(act())
    left = console.get("/api/dead-letters", token=console.token).json()["letters"]
    assert left == []


async def until_clicked(tab: Page, words: str, text: str) -> None:
    """Click again until the page says it: a tap shows what passed before it was looked at."""
    while not await tab.run(f"document.body?.innerText.includes({text!r})"):
        await click(tab, words)
        await asyncio.sleep(0.1)


async def skip(tab: Page, console: RunningConsole, backend: HttpBackend) -> None:
    """Skip the event that holds the destination up."""
    backend.status = 500
    held = json.dumps(run_event(job="held_up")).encode()
    await asyncio.to_thread(console.send, held)
    await asyncio.to_thread(
        until, lambda: console.get("/api/destinations/to").json()["held"], "held"
    )
    await tab.open(f"{console.address}/destinations/to")
    await tab.run("document.querySelector('[name=reason]').value = 'a test'")
    await click(tab, "Skip it")
    await says(tab, "is a dead letter now.")
    assert tab.asked[-1].startswith("Never deliver event")
    backend.status = 200


async def redrive_correct_and_purge(tab: Page) -> None:
    """Decide every letter there is: two undelivered, one rejected."""
    await tab.run("location.pathname = '/dead-letters'")
    await tab.until("document.querySelectorAll('#letters .link').length === 3")
    await tab.run(
        "[...document.querySelectorAll('button')].find("
        "b => b.getAttribute('aria-label') === 'Redrive all permanent of to').click()"
    )
    await says(tab, "Redriven: delivered 1.")
    await tab.until("document.querySelectorAll('#letters .link').length === 2")
    await click_letter(tab, "undelivered")
    await tab.run("document.getElementById('why').value = 'a test'")
    await click(tab, "Purge")
    await says(tab, "1 dead letter given up.")
    await tab.until("document.querySelectorAll('#letters .link').length === 1")
    await click_letter(tab, "rejected")
    await tab.run(
        "document.getElementById('payload').value = document.getElementById('payload').value"
        ".replace('yesterday', '2026-11-15T10:00:00.000Z')"
    )
    await click(tab, "Submit the corrected event")
    await says(tab, "and is resolved.")
    await says(tab, "There are no dead letters.")


async def click_letter(tab: Page, store: str) -> None:
    """Open the first letter of a store."""
    await tab.run(
        "[...document.querySelectorAll('#letters .link')]"
        f".find(b => b.innerText.startsWith({store!r})).click()"
    )
    await tab.until(f"document.getElementById('letter-title')?.innerText.startsWith({store!r})")


def test_a_page_of_another_origin_sees_and_changes_nothing(console: RunningConsole) -> None:
    class Attacker(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<!doctype html><title>attacker</title>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    async def attack(port: int) -> None:
        async with page() as tab:
            await tab.open(f"http://127.0.0.1:{port}/")
            for path in ("/api/overview", "/live", f"/api/events?q={JOB}"):
                seen = await tab.run(
                    f"fetch('{console.address}{path}').then(r => r.text(), e => 'refused')"
                )
                assert seen == "refused", path
            # Even one that knows the token may not use it.
            for mode in ("cors", "no-cors"):
                await tab.run(
                    f"fetch('{console.address}/actions/destinations/to/pause', {{method: 'POST',"
                    f" mode: '{mode}', headers: {{Authorization: 'Bearer {console.token}'}}}})"
                    ".then(r => r.type, e => 'refused')"
                )
            await tab.run(
                "(() => { const f = document.createElement('form'); f.method = 'post';"
                f"f.action = '{console.address}/actions/destinations/to/pause';"
                "document.body.append(f); f.submit(); })()"
            )
            await says(tab, "a page of another origin asked")
            await tab.open(f"http://127.0.0.1:{port}/")
            await tab.run(
                "new Promise(done => { const f = document.createElement('iframe');"
                f"f.src = '{console.address}/'; f.onload = done; document.body.append(f); }})"
            )
            text = await tab.run("document.querySelector('iframe').contentDocument === null")
            assert text, "it is shown inside of another page"
        assert console.get("/api/destinations/to").json()["state"] == "running"

    server = ThreadingHTTPServer(("127.0.0.1", 0), Attacker)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        asyncio.run(attack(server.server_port))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
