"""What a newcomer types first: init, up, send, status, top, report."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.graph.lineage import run_event
from tests.operate.processes import GatewayFolder
from tests.patience import until
from tests.support.backend import HttpBackend

from holdfast.errors import Overloaded
from holdfast.graph.loader import load
from holdfast.operate.cli import cli
from holdfast.operate.cli.base.cases import CASES, DEFAULT_FILE
from holdfast.operate.cli.cmd_send import items_of
from holdfast.operate.cli.cmd_status import duration
from holdfast.quiver import Outcome, Quiver, QuiverConfig, SegmentConfig, SubscriberOptions


def call(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, words, standalone_mode=False)
    assert result.exception is None, result.exception
    assert (result.return_value or 0) == code, result.output
    assert not result.stderr or code, result.stderr
    return result.stdout


@pytest.mark.parametrize("case", CASES)
def test_every_case_is_a_valid_file_without_a_warning(case: str, tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    call("init", case, "--file", str(path))
    loaded = load(path)
    assert not loaded.warnings
    text = path.read_text()
    assert text.count("#") > 8
    before = path.stat().st_mtime_ns
    result = CliRunner().invoke(cli, ["init", case, "--file", str(path)])
    assert "there already" in str(result.exception)
    assert path.stat().st_mtime_ns == before


def test_up_without_a_file_checks_the_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["up", "--check"])
    assert result.exit_code  # nothing is written by a check
    assert not (tmp_path / DEFAULT_FILE).exists()
    call("init")
    text = Path(DEFAULT_FILE).read_text()
    Path(DEFAULT_FILE).write_text(text.replace(":5000", ":0").replace(":8480", ":0"))
    assert "ready to run here" in call("up", "--check")


def test_a_file_is_sent_and_what_became_of_it_is_reported(
    tmp_path: Path, backend: HttpBackend
) -> None:
    gateway = GatewayFolder(tmp_path, backend)
    events = [json.dumps(run_event()) for _ in range(20)]
    ndjson = tmp_path / "events.ndjson"
    ndjson.write_text("\n".join([*events[:10], '{"eventType": "START"}']) + "\n")
    table = pa.table({"slot": ["openlineage"] * 10, "payload": [e.encode() for e in events[10:]]})
    pq.write_table(table, tmp_path / "events.parquet")
    config = str(gateway.config)
    with gateway.running():
        to = ("--to", f"http://{gateway.address}")
        sent = json.loads(call("send", *to, str(ndjson), "--json", code=1))
        assert sent["accepted"] == 10
        assert [one["where"] for one in sent["refused"]] == [f"{ndjson}:11"]
        assert "10 requests accepted" in call("send", *to, str(tmp_path / "events.parquet"))
        until(lambda: json.loads(call("status", config, "--json"))["destinations"][0]["sent_events"]
              == 20, "delivered")  # fmt: skip
        told = call("status", config)
        assert "ready" in told
        assert "nothing was lost; 0 deliveries still to come" in told
        assert "backend 0/s, 0 wait" in call("top", config, "--interval", "0.1", "--count", "1")
        until(lambda: "Nothing was lost." in call("report", config), "the ledger")
        page = json.loads(call("report", config, "--json", "--since", "2020-01-01T00:00:00+00:00"))
        assert page["nothing_lost"] is True
        assert list(page["since"].values()) == [{"acked": 20}]
        assert page["accounts"][0]["accepted"]["events"] == 20
        assert sum(page["dead_letters"].values()) == 1
        assert page["gaps"] == []
    assert "no gateway is running" in call("status", config, code=78)
    assert "Nothing was lost." in call("report", config)


def test_what_was_lost_is_named(tmp_path: Path) -> None:
    config = QuiverConfig(segment=SegmentConfig(target_size_bytes=1 << 20))
    with Quiver.open(tmp_path / "data", config) as quiver:
        quiver.cursor("slow")
        quiver.set_options("slow", SubscriberOptions(max_bytes=1 << 20, on_full="drop_oldest"))
        for number in range(5):
            quiver.append_raw(bytes(400_000) + b"%d" % number)
            quiver.flush()
        until(lambda: quiver.balance("slow").outcomes[Outcome.DROPPED].events > 0, "dropped")
    page = json.loads(call("report", str(tmp_path / "data"), "--json", code=65))
    assert page["nothing_lost"] is False
    assert page["lost_events"] == sum(one["events"] for one in page["lost"]) > 0
    assert {one["outcome"] for one in page["lost"]} == {"dropped"}
    assert page["lost"][0]["first_seq"] == 0
    assert "will not reach a destination" in call("report", str(tmp_path / "data"), code=65)


def test_files_are_told_apart_by_their_content(tmp_path: Path) -> None:
    traces: dict[str, list[object]] = {"resourceSpans": []}
    (tmp_path / "traces.json").write_text(json.dumps(traces, indent=2))
    (tmp_path / "both.ndjson").write_text(f"{json.dumps(traces)}\n\n{json.dumps(run_event())}\n")
    (tmp_path / "list.json").write_text(json.dumps([run_event(), {"resourceLogs": []}], indent=1))
    assert [one.path for one in items_of(tmp_path / "traces.json")] == ["/v1/traces"]
    both = [(one.where.rpartition(":")[2], one.path) for one in items_of(tmp_path / "both.ndjson")]
    assert both == [("1", "/v1/traces"), ("3", "/api/v1/lineage")]
    assert [one.path for one in items_of(tmp_path / "list.json")] == [
        "/api/v1/lineage",
        "/v1/logs",
    ]
    pq.write_table(pa.table({"other": [1]}), tmp_path / "x.parquet")
    for name in ("x.parquet", "nothing.ndjson"):
        result = CliRunner().invoke(cli, ["send", str(tmp_path / name)])
        assert "BadInput" in repr(result.exception)


def test_who_waits_for_a_gateway_that_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "events.ndjson").write_text(json.dumps(run_event()))
    with socket.socket() as nobody:  # bound, so that nothing else listens there
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        words = ["send", str(tmp_path / "events.ndjson"), "--to", url, "--timeout", "0.3"]
        result = CliRunner().invoke(cli, words)
    assert f"{url}: Connection refused; trying again for up to 0.3 s" in result.stderr
    assert isinstance(result.exception, Overloaded)
    assert "--to names another address" in str(result.exception.hint)


@pytest.mark.parametrize(
    ("seconds", "text"), [(3, "3 s"), (61, "1 min 1 s"), (3700, "1 h 1 min"), (90000, "1 d 1 h")]
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
