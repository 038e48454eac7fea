"""The operator's commands: JSON, tables, exit codes, with an owner and without one."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.quiver.owner import CONFIG, Owner
from tests.quiver.reading import acknowledge, reject

from holdfast.operate.cli import main
from holdfast.operate.cli.base.work import progress
from holdfast.operate.cli.quiver.ledger import TABLE_LINES
from holdfast.quiver import Quiver
from holdfast.quiver.tools.inspect import Inventory, inspect
from holdfast.seam.disk import Disk


class Result(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output as JSON."""
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line in this process."""

    def run_command(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["holdfast", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, captured.out, captured.err)

    return run_command


def fill(quiver: Quiver) -> None:
    """Five bundles in a segment, two behind it; `archive` has 0 to 2 and rejected 3."""
    quiver.register("archive")
    quiver.register("metrics")
    for number in range(5):
        quiver.append_raw([b'{"run": "r-%d"}' % number, b"more"], producer="etl", epoch=number + 1)
    quiver.flush()
    acknowledge(quiver, "archive", 3)
    reject(quiver, "archive", "schema 7 is unknown")
    quiver.append_raw(b"tail")
    quiver.append_raw(b"end")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A quiver that nobody owns."""
    with Quiver.open(tmp_path / "data", CONFIG) as quiver:
        fill(quiver)
    return tmp_path / "data"


def flip(path: Path, byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 0xFF
    path.write_bytes(content)


def first_segment(data: Path) -> Path:
    return min((data / "segments").iterdir())


def query(text: str) -> list[Any]:
    import duckdb

    relation = duckdb.sql(text)
    assert relation is not None
    return relation.fetchall()


# Looking.


def test_ls_tells_subscribers_and_the_owner(data: Path, run: Run) -> None:
    listed = run("quiver", "ls", data, "--json").json
    assert listed["owner"] is None
    assert [s["subscriber"] for s in listed["subscribers"]] == ["archive", "metrics"]
    assert listed["subscribers"][0]["pending"] == {"bundles": 3, "events": 4}
    assert listed["ledger_files"] == ["0000000000000001.log"]
    shown = run("quiver", "ls", data).out
    assert "no process has it open" in shown
    assert "archive" in shown
    with Owner(data) as owner:
        assert run("quiver", "ls", data, "--json").json["owner"]["process"] == owner.pid
        assert f"owned by process {owner.pid}" in run("quiver", "ls", data).out


def test_ls_of_a_root_of_several_quivers_names_them(data: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "root").mkdir()
    shutil.copytree(data, tmp_path / "root" / "core-01")
    data.rename(tmp_path / "root" / "core-00")
    result = run("quiver", "ls", tmp_path / "root")
    assert result.code == 78
    assert "core-00" in result.err


def test_show_works_with_a_damaged_bundle_table(data: Path, run: Run) -> None:
    flip(first_segment(data) / "bundles.arrow", 100)
    assert len(run("quiver", "show", data, 1, "--json").json["bundles"]) == 5


def test_cat_exports_parquet(data: Path, tmp_path: Path, run: Run) -> None:
    target = tmp_path / "rows.parquet"
    result = run("quiver", "cat", data, "--parquet", target)
    assert (result.code, result.out, result.err) == (0, "", "12 rows\n")
    rows = query(f"select _seq, payload from '{target}' order by _seq, _row")
    assert rows[0] == (0, b'{"run": "r-0"}')
    assert len(rows) == 12
    assert not (tmp_path / "rows.parquet.tmp").exists()
    again = run("quiver", "cat", data, "--parquet", target)
    assert again.code == 2
    assert "exists" in again.err


def test_cat_limits_a_parquet_file_too(data: Path, tmp_path: Path, run: Run) -> None:
    run("quiver", "cat", data, "--parquet", tmp_path / "few.parquet", "--limit", 3)
    assert pq.read_table(tmp_path / "few.parquet").num_rows == 3


def test_cat_says_what_parquet_cannot_hold(tmp_path: Path, run: Run) -> None:
    with Quiver.open(tmp_path / "data", CONFIG) as quiver:
        union = pa.UnionArray.from_dense(
            pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1]), pa.array(["x"])]
        )
        quiver.append(pa.record_batch([union], names=["u"]))
    result = run("quiver", "cat", tmp_path / "data", "--parquet", tmp_path / "x.parquet")
    assert result.code == 2
    assert "Parquet cannot hold" in result.err
    assert list(tmp_path.glob("*.parquet*")) == []


def test_cat_names_what_the_bundles_of_its_rows_lack(tmp_path: Path, run: Run) -> None:
    with Quiver.open(tmp_path / "data") as quiver:
        for number in range(2):
            slots = {"a": pa.record_batch({"n": [number]}), "b": pa.record_batch({"m": [number]})}
            quiver.append(slots)
            quiver.flush()
    flip(first_segment(tmp_path / "data") / "001-b.arrow", 700)
    result = run("quiver", "cat", tmp_path / "data", "--slot", "a", "--partial")
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [(row["n"], row["_damaged_slots"]) for row in rows] == [(0, ["b"]), (1, None)]


def test_cat_tells_damage_from_what_was_removed(
    data: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(first_segment(data) / "000-events.arrow", 700)
    assert run("quiver", "cat", data).code == 65
    assert run("quiver", "cat", data, "--skip-damaged").code == 0

    def find_and_remove(disk: Disk, root: PurePath) -> Inventory:
        inventory = inspect(disk, root)
        first_segment(data).rename(tmp_path / "trash")
        return inventory

    monkeypatch.setattr("holdfast.operate.cli.quiver.show.inspect", find_and_remove)
    result = run("quiver", "cat", data)
    assert result.code == 75
    assert "removed while it was read" in result.err


# Checking.


def test_fsck_of_a_sound_directory(data: Path, run: Run) -> None:
    result = run("quiver", "fsck", data, "--json")
    assert (result.code, result.json["ok"], result.json["findings"]) == (0, True, [])
    assert run("quiver", "fsck", data).out.endswith("sound\n")


def test_fsck_of_a_damaged_directory_exits_with_65_and_says_what_to_do(
    data: Path, run: Run
) -> None:
    (first_segment(data) / "manifest").write_bytes(b"nothing")
    result = run("quiver", "fsck", data, "--json")
    assert result.code == 65
    finding = result.json["findings"][0]
    assert finding["severity"] == "error"
    assert finding["seqs"] == [[0, 4]]
    assert "salvage" in finding["next"]
    shown = run("quiver", "fsck", data)
    assert "SOMETHING IS LOST" in shown.out
    assert "0-4" in shown.out


def test_fsck_beside_an_owner_asks_it_for_the_accounts(data: Path, run: Run) -> None:
    with Owner(data) as owner:
        owner.do("quiver.append_raw(b'more')")
        assert run("quiver", "fsck", data, "--json").json == {
            "ok": True,
            "files": run("quiver", "fsck", data, "--json").json["files"],
            "size_bytes": 0,
            "findings": [],
        }


def test_scrub_names_damaged_bundles(data: Path, run: Run) -> None:
    assert run("quiver", "scrub", data).out.endswith("sound\n")
    flip(first_segment(data) / "000-events.arrow", 700)
    result = run("quiver", "scrub", data, "--json", "--max-mb-s", 1000)
    assert result.code == 65
    assert result.json["findings"][0]["seqs"] == [[0, 4]]


class FakeTime:
    """Time that passes only by sleeping."""

    def __init__(self, slept: list[float]) -> None:
        self.sleep = slept.append
        self.monotonic = lambda: sum(slept)


def test_the_pace_keeps_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("holdfast.operate.cli.base.work.time", FakeTime(slept))
    with progress("work", 10_000_000, max_mb_s=2.0, quiet=True) as pace:
        pace(4_000_000)
        pace(1_000_000)
    assert slept == [2.0, 0.5]


# The ledger.


def test_ledger_prints_and_filters_lines(data: Path, run: Run) -> None:
    everything = run("quiver", "ledger", data, "--json").json
    assert [line["what"] for line in everything] == [
        *("register", "register", "attach"),
        *("acked", "acked", "acked", "detach"),
        *("attach", "dead_lettered", "detach", "closed"),
    ]
    (rejected,) = run("quiver", "ledger", data, "--json", "--outcome", "dead_lettered").json
    assert rejected["reason"] == "schema 7 is unknown"
    assert run("quiver", "ledger", data, "--json", "--seq", 3).json == [rejected]
    assert len(run("quiver", "ledger", data, "--json", "--subscriber", "metrics").json) == 1
    assert len(run("quiver", "ledger", data, "--json", "--limit", 2).json) == 2
    assert run("quiver", "ledger", data, "--json", "--since", "2100-01-01T00:00:00Z").json == []
    assert len(run("quiver", "ledger", data, "--json", "--until", "2100-01-01T00:00Z").json) == 11
    assert run("quiver", "ledger", data, "--since", "2100-01-01").code == 2
    assert "schema 7 is unknown" in run("quiver", "ledger", data).out


def test_ledger_says_how_many_lines_it_does_not_show(data: Path, run: Run) -> None:
    with Quiver.open(data, CONFIG) as quiver:
        for _ in range(TABLE_LINES):
            quiver.cursor("metrics").close()
    total = len(run("quiver", "ledger", data, "--json").json)
    shown = run("quiver", "ledger", data).out
    assert f"{total - TABLE_LINES} older lines not shown; --limit {total}" in shown
    assert "not shown" not in run("quiver", "ledger", data, "--limit", total).out


def test_ledger_balances(data: Path, run: Run) -> None:
    accounts = {
        a["subscriber"]: a for a in run("quiver", "ledger", data, "--balance", "--json").json
    }
    archive = accounts["archive"]
    assert archive["accepted"] == {"bundles": 7, "events": 12}
    assert archive["outcomes"]["acked"] == {"bundles": 3, "events": 6}
    assert archive["outcomes"]["dead_lettered"] == {"bundles": 1, "events": 2}
    assert archive["pending"] == {"bundles": 3, "events": 4}
    assert archive["holds"]
    shown = run("quiver", "ledger", data, "--balance", "--subscriber", "archive").out
    assert "adds up" in shown
    assert "metrics" not in shown


def test_a_balance_that_does_not_hold_exits_with_65(data: Path, run: Run) -> None:
    (first_segment(data) / "manifest").write_bytes(b"nothing")
    result = run("quiver", "ledger", data, "--balance")
    assert result.code == 65
    assert "DOES NOT ADD UP" in result.out


def test_ledger_exports_parquet(data: Path, tmp_path: Path, run: Run) -> None:
    target = tmp_path / "ledger.parquet"
    assert run("quiver", "ledger", data, "--parquet", target).err == "11 lines\n"
    found = query(
        f"select what, sum(bundles), sum(events) from '{target}' "
        "where line = 'outcome' group by what order by what"
    )
    assert found == [("acked", 3, 6), ("dead_lettered", 1, 2)]


# Changing.


def test_replay_and_drop_without_an_owner(data: Path, run: Run) -> None:
    arguments = ("quiver", "replay", data, "--subscriber", "archive", "--from", 1, "--to", 2)
    assert run(*arguments, "--json").json == {"subscriber": "archive", "bundles": 2, "events": 4}
    dropped = run("quiver", "drop-subscriber", data, "metrics", "--yes", "--json").json
    assert dropped["given_up"] == {"bundles": 7, "events": 12}
    with Quiver.open(data, CONFIG) as quiver:
        assert quiver.subscribers() == ("archive",)
        assert quiver.balance("archive").pending == (5, 8)
        assert quiver.balance("archive").holds


def test_replay_and_drop_through_the_owner(data: Path, run: Run) -> None:
    with Owner(data) as owner:
        told = run("quiver", "replay", data, "--subscriber", "archive", "--from", 1, "--to", 2)
        assert "2 bundles with 4 events will be handed out again to archive" in told.out
        assert owner.do("quiver.balance('archive').pending") == [5, 8]
        run("quiver", "drop-subscriber", data, "metrics", "--yes", "--reason", "unused")
        assert owner.do("quiver.subscribers()") == ["archive"]
    told = run("explain", 6, data, "--json").json["explanations"][0]
    fates = {fate["subscriber"]: fate for fate in told["subscribers"]}
    assert (fates["metrics"]["state"], fates["metrics"]["reason"]) == ("given_up", "unused")


def test_dropping_asks_a_person(data: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(text: str, *, abort: bool, err: bool) -> None:
        asked.append(text)
        raise click.Abort

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(click, "confirm", refuse)
    assert run("quiver", "drop-subscriber", data, "metrics").code == 130
    assert "7 bundles with 12 events" in asked[0]
    assert len(run("quiver", "ledger", data, "--balance", "--json").json) == 2


def test_dropping_needs_a_yes_where_nobody_can_be_asked(data: Path, run: Run) -> None:
    refused = run("quiver", "drop-subscriber", data, "metrics")
    assert refused.code == 2
    assert 'there is no terminal to ask on: "7 bundles with 12 events' in refused.err
    assert "next: use --yes" in refused.err
    unknown = run("quiver", "drop-subscriber", data, "nobody")
    assert "registered subscribers: archive, metrics" in unknown.err
    with Quiver.open(data, CONFIG) as quiver:
        assert quiver.subscribers() == ("archive", "metrics")


def test_a_directory_whose_owner_does_not_listen_is_refused(data: Path, run: Run) -> None:
    with Owner(data) as owner:
        owner.do("quiver._control.close()")
        result = run("quiver", "drop-subscriber", data, "metrics", "--yes")
        assert result.code == 78
        assert f"in use by process {owner.pid}" in result.err


def test_an_owner_that_dies_in_the_middle_is_reported(data: Path, run: Run) -> None:
    with Owner(data, dies_at="ledger.sync") as owner:
        result = run("quiver", "drop-subscriber", data, "metrics", "--yes", "--json")
        assert result.code == 75
        assert json.loads(result.err)["error"] == "OwnerGone"
        assert owner.wait() == -9


# Copying.


def test_backup_and_restore(data: Path, tmp_path: Path, run: Run) -> None:
    made = run("quiver", "backup", data, tmp_path / "copy", "--json").json
    assert (made["bundles"], made["events"], made["findings"]) == (7, 12, [])
    assert "adds up" in run("quiver", "backup", data, tmp_path / "copy2").out
    restored = run("quiver", "restore", tmp_path / "copy", tmp_path / "again", "--json").json
    assert restored["quiver_id"] != made["quiver_id"]
    with Quiver.open(tmp_path / "again", CONFIG) as quiver:
        assert quiver.quiver_id == restored["quiver_id"]
        assert quiver.balance("archive").holds
    assert "restored to" in run("quiver", "restore", tmp_path / "copy", tmp_path / "again2").out


def test_backup_beside_an_owner(data: Path, tmp_path: Path, run: Run) -> None:
    with Owner(data) as owner:
        owner.do("quiver.append_raw(b'last').seq")
        made = run("quiver", "backup", data, tmp_path / "copy", "--json").json
    assert made["bundles"] == 8
    assert all(account["holds"] for account in made["balances"])


def test_bad_targets(data: Path, tmp_path: Path, run: Run) -> None:
    assert run("quiver", "backup", data, data / "inside").code == 2
    assert run("quiver", "backup", data, tmp_path).code == 2
    assert run("quiver", "restore", data, tmp_path / "x").code == 78
    assert run("quiver", "backup", tmp_path / "nothing", tmp_path / "x").code == 78


def test_a_backup_with_damage_is_made_and_exits_with_65(
    data: Path, tmp_path: Path, run: Run
) -> None:
    flip(first_segment(data) / "000-events.arrow", 700)
    result = run("quiver", "backup", data, tmp_path / "copy", "--json")
    assert result.code == 65
    assert result.json["findings"][0]["seqs"] == [[0, 4]]
    assert run("quiver", "restore", tmp_path / "copy", tmp_path / "again").code == 0


def test_a_damaged_backup_is_not_restored(data: Path, tmp_path: Path, run: Run) -> None:
    run("quiver", "backup", data, tmp_path / "copy")
    flip(first_segment(tmp_path / "copy") / "000-events.arrow", 700)
    result = run("quiver", "restore", tmp_path / "copy", tmp_path / "again")
    assert result.code == 65
    assert "salvage" in result.err
    assert not (tmp_path / "again").exists()


def test_salvage(data: Path, tmp_path: Path, run: Run) -> None:
    (first_segment(data) / "manifest").write_bytes(b"nothing")
    result = run("quiver", "salvage", data, tmp_path / "new", "--json")
    assert result.code == 0
    told = result.json
    assert told["saved"] == {"bundles": 7, "events": 12}
    assert told["unverified"] == {"bundles": 5, "events": 10}
    assert told["lost"] == {"bundles": 0, "events": 0}
    assert told["subscribers"] == ["archive", "metrics"]
    with Quiver.open(tmp_path / "new", CONFIG) as quiver:
        assert quiver.bundle(3) is not None
        assert quiver.balance("metrics").holds


def test_salvage_that_lost_something_exits_with_65(data: Path, tmp_path: Path, run: Run) -> None:
    flip(first_segment(data) / "000-events.arrow", 700)
    result = run("quiver", "salvage", data, tmp_path / "new")
    assert result.code == 65
    assert "lost, as far as is known" in result.out


# Explaining.


def test_explain_by_number(data: Path, run: Run) -> None:
    told = run("explain", 3, data, "--json").json
    (story,) = told["explanations"]
    assert story["receipt"]["producer"] == "etl"
    fates = {fate["subscriber"]: fate for fate in story["subscribers"]}
    assert fates["archive"]["state"] == "dead_lettered"
    assert fates["metrics"]["state"] == "pending"
    shown = run("explain", 3, data).out
    assert "schema 7 is unknown" in shown
    assert "in segment 1" in shown


def test_explain_by_text(data: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)
    told = run("explain", "r-2", "--json").json
    assert [match["seq"] for match in told["matches"]] == [2]
    assert told["explanations"][0]["seq"] == 2
    assert "bundle 2, slot events, event 0" in run("explain", "r-2").out


def test_explain_what_is_not_there(data: Path, run: Run) -> None:
    result = run("explain", "never seen", data)
    assert result.code == 1
    assert "nothing that is still there contains" in result.out
    assert "the newest bundle is 6" in run("explain", 99, data).out


def test_explain_searches_for_digits_when_asked(data: Path, run: Run) -> None:
    told = run("explain", "3", data, "--text", "--json").json
    assert [match["seq"] for match in told["matches"]] == [3]


def test_explain_says_that_there_are_more(data: Path, run: Run) -> None:
    assert "--limit shows more than 2" in run("explain", "more", data, "--limit", 2).out


def test_explain_beside_an_owner(data: Path, run: Run) -> None:
    with Owner(data) as owner:
        owner.do("quiver.append_raw(b'live one').seq")
        told = run("explain", "live one", data, "--json").json
    assert told["explanations"][0]["place"].startswith("in the write-ahead log")


def test_every_command_answers_in_json_or_fails_in_json(tmp_path: Path, run: Run) -> None:
    for arguments in (
        ("quiver", "ls", tmp_path),
        ("quiver", "show", tmp_path, 1),
        ("quiver", "cat", tmp_path),
        ("quiver", "ledger", tmp_path),
        ("quiver", "fsck", tmp_path),
        ("quiver", "scrub", tmp_path),
        ("quiver", "replay", tmp_path, "--subscriber", "a", "--from", 0, "--to", 1),
        ("quiver", "drop-subscriber", tmp_path, "a"),
        ("quiver", "backup", tmp_path, tmp_path / "x"),
        ("quiver", "restore", tmp_path, tmp_path / "x"),
        ("quiver", "salvage", tmp_path, tmp_path / "x"),
        ("explain", 1, tmp_path),
    ):
        result = run(*arguments, "--json")
        assert result.code in (2, 78), arguments
        assert result.out == ""
        told = json.loads(result.err)
        assert told["hint"], arguments
