"""Pages and documents over plain HTTP: what they say, and who gets what."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.console.running import RunningConsole, receiver
from tests.graph.lineage import run_event
from tests.patience import PATIENCE_S, until
from tests.support.backend import HttpBackend

from holdfast.console.access import ConsoleGate, token_of
from holdfast.console.app import StaticFiles
from holdfast.console.history import POINTS_MAX, SERIES_MAX, History
from holdfast.console.live import STREAMS_MAX
from holdfast.console.pages import API, SECTIONS

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = DOCS / "reference" / "http-api.md"
GUIDE = DOCS / "guide" / "console.md"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    folder = tmp_path_factory.mktemp("console")
    backend = HttpBackend()
    nodes = {
        "lineage": receiver("buffer"),
        "buffer": {"kind": "processor", "type": "quiver", "to": ["trim", "archive"]},
        "trim": {"kind": "processor", "type": "redact", "config": {"paths": ["/x"]}, "to": ["to"]},
        "to": {"kind": "exporter", "type": "http", "config": {"url": backend.url}},
        "archive": {"kind": "exporter", "type": "files", "config": {"directory": "archive"}},
    }
    with RunningConsole(folder, nodes) as running:
        assert running.send(*[json.dumps(run_event()).encode()] * 3, b"{}") == [200] * 3 + [400]
        until(lambda: running.get("/api/destinations/to").json().get("sent_events") == 3)
        yield running
    backend.close()


def test_the_overview_says_that_everything_adds_up(console: RunningConsole) -> None:
    until(lambda: '"waiting_events": 0' in console.get("/api/destinations/archive").body)
    page = console.get("/")
    assert page.status == 200
    assert "Every accepted event is accounted for. Nothing is lost." in page.body
    told = console.get("/api/overview").json()
    assert (told["accepted"], told["lost"], told["adds_up"]) == (3, 0, True)
    assert told["dead_letters"] == {"rejected": 1, "undelivered": 0}
    accounts = {one["name"]: one["account"] for one in told["readers"]}
    for name in ("to", "archive"):
        account = accounts[name]
        assert account["accepted"] == account["waiting"] + sum(account["outcomes"].values()) == 3


def test_the_graph_has_every_component_and_edge(console: RunningConsole) -> None:
    told = console.get("/api/graph").json()
    assert {one["name"] for one in told["nodes"]} == {"lineage", "buffer", "trim", "to", "archive"}
    edges = {(one["from"], one["to"]) for one in told["edges"]}
    assert edges == {
        ("lineage", "buffer"), ("buffer", "trim"), ("buffer", "archive"), ("trim", "to"),
    }  # fmt: skip
    page = console.get("/").body
    assert page.count('class="line"') == len(edges)


def test_every_page_is_there_and_has_no_inline_script_or_style(console: RunningConsole) -> None:
    for path in [*(path for path, _ in SECTIONS), "/destinations/to"]:
        page = console.get(path)
        assert page.status == 200, path
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|https?://(?!127)", page.body)
        for script in re.findall(r"<script([^>]*)>(.*?)</script>", page.body, re.DOTALL):
            assert "src=" in script[0]
            assert not script[1]
        for found in re.findall(r'(?:src|href)="(/static/[^"?]+)', page.body):
            assert StaticFiles().find(found) is not None, found
            assert console.get(found).status == 200


def test_every_answer_carries_the_policy(console: RunningConsole) -> None:
    for path in ("/", "/api/overview", "/static/console.js", "/nowhere", "/destinations/nobody"):
        headers = console.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy, path
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
        assert "set-cookie" not in headers


def test_errors_say_what_to_do(console: RunningConsole) -> None:
    gone = console.get("/destinations/nobody")
    assert gone.status == 400
    assert "there is no destination &#39;nobody&#39;" in gone.body
    assert "to" in console.get("/api/destinations/nobody").json()["hint"]
    assert console.get("/nowhere").status == 404
    assert console.request("POST", "/").status == 405
    # What others wrote is text in a page, never markup.
    assert "<b>" not in console.get("/destinations/%3Cb%3E").body


@pytest.mark.parametrize("path", ["/", "/api/overview", "/live", "/static/console.js"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "attacker.example"},
        {"Host": "127.0.0.1.attacker.example:80"},
        {"Host": ""},
        {"Origin": "http://attacker.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
    ],
)
def test_strangers_get_nothing(console: RunningConsole, path: str, headers: dict[str, str]) -> None:
    refused = console.get(path, **headers)
    assert refused.status == 403
    assert "accepted" not in refused.body


def test_probes_answer_under_any_name(console: RunningConsole) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        assert console.get(path, Host="gateway.namespace.svc:8480").status == 200


def test_a_link_from_elsewhere_may_lead_here(console: RunningConsole) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert console.get("/", **link, Sec_Fetch_Dest="document").status == 200
    assert console.get("/", **link, Sec_Fetch_Dest="iframe").status == 403


def test_names_of_the_configuration_are_ours() -> None:
    gate = ConsoleGate("token", ["holdfast.example.org"])

    def judged(host: str) -> str | None:
        return gate.stranger({"method": "GET", "headers": [(b"host", host.encode())]})

    for host in ("holdfast.example.org:443", "LOCALHOST", "[::1]:8480", "10.0.0.5:8480"):
        assert judged(host) is None, host
    assert "admin.hosts" in (judged("holdfast.example.com") or "")


def test_a_token_is_compared_whole() -> None:
    gate = ConsoleGate("right")

    def judged(*values: bytes) -> bool:
        return gate.has_token({"headers": [(b"authorization", value) for value in values]})

    assert judged(b"Bearer right")
    assert not any(
        [
            judged(),
            judged(b"right"),
            judged(b"Basic right"),
            judged(b"Bearer righ"),
            judged(b"Bearer \xff"),
            judged(b"Bearer right", b"Bearer right"),
        ]
    )


def test_the_token_is_its_owners_and_stays(console: RunningConsole, tmp_path: Path) -> None:
    assert stat.S_IMODE(console.token_file.stat().st_mode) == 0o600
    assert console.token_file.read_text().strip() == console.token
    assert token_of(tmp_path / "new") == token_of(tmp_path / "new")
    known = token_of(tmp_path)
    (tmp_path / "console.token").chmod(0o644)
    assert token_of(tmp_path) != known, "others could read it"
    assert stat.S_IMODE((tmp_path / "console.token").stat().st_mode) == 0o600


def test_live_ends_when_the_page_closes_its_side(console: RunningConsole) -> None:
    # It was streamed to until a write failed: a browser that went from page to page was soon
    # told that too many are open.
    with socket.create_connection(("127.0.0.1", console.port), timeout=PATIENCE_S) as page:
        page.sendall(b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert page.recv(1 << 16).startswith(b"HTTP/1.1 200")
        page.shutdown(socket.SHUT_WR)
        until(lambda: page.recv(1 << 16) == b"", "the end of the stream")


def test_live_sends_what_changes(console: RunningConsole) -> None:
    def stream() -> str:
        connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=PATIENCE_S)
        connection.request("GET", "/live")
        with contextlib.closing(connection), connection.getresponse() as answer:
            if answer.status == 503:
                return ""
            assert answer.getheader("content-type") == "text/event-stream"
            return "".join(answer.readline().decode() for _ in range(4))

    told = json.loads(stream().partition("data: ")[2])
    assert told["texts"]["accepted"] == "3"
    assert told["states"]["verdict"] == "good"
    # A page that was closed makes room for another.
    for _ in range(STREAMS_MAX + 1):
        until(lambda: stream() != "", "room for one more page")


def test_right_after_a_start_everything_is_there(tmp_path: Path) -> None:
    """The console is there before the destinations are, and looks at once."""
    nodes = {
        "lineage": receiver("buffer"),
        "buffer": {"kind": "processor", "type": "quiver", "to": ["archive"]},
        "archive": {"kind": "exporter", "type": "files", "config": {"directory": "archive"}},
    }
    with RunningConsole(tmp_path, nodes) as running:
        assert running.get("/api/destinations/archive").status == 200


def test_an_hour_is_kept_and_no_more() -> None:
    history = History()
    for step in range(POINTS_MAX + 5):
        history.add(step, {"a": step, **({"late": 1.0} if step > POINTS_MAX else {})})
    assert len(history.times_s()) == POINTS_MAX
    assert history.times_s()[-1] == history.series()["a"][-1] == POINTS_MAX + 4
    assert history.times_s() == sorted(history.times_s())
    assert history.series()["late"][:-4] == [None] * (POINTS_MAX - 4)
    history.add(0, {str(number): 1.0 for number in range(2 * SERIES_MAX)})
    assert len(history.series()) == SERIES_MAX


def test_the_reference_lists_every_document(console: RunningConsole) -> None:
    page = REFERENCE.read_text()
    assert [path for path in API if f"GET {path}" not in page] == []
    assert console.get("/api/").json()["documents"] == list(API)


def test_the_guide_reads_the_figures_of_a_program(
    console: RunningConsole, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert "http://127.0.0.1:8480" in code
    exec(code.replace("http://127.0.0.1:8480", console.address), {})
    assert capsys.readouterr().out == "3 events accepted, 0 lost\n"


def test_a_gateway_without_a_console_loads_none_of_it(tmp_path: Path) -> None:
    code = """
import sys
import holdfast.operate.up, holdfast.operate.supervisor
assert not [name for name in sys.modules if name.startswith("holdfast.console")]
import holdfast.console.app
assert "jinja2" not in sys.modules, "a console that nobody looks at has loaded its templates"
assert not [name for name in sys.modules if name.startswith("holdfast.store")]
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
