"""What a proof leaves behind: nothing when all is well, and all its logs when it is not."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast import prove
from holdfast.errors import CheckFailed
from holdfast.operate.cli.cmd_prove import command


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where proofs make their folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, outcome: bool | BaseException) -> Result:
    """Run a proof that writes a log, and then ends so."""

    def proof(name: str, *, directory: Path, **_: Any) -> dict[str, Any]:
        (directory / "logs").mkdir(parents=True)
        (directory / "logs" / "gateway").write_text("what went wrong")
        if isinstance(outcome, BaseException):
            raise outcome
        return {"proof": name, "ok": outcome}

    monkeypatch.setattr(prove, "run", proof)
    return CliRunner().invoke(command, ["quiver", "--json"], standalone_mode=False)


def test_a_proof_that_holds_leaves_nothing(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, True).return_value == 0
    assert not list(scratch.iterdir())


def test_a_proof_that_gave_up_keeps_the_logs_that_it_points_to(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(monkeypatch, CheckFailed("a pipeline does not go on", hint="see the logs"))
    assert isinstance(result.exception, CheckFailed)
    (kept,) = scratch.iterdir()
    assert (kept / "logs" / "gateway").read_text() == "what went wrong"
    assert str(kept) in result.stderr.replace("\n", "")


def test_a_broken_promise_keeps_everything(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, False)
    assert result.return_value == 3
    (kept,) = scratch.iterdir()
    assert (kept / "logs" / "gateway").exists()
    assert str(kept) in result.stderr.replace("\n", "")
    assert json.loads(result.stdout) == {"proof": "quiver", "ok": False}


def test_a_proof_that_was_interrupted_leaves_nothing(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(monkeypatch, KeyboardInterrupt())
    assert not list(scratch.iterdir())
