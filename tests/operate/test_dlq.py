"""`holdfast dlq`: looking, correcting, trying again and giving up, with a gateway and without."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result
from tests.dead_letters.letters import invalid, payloads, poison
from tests.operate.dlq_gateway import Gateway
from tests.signals.events import run_event

from holdfast.dead_letters.letter import Letter
from holdfast.dead_letters.queue import KEEPER, DeadLetterQueue
from holdfast.deliver.exporter import Failure, FailureClass
from holdfast.errors import BadInput, CannotOpen, HoldfastError, NotAccepted, OwnerGone
from holdfast.operate.cli import dlq as cmd_dlq
from holdfast.quiver import Outcome, Quiver

VALID = orjson.dumps(run_event())
BROKEN = orjson.dumps({**run_event(), "run": {"runId": "none"}, "job": {}})
PROBLEM = {"pointer": "/job", "rule": "required", "message": "`name` is missing", "hint": "Add it."}


def dlq(*arguments: object, stdin: bytes | None = None) -> Result:
    """Run a command; its typed error is raised here."""
    result = CliRunner().invoke(cmd_dlq.command, [str(one) for one in arguments], input=stdin)
    if isinstance(result.exception, HoldfastError):
        raise result.exception
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def told(*arguments: object, stdin: bytes | None = None) -> Any:
    result = dlq(*arguments, "--json", stdin=stdin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def names(*arguments: object) -> list[str]:
    return [letter["letter"] for letter in told("ls", *arguments)["letters"]]


def file_some(gateway: Gateway) -> None:
    """Two that were rejected, three that were not delivered."""
    gateway.reject(
        invalid(BROKEN, problems=(PROBLEM,), headers={"User-Agent": "ol", "Cookie": "s3cret"}),
        invalid(VALID),
    )
    gateway.undelivered(
        poison(1, payload=VALID),
        poison(2, reason="permanent"),
        poison(3, destination="datahub"),
    )


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway that runs."""
    with Gateway(tmp_path / "data") as running:
        file_some(running)
        yield running


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of a gateway that does not run."""
    with Gateway(tmp_path / "data") as running:
        file_some(running)
    return tmp_path / "data"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The configuration of a gateway that keeps its data in `data`."""
    path = tmp_path / "gateway.yaml"
    path.write_text(
        """
        data_dir: data
        nodes:
          ingest:
            kind: receiver
            type: openlineage
            config: {validation: {level: strict}}
            to: [marquez]
          marquez: {kind: exporter, type: console}
        """
    )
    return path


# ------------------------------------------------------------------------ looking


def test_ls_beside_a_gateway_and_without_one(tmp_path: Path, config: Path) -> None:
    expected = ["rejected/0", "rejected/1", "undelivered/0", "undelivered/1", "undelivered/2"]
    with Gateway(tmp_path / "data") as running:
        file_some(running)
        assert sorted(names(running.data_dir)) == expected
    for place in (config, tmp_path / "data", tmp_path / "data" / "dead_letters"):
        assert sorted(names(place)) == expected


def test_ls_tells_what_is_known_of_a_letter(data: Path) -> None:
    (letter,) = told("ls", data, "--reason", "permanent")["letters"]
    assert letter["destination"] == "marquez"
    assert letter["attempts"] == 5
    assert letter["position"] == "quiver/2/0"
    result = dlq("ls", data)
    assert "`name` is missing" in result.stdout
    assert "s3cret" not in dlq("ls", data, "--json").stdout


def test_ls_by_filters(data: Path) -> None:
    assert names(data, "--destination", "datahub") == ["undelivered/2"]
    assert names(data, "--reason", "poison") == ["undelivered/0", "undelivered/2"]
    assert names(data, "--store", "rejected") == ["rejected/0", "rejected/1"]
    assert names(data, "--since", datetime.now(UTC).isoformat()) == []
    assert len(names(data, "--since", "2020-01-01T00:00:00+00:00")) == 5
    assert names(data, "--destination", "nobody") == []
    assert "there are none" in dlq("ls", data, "--destination", "nobody").stdout


def test_ls_stops_at_a_limit_and_says_so(data: Path) -> None:
    found = told("ls", data, "--limit", "2")
    assert (len(found["letters"]), found["more"]) == (2, True)
    assert "say --limit" in dlq("ls", data, "--limit", "2").stdout
    assert told("ls", data, "--limit", "5")["more"] is False


def test_a_place_without_letters_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen, match="no dead letters here"):
        dlq("ls", tmp_path)


def test_a_target_that_does_not_exist_is_a_mistake_of_usage(tmp_path: Path) -> None:
    result = dlq("ls", tmp_path / "gone")
    assert result.exit_code == 2
    assert "does not exist" in result.output


def test_a_worker_has_letters_of_its_own(tmp_path: Path) -> None:
    for name, count in (("dead_letters", 1), ("dead_letters-01", 2)):
        with DeadLetterQueue.open(tmp_path / name) as office:
            for _ in range(count):
                office.rejected.append_raw([b"{"], slot="openlineage", headers=[{"reason": "x"}])
    assert len(names(tmp_path)) == 1
    assert len(names(tmp_path, "--worker", "1")) == 2


def test_show_tells_everything_and_todays_verdict(data: Path) -> None:
    found = told("show", data, "rejected/0")
    assert found["payload"].encode() == BROKEN
    assert found["problems"] == [PROBLEM]
    assert found["headers"] == {"User-Agent": "ol"}
    assert found["verdict"]["valid"] is False
    assert told("show", data, "rejected/1")["verdict"]["valid"] is True
    text = dlq("show", data, "rejected/0").stdout
    for part in ("invalid", "`name` is missing", "runId", "User-Agent"):
        assert part in text


def test_show_checks_as_the_receiver_does(tmp_path: Path, config: Path) -> None:
    naive = orjson.dumps({**run_event(), "eventTime": "2026-01-01T00:00:00"})
    with Gateway(tmp_path / "data") as running:
        running.reject(invalid(naive))
        assert told("show", running.data_dir, "rejected/0")["verdict"]["valid"] is True
        assert told("show", config, "rejected/0")["verdict"]["valid"] is False
        assert told("show", config, "rejected/0", "--level", "core")["verdict"]["valid"] is True


def test_show_writes_the_very_bytes(tmp_path: Path) -> None:
    payload = b"\xff\x00\r\n{ \x1b[2J"
    with Gateway(tmp_path / "data") as running:
        running.reject(invalid(payload))
        result = dlq("show", running.data_dir, "rejected/0", "--raw")
        assert result.stdout_bytes == payload
        found = told("show", running.data_dir, "rejected/0")
        assert found["payload_base64"]


def test_nothing_that_was_sent_reaches_the_terminal_as_a_command(tmp_path: Path) -> None:
    evil = "\x1b]0;title\x07\x1b[2J"
    letter = Letter(
        orjson.dumps({"a": evil}),
        "invalid",
        evil,
        problems=({"pointer": evil, "rule": "x", "message": evil, "hint": evil},),
        headers={"User-Agent": evil},
    )
    with Gateway(tmp_path / "data") as running:
        running.reject(letter, replace(letter, payload=evil.encode()))
        for arguments in (("ls",), ("show", "rejected/0"), ("show", "rejected/1")):
            command, *rest = arguments
            assert "\x1b" not in dlq(command, running.data_dir, *rest).stdout


@pytest.mark.parametrize("name", ["rejected/9", "undelivered/9"])
def test_a_letter_that_is_not_there_is_named(data: Path, name: str) -> None:
    with pytest.raises(BadInput, match="no letter"):
        dlq("show", data, name)


# ---------------------------------------------------------------------------- fix


def test_fix_submits_through_the_gateway_and_resolves(gateway: Gateway, tmp_path: Path) -> None:
    corrected = tmp_path / "corrected.json"
    corrected.write_bytes(VALID)
    found = told("fix", gateway.data_dir, "rejected/0", "--file", corrected)
    ((path, headers, body),) = gateway.posts
    assert (path, body) == ("/api/v1/lineage", VALID)
    assert headers["Content-Type"] == "application/json"
    assert found["submitted_to"] == f"{gateway.url}/api/v1/lineage"
    assert "rejected/0" not in names(gateway.data_dir)
    account = gateway.office.rejected.balance(KEEPER)
    assert account.outcomes[Outcome.ACKED].events == 1
    assert account.holds


def test_fix_takes_standard_input_and_a_token(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "t0ken")
    dlq("fix", gateway.data_dir, "rejected/0", "--file", "-", stdin=VALID)
    assert gateway.posts[0][1]["Authorization"] == "Bearer t0ken"


def test_fix_submits_nothing_that_is_invalid(gateway: Gateway) -> None:
    with pytest.raises(BadInput, match="errors, the first at"):
        dlq("fix", gateway.data_dir, "rejected/0", "--file", "-", stdin=BROKEN)
    assert gateway.posts == []
    assert "rejected/0" in names(gateway.data_dir)


@pytest.mark.parametrize(
    ("status", "kind"), [(400, BadInput), (403, BadInput), (503, NotAccepted), (500, NotAccepted)]
)
def test_a_letter_stays_when_the_gateway_refuses(
    gateway: Gateway, status: int, kind: type[HoldfastError]
) -> None:
    gateway.answers = [(status, {"message": "not now", "hint": "later"})]
    with pytest.raises(kind, match=f"{status}: not now"):
        dlq("fix", gateway.data_dir, "rejected/0", "--file", "-", stdin=VALID)
    assert "rejected/0" in names(gateway.data_dir)


def test_a_letter_stays_when_nobody_answers(data: Path) -> None:
    url = "http://127.0.0.1:9/api/v1/lineage"
    with pytest.raises(NotAccepted, match="not reached"):
        dlq("fix", data, "rejected/0", "--file", "-", "--url", url, stdin=VALID)
    assert "rejected/0" in names(data)


def test_fix_of_an_undelivered_letter_has_to_be_meant(gateway: Gateway) -> None:
    url = f"{gateway.url}/api/v1/lineage"
    arguments = ("fix", gateway.data_dir, "undelivered/0", "--file", "-", "--url", url)
    with pytest.raises(BadInput, match="every destination"):
        dlq(*arguments, stdin=VALID)
    dlq(*arguments, "--everywhere", stdin=VALID)
    assert [body for _, _, body in gateway.posts] == [VALID]
    assert "undelivered/0" not in names(gateway.data_dir)


def editor(tmp_path: Path, program: str) -> str:
    """Return an editor that does what a program says with the file it is given."""
    script = tmp_path / "editor.py"
    script.write_text(f"import pathlib, sys\nfile = pathlib.Path(sys.argv[1])\n{program}\n")
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}"


def test_fix_opens_an_editor(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"assert file.read_bytes().strip() == {BROKEN!r}\nfile.write_bytes({VALID!r})"
    monkeypatch.setenv("VISUAL", editor(tmp_path, program))
    dlq("fix", gateway.data_dir, "rejected/0")
    assert [body.strip() for _, _, body in gateway.posts] == [VALID]


def test_an_edit_that_is_still_invalid_is_asked_about(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = tmp_path / "edits"
    program = f"""
edits = pathlib.Path({str(edits)!r})
seen = edits.read_text() if edits.exists() else ""
edits.write_text(seen + "x")
file.write_bytes({VALID!r} if seen else b'{{"half": "done"}}')
"""
    monkeypatch.setenv("VISUAL", editor(tmp_path, program))
    refused = dlq("fix", gateway.data_dir, "rejected/0", stdin=b"n\n")
    assert refused.exit_code == 1
    assert gateway.posts == []
    edits.unlink()
    dlq("fix", gateway.data_dir, "rejected/0", stdin=b"y\n")
    assert edits.read_text() == "xx"
    assert len(gateway.posts) == 1


def test_bytes_that_are_no_text_are_not_given_to_an_editor(tmp_path: Path) -> None:
    with Gateway(tmp_path / "data") as running:
        running.reject(invalid(b"\xff"))
        with pytest.raises(BadInput, match="not text"):
            dlq("fix", running.data_dir, "rejected/0")


# ---------------------------------------------------------------- without a gateway


def quiver_of(data: Path) -> Path:
    """Return a quiver that a gateway left behind, with one event that waits for `marquez`."""
    directory = data / "quiver" / "core-00"
    with Quiver.open(directory) as quiver:
        quiver.register("marquez")
        quiver.append_raw([b"{}"], slot="openlineage")
    return directory


def test_fix_without_a_gateway_appends_to_its_quiver(data: Path, config: Path) -> None:
    directory = quiver_of(data)
    found = told("fix", config, "rejected/0", "--file", "-", stdin=VALID)
    assert found["submitted_to"] == str(directory)
    with Quiver.open(directory) as quiver:
        assert payloads(quiver, "marquez") == [b"{}", VALID]
    assert "rejected/0" not in names(data)


def test_an_event_goes_to_the_quiver_of_the_receiver_that_rejected_it(tmp_path: Path) -> None:
    config = tmp_path / "two.yaml"
    config.write_text(
        """
        data_dir: data
        nodes:
          other: {kind: receiver, type: openlineage, to: [first]}
          ingest:
            {kind: receiver, type: openlineage, config: {listen: "127.0.0.1:5001"}, to: [second]}
          first: {kind: processor, type: quiver, to: [a]}
          second: {kind: processor, type: quiver, to: [b]}
          a: {kind: exporter, type: console}
          b: {kind: exporter, type: console}
        """
    )
    with Gateway(tmp_path / "data") as running:
        running.reject(invalid(VALID), invalid(VALID))
    for name in ("first", "second"):
        with Quiver.open(tmp_path / "data" / name / "core-00"):
            pass
    told("fix", config, "rejected/0", "--file", "-", stdin=VALID)
    told("replay", config, "--rejected")
    with Quiver.open(tmp_path / "data" / "second" / "core-00") as quiver:
        assert quiver.statistics().accepted_events == 2


def test_fix_without_a_gateway_needs_to_know_where(data: Path) -> None:
    with pytest.raises(OwnerGone, match="no gateway runs here"):
        dlq("fix", data, "rejected/0", "--file", "-", stdin=VALID)
    directory = quiver_of(data)
    dlq("fix", data, "rejected/0", "--file", "-", "--quiver", directory, stdin=VALID)
    with Quiver.open(directory) as quiver:
        assert payloads(quiver, "marquez")[-1] == VALID


def test_a_quiver_that_is_not_there_is_not_made(data: Path, config: Path) -> None:
    with pytest.raises(CannotOpen, match="no quiver here"):
        dlq("fix", config, "rejected/0", "--file", "-", stdin=VALID)
    assert not (data / "quiver").exists()


def test_undelivered_letters_are_not_replayed_without_a_gateway(data: Path) -> None:
    with pytest.raises(OwnerGone, match="only it can send"):
        dlq("replay", data, "--destination", "marquez")


# ------------------------------------------------------------------------- replay


def test_replay_sends_to_the_destination_that_failed(gateway: Gateway) -> None:
    found = told("replay", gateway.data_dir, "--destination", "marquez")
    assert found["to marquez"] == {
        "delivered": 2,
        "filtered": 0,
        "filed_again": 0,
        "skipped": 0,
        "stopped_by": None,
    }
    assert gateway.sent == [VALID, b'{"n":2}']
    assert names(gateway.data_dir, "--store", "undelivered") == ["undelivered/2"]
    assert gateway.posts == []


def test_replay_of_letters_by_name(gateway: Gateway) -> None:
    told("replay", gateway.data_dir, "undelivered/1", "rejected/1")
    assert gateway.sent == [b'{"n":2}']
    assert [body for _, _, body in gateway.posts] == [VALID]
    assert sorted(names(gateway.data_dir)) == ["rejected/0", "undelivered/0", "undelivered/2"]


def test_replay_says_why_it_ended(gateway: Gateway) -> None:
    gateway.failure = Failure(FailureClass.TRANSIENT, "connection refused")
    result = dlq("replay", gateway.data_dir, "--destination", "marquez")
    assert "connection refused" in result.stdout
    assert len(names(gateway.data_dir, "--store", "undelivered")) == 3


def test_replay_takes_as_many_turns_as_it_needs(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.deliver.redrive.TURN_LETTERS", 1)
    gateway.failure = Failure(FailureClass.PERMANENT, "no", code="400")
    found = told("replay", gateway.data_dir, "--destination", "marquez")
    assert found["to marquez"]["filed_again"] == 2
    letters = told("ls", gateway.data_dir, "--destination", "marquez")["letters"]
    assert [letter["attempts"] for letter in letters] == [6, 6]


def test_replay_of_rejected_letters_submits_what_is_valid_by_now(gateway: Gateway) -> None:
    found = told("replay", gateway.data_dir, "--rejected")
    assert found == {"rejected": {"submitted": 1, "still_invalid": 1}}
    assert [body for _, _, body in gateway.posts] == [VALID]
    assert names(gateway.data_dir, "--store", "rejected") == ["rejected/0"]


def test_what_was_submitted_before_a_failure_is_resolved(tmp_path: Path) -> None:
    with Gateway(tmp_path / "data") as running:
        running.reject(invalid(VALID), invalid(VALID), invalid(VALID))
        running.answers = [(200, {}), (503, {"message": "full", "hint": "later"})]
        with pytest.raises(NotAccepted):
            dlq("replay", running.data_dir, "--rejected")
        assert names(running.data_dir) == ["rejected/1", "rejected/2"]


@pytest.mark.parametrize(
    "arguments", [(), ("--rejected", "--destination", "a"), ("rejected/0", "--rejected")]
)
def test_replay_has_to_be_told_what(data: Path, arguments: tuple[str, ...]) -> None:
    with pytest.raises(BadInput, match="not clear what"):
        dlq("replay", data, *arguments)


def test_a_destination_that_is_not_there_is_named(gateway: Gateway) -> None:
    with pytest.raises(BadInput, match="no destination 'nobody'"):
        dlq("replay", gateway.data_dir, "--destination", "nobody")


# -------------------------------------------------------------------------- purge


def test_purge_says_what_would_go_and_does_nothing(data: Path) -> None:
    assert told("purge", data, "--all")["purged"] == 0
    result = dlq("purge", data, "--destination", "marquez")
    assert "say --yes" in result.stdout
    assert len(names(data)) == 5


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (("--all",), 0),
        (("--store", "rejected"), 3),
        (("--destination", "marquez"), 3),
        (("--reason", "poison"), 3),
        (("--before", "2020-01-01T00:00:00+00:00"), 5),
        (("rejected/1", "undelivered/2"), 3),
        (("undelivered/77",), 5),
    ],
)
@pytest.mark.parametrize("runs", [True, False])
def test_purge_gives_up_what_is_meant(
    tmp_path: Path, arguments: tuple[str, ...], left: int, runs: bool
) -> None:
    with Gateway(tmp_path / "data") as running:
        file_some(running)
        if runs:
            assert told("purge", running.data_dir, *arguments, "--yes")["purged"] == 5 - left
            assert len(names(running.data_dir)) == left
    if not runs:
        assert told("purge", tmp_path / "data", *arguments, "--yes")["purged"] == 5 - left
    with DeadLetterQueue.open(tmp_path / "data" / "dead_letters") as office:
        stores = (office.rejected, office.undelivered_quiver)
        assert sum(len(store.waiting(KEEPER)) for store in stores) == left
        given_up = [store.balance(KEEPER).outcomes.get(Outcome.GIVEN_UP) for store in stores]
        assert sum(one.events for one in given_up if one) == 5 - left


def test_purge_records_why(data: Path) -> None:
    dlq("purge", data, "undelivered/0", "--yes", "--because", "the backend is gone")
    ledger = b"".join(
        path.read_bytes() for path in (data / "dead_letters/undelivered/ledger").iterdir()
    )
    assert b"the backend is gone" in ledger


def test_purge_has_to_be_told_what(data: Path) -> None:
    with pytest.raises(BadInput, match="not clear what"):
        dlq("purge", data, "--yes")
