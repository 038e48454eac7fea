"""The command line: JSON everywhere, clear errors, exit codes."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from holdfast import prove
from holdfast.errors import NotInstalled
from holdfast.operate.cli import COMMANDS, cli, main
from holdfast.operate.cli.base.groups import EXAMPLES
from holdfast.operate.cli.base.output import counted
from holdfast.quiver import Quiver


def run(*arguments: str, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from holdfast.operate.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which need not start one."""
    output, errors = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    with (
        mock.patch.object(sys, "argv", ["holdfast", *arguments]),
        redirect_stdout(output),
        redirect_stderr(errors),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    told = [stream.buffer.getvalue().decode() for stream in (output, errors)]
    return subprocess.CompletedProcess(arguments, int(ended.value.code or 0), *told)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A quiver with one sealed and one unsealed bundle."""
    with Quiver.open(tmp_path / "data") as quiver:
        quiver.append_raw([b'{"n": 1}', b"\xff\xfe"])
        quiver.flush()
        quiver.append_raw(b"unsealed")
        # As a kill would leave it: copied while the owner runs.
        copy = tmp_path / "copy"
        subprocess.run(["cp", "-r", str(tmp_path / "data"), str(copy)], check=True)
    return copy


def test_help_lists_every_command_without_importing_it() -> None:
    result = run("--help")
    assert result.returncode == 0
    for name in COMMANDS:
        assert name in result.stdout


def commands(
    group: click.Group = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command with its path."""
    context = click.Context(group, info_name=" ".join(("holdfast", *path)))
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield (*path, name), command


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage" in result.output


def test_every_help_has_an_example_that_can_be_parsed() -> None:
    found = dict(commands())
    assert {" ".join(path) for path in found} == EXAMPLES.keys()
    for path, command in found.items():
        example = EXAMPLES[" ".join(path)]
        assert f"holdfast {example}" in (command.epilog or "")
        words = shlex.split(example.partition(" > ")[0])
        assert words[: len(path)] == list(path)
        context = click.Context(command)
        _, rest, _ = command.make_parser(context).parse_args(words[len(path) :])
        assert rest == [], example


@pytest.mark.parametrize(
    ("typed", "guess"),
    [(["quivr"], "'quiver'"), (["quiver", "fsk"], "'fsck'"), (["store", "creat"], "'create'")],
)
def test_a_mistyped_command_is_guessed(typed: list[str], guess: str) -> None:
    result = CliRunner().invoke(cli, typed)
    assert result.exit_code == 2
    assert f"Did you mean {guess}" in result.output


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        (["replay"], "Did you mean 'quiver replay' or 'dataflow replay'?"),
        (["dlq", "resend"], "There are ls, show, fix, redrive, purge."),
    ],
)
def test_a_command_of_no_group_or_of_another_is_answered_with_those_there_are(
    typed: list[str], advice: str
) -> None:
    assert advice in CliRunner().invoke(cli, typed).output.replace("\n", " ")


@pytest.mark.parametrize("group", ["quiver", "dataflow", "dlq", "handoff", "files", "gc", "store"])
def test_the_commands_of_a_group_are_listed_with_whole_sentences(group: str) -> None:
    told = CliRunner().invoke(cli, [group, "--help"]).output
    assert "..." not in told.partition("Commands:")[2]


def test_dead_letters_have_a_short_name() -> None:
    short, long = (CliRunner().invoke(cli, [name, "--help"]) for name in ("dlq", "dead-letters"))
    assert short.exit_code == long.exit_code == 0
    assert short.output.replace(" dlq ", " dead-letters ") == long.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0, result.output
    assert "_HOLDFAST_COMPLETE" in result.output


def test_commands_are_completed() -> None:
    completion = BashComplete(cli, {}, "holdfast", "_HOLDFAST_COMPLETE")
    assert [item.value for item in completion.get_completions(["quiver"], "sc")] == ["scrub"]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 events"), (1, "1 event"), (2000, "2,000 events")]
)
def test_things_are_counted_as_people_say_it(count: int, text: str) -> None:
    assert counted(count, "event") == text


def test_doctor_examines_disk_and_software(tmp_path: Path) -> None:
    result = call("doctor", "--dir", str(tmp_path), "--json")
    findings = {finding["name"]: finding for finding in json.loads(result.stdout)}
    assert result.returncode == 0
    assert findings["quiver"]["health"] == "ok"
    assert findings["pyarrow"]["health"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_doctor_fails_on_a_directory_it_cannot_write(tmp_path: Path) -> None:
    result = call("doctor", "--dir", str(tmp_path / "missing"), "--json")
    assert result.returncode == 1
    assert any(finding["health"] == "fail" for finding in json.loads(result.stdout))


def test_quiver_ls_tells_segments_and_unsealed_bundles(data: Path) -> None:
    listed = json.loads(call("quiver", "ls", str(data), "--json").stdout)
    assert [segment["events"] for segment in listed["segments"]] == [2]
    assert listed["unsealed_bundles"] == 1
    assert "segments" in call("quiver", "ls", str(data)).stdout


def test_quiver_ls_changes_nothing(data: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    call("quiver", "ls", str(data))
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before


def test_quiver_show_tells_the_bundles_of_a_segment(data: Path) -> None:
    shown = json.loads(call("quiver", "show", str(data), "1", "--json").stdout)
    assert shown["summary"]["bundles"] == 1
    assert shown["bundles"][0]["events"] == 2
    assert call("quiver", "show", str(data), "1").returncode == 0


def test_quiver_cat_prints_sealed_and_unsealed_rows(data: Path) -> None:
    lines = [json.loads(line) for line in call("quiver", "cat", str(data)).stdout.splitlines()]
    assert [line["payload"] for line in lines] == ['{"n": 1}', "base64://4=", "unsealed"]
    limited = call("quiver", "cat", str(data), "--limit", "1", "--columns", "payload").stdout
    assert json.loads(limited) == {"payload": '{"n": 1}'}


def test_quiver_cat_reads_beside_a_running_owner(tmp_path: Path) -> None:
    with Quiver.open(tmp_path) as quiver:
        quiver.append_raw(b"live")
        result = run("quiver", "cat", str(tmp_path))
    assert json.loads(result.stdout)["payload"] == "live"


def test_an_error_tells_what_and_where_and_what_next(tmp_path: Path) -> None:
    result = call("quiver", "ls", str(tmp_path))
    assert result.returncode == 78
    assert "there is no quiver here" in result.stderr
    assert str(tmp_path) in result.stderr
    assert "next:" in result.stderr


def test_an_error_is_json_where_json_was_asked_for(tmp_path: Path) -> None:
    result = call("quiver", "ls", str(tmp_path), "--json")
    told = json.loads(result.stderr)
    assert told["error"] == "CannotOpen"
    assert told["hint"]
    assert result.stdout == ""


def test_a_missing_segment_is_a_bad_input(data: Path) -> None:
    assert call("quiver", "show", str(data), "99").returncode == 2


def test_a_wrong_option_exits_with_usage() -> None:
    result = call("quiver", "ls", "--nonsense", "x")
    assert result.returncode == 2
    assert "--nonsense" in result.stderr


def test_prove_lists_its_fault_points() -> None:
    points = json.loads(call("prove", "quiver", "--list", "--json").stdout)
    assert {"point": "wal.sync", "step": "sync one group: the moment of acknowledgement"} in points


def test_a_proof_that_cannot_begin_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**_: object) -> None:
        raise NotInstalled("this needs an extra", hint="install it")

    monkeypatch.setattr(prove, "run", run)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told = call("prove", "store", "--kills", "1")
    assert (told.returncode, told.stderr) == (78, "error: this needs an extra\nnext: install it\n")
    assert list(tmp_path.iterdir()) == []


def test_prove_refuses_a_directory_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    result = call("prove", "quiver", "--dir", str(tmp_path))
    assert result.returncode == 2
    assert "not empty" in result.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_counts_with_spark_what_it_accepted() -> None:
    result = run("demo", "--seconds", "1", "--spark", "--json", timeout_s=800)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["ok"]
    assert told["counted"] == told["stored"] >= told["accepted"] > 0
    assert "counting.events" in {account["subscriber"] for account in told["ledger"]}


def test_the_demo_reconciles() -> None:
    result = run("demo", "--seconds", "0.5", "--no-spark", "--json", timeout_s=280)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["ok"]
    assert (told["client"], told["kills"], told["lost"]) == ("openlineage-python", 4, 0)
    arrived = told["accepted"] + told["unanswered"]
    assert told["accepted"] > 0
    assert told["delivered"] == {"backend-a": arrived, "backend-b": arrived}
    assert told["copied"] == {"node-a": told["stored"], "node-b": told["stored"]}
    assert [account["holds"] for account in told["ledger"]] == [True] * 5
    spans = told["spans"]
    assert (spans["client"], spans["lost"]) == ("opentelemetry-sdk", 0)
    assert spans["delivered"] == spans["accepted"] > 0


def test_a_wrong_path_is_no_traceback(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("nodes: {}")
    of = ("--store", str(tmp_path / "store"))
    assert call("store", "create", *of).returncode == 0
    assert call("files", "put", "1", str(file), *of).returncode == 0
    wrong = call("files", "export", "1", str(file / "x.tar"), *of)
    assert (wrong.returncode, wrong.stderr.splitlines()) == (
        2,
        [
            f"error: not a directory [{file / 'x.tar'}]",
            "next: check the path, and the rights of the user who runs this",
        ],
    )
    told = call("files", "export", "1", str(file / "x.tar"), *of, "--json")
    assert json.loads(told.stderr)["path"] == str(file / "x.tar")


def test_a_slot_that_nothing_has_is_a_mistake(data: Path) -> None:
    wrong = call("quiver", "cat", str(data), "--slot", "nope")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: there is no slot 'nope'\nnext: there is ")


def test_a_bundle_of_the_future_is_not_found(data: Path) -> None:
    told = call("explain", "999999", str(data))
    assert told.returncode == 1
    assert "nowhere: the newest bundle is 1" in told.stdout
    assert "pending" not in told.stdout
    assert call("explain", "1", str(data)).returncode == 0


def test_a_target_that_is_not_there_is_not_called_an_empty_one(tmp_path: Path) -> None:
    for words in (("quiver", "ls"), ("report",), ("status",)):
        told = call(*words, str(tmp_path / "nope.yaml"))
        assert told.returncode == 78
        assert "no such file or directory" in told.stderr


@pytest.mark.parametrize("typed", ["yesterday", "2026-11-15", "10:00", "99999999999d", "2026"])
def test_a_time_that_cannot_be_read_says_how_to_write_one(data: Path, typed: str) -> None:
    told = call("report", str(data), "--since", typed)
    assert told.returncode == 2
    assert "next: write it as 2026-11-15T10:00:00Z" in told.stderr


@pytest.mark.parametrize("typed", ["1h", "90m", "7d", "2020-01-01T00:00:00Z"])
def test_a_time_may_be_said_as_how_long_ago_it_was(data: Path, typed: str) -> None:
    assert "Nothing was lost since 20" in call("report", str(data), "--since", typed).stdout
