"""A real Chromium without a window, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from tests.patience import PATIENCE_S, until_async

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WITHOUT_CHROMIUM = "chromium is not installed: `make setup-peers`"
# Messages beyond this are refused by the client; a screenshot is one message.
MESSAGE_BYTES_MAX = 64 * 1024 * 1024


# How long a browser may take to go by itself.
CLOSING_S = 5.0


class PageFailed(AssertionError):
    """A script raised in the page."""


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        # What the console says: errors of scripts, of the policy, of loading.
        self.errors: list[str] = []
        # What `confirm` asked; it is answered with yes.
        self.asked: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        """Stop listening to it."""
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def _read(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            else:
                self._hear(told["method"], told.get("params", {}))

    def _hear(self, method: str, about: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded.set()
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(about["exceptionDetails"])[:1000])
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning"):
            self.errors.append(json.dumps(about["args"])[:1000])
        elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")
        elif method == "Page.javascriptDialogOpening":
            self.asked.append(about["message"])
            self._send("Page.handleJavaScriptDialog", accept=True)

    def _send(self, method: str, **fields: Any) -> asyncio.Future[dict[str, Any]]:
        number = next(self._numbers)
        answer = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        task = self._socket.send_json({"id": number, "method": method, "params": fields})
        # Kept by the future, so that it is not collected before it is done.
        answer.sending = asyncio.ensure_future(task)  # type: ignore[attr-defined]
        return answer

    async def call(self, method: str, **fields: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        async with asyncio.timeout(PATIENCE_S):
            told = await self._send(method, **fields)
        assert "error" not in told, (method, told["error"])
        return dict(told["result"])

    async def open(self, url: str) -> None:
        """Go to a page, and wait until it is loaded."""
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(PATIENCE_S):
            await self._loaded.wait()
        # What was loaded may have been the page before, if a form had just led there.
        await self.until(
            f"location.href.split('#')[0] === new URL({url!r}).href.split('#')[0]"
            " && document.readyState === 'complete'"
        )

    async def run(self, script: str) -> Any:
        """Return the value of an expression; a promise is awaited."""
        told = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in told:
            raise PageFailed(json.dumps(told["exceptionDetails"])[:2000])
        return told["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true."""

        async def holds() -> bool:
            return bool(await self.run(script))

        try:
            await until_async(holds, script)
        except AssertionError as error:
            text = await self.run("document.body?.innerText")
            raise AssertionError(f"{error}\n{self.errors}\n{text}") from None

    async def screenshot(self, *, whole: bool = True) -> bytes:
        """Return the page as a PNG: from top to bottom, or what is seen of it."""
        told = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(told["data"])

    async def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Give the page a size and a colour scheme."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        await self.call("Emulation.setScrollbarsHidden", hidden=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])


@contextlib.asynccontextmanager
async def page() -> AsyncIterator[Page]:
    """Start a browser with one empty page."""
    assert CHROMIUM is not None, WITHOUT_CHROMIUM
    with tempfile.TemporaryDirectory(prefix="holdfast-chromium-", ignore_cleanup_errors=True) as at:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        quiet = [
            "--no-first-run",
            "--disable-background-networking",
            "--disable-sync",
            "--mute-audio",
        ]
        process = await asyncio.create_subprocess_exec(
            CHROMIUM,
            *flags,
            *quiet,
            "--remote-debugging-port=0",
            f"--user-data-dir={at}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _port_of(Path(at))
            async with aiohttp.ClientSession() as session:
                tabs = await (await session.get(f"http://127.0.0.1:{port}/json/list")).json()
                address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
                async with session.ws_connect(address, max_msg_size=MESSAGE_BYTES_MAX) as socket:
                    one = Page(socket)
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await one.call(f"{domain}.enable")
                    try:
                        yield one
                    finally:
                        with contextlib.suppress(AssertionError, TimeoutError):
                            await one.call("Browser.close")
                        await one.close()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSING_S):
                    await process.wait()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _port_of(folder: Path) -> int:
    """Wait until the browser says where it listens."""
    file = folder / "DevToolsActivePort"
    await until_async(lambda: file.exists() and "\n" in file.read_text(), "a browser")
    return int(file.read_text().splitlines()[0])
