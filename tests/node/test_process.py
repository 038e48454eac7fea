"""`holdfast node` as a process: started, killed, started again; probes; and what it refuses."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.node.handing_over import hand_over, some_parts
from tests.node.serving import connected, served
from tests.patience import PATIENCE_S

from holdfast.errors import BadConfig, BadInput, Damaged, DirectoryLocked
from holdfast.node.data_node import DataNode
from holdfast.node.probe import ProbeServer
from holdfast.node.settings import DataNodeSettings
from holdfast.operate.cli import cli
from holdfast.quiver.read.sealed import SealedRead
from holdfast.remote import ClientSettings, RemoteQuiver
from holdfast.replica.flight import FlightTransport
from holdfast.replica.messages import AnswerKind
from holdfast.replica.part import part_id
from holdfast.replica.verify import verify
from holdfast.seam.disk import RealDisk


@contextlib.contextmanager
def running(
    folder: Path, listen: str = "127.0.0.1:0"
) -> Iterator[tuple[subprocess.Popen[str], FlightTransport, str]]:
    """Run a node until the end of the block, or until it is killed in it."""
    command = [sys.executable, "-m", "holdfast", "node", "--data", str(folder)]
    command += ["--listen", listen, "--min-free", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        transport = None
        try:
            location = process.stdout.readline().split()[-1]
            patient = ClientSettings(timeout=PATIENCE_S)
            transport = FlightTransport(location, patient, put_patience_s=PATIENCE_S)
            yield process, transport, location
        finally:
            if transport is not None:
                transport.close()
            process.kill()
            process.wait()


@pytest.mark.timeout(120)
def test_scenario_01_a_node_that_is_killed_has_what_it_acknowledged_once(tmp_path: Path) -> None:
    parts = some_parts()
    folder = tmp_path / "node"
    acked = 0
    with running(folder) as (process, transport, _):
        node_id = transport.health().node_id
        sending = threading.Thread(target=process.kill)
        acked = len(transport.send(node_id, parts[:1]))
        sending.start()  # while the others are on their way, or before, or after
        with contextlib.suppress(Exception):
            acked += sum(one.kind is AnswerKind.ACK for one in transport.send(node_id, parts[1:]))
        sending.join()
    with running(folder) as (process, transport, location):
        assert transport.health().node_id == node_id
        kinds = [one.kind for one in transport.send(node_id, parts)]
        assert kinds[:acked] == [AnswerKind.HAVE] * acked
        assert set(kinds) <= {AnswerKind.HAVE, AnswerKind.ACK}
        quiver_id = parts[0].part.id.quiver_id
        # Rows come from its reading process, holes and all.
        with RemoteQuiver.open(location, quiver_id) as remote:
            names = tuple(one.name for one in remote.segments("slot-0"))
            rows = remote.read(SealedRead(quiver_id, names, "slot-0")).read_all()
            assert set(rows.column("_seq").to_pylist()) == {0, 1, 3, 5, 6}
        # A process that goes on gets its signals in any thread, and must notice them all the same.
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        for number in (signal.SIGCONT, signal.SIGTERM):
            process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
    segments = folder / "replicas" / quiver_id / "segments"
    found = sorted(part_id(verify(RealDisk(), one)) for one in segments.iterdir())
    assert found == [one.part.id for one in parts]
    assert not list((segments.parent / "staging").iterdir())


def get(port: int, path: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_probes_say_whether_it_lives_and_whether_it_takes_parts(tmp_path: Path) -> None:
    node = DataNode(tmp_path / "a", DataNodeSettings(min_free=0))
    full = DataNode(tmp_path / "b", DataNodeSettings(min_free=1 << 60))
    with ProbeServer(node, "127.0.0.1:0", str) as probes:
        assert get(probes.port, "/healthz") == (200, {"status": "ok", "node_id": node.node_id})
        assert get(probes.port, "/readyz") == (200, {"ready": True, "reasons": []})
        assert get(probes.port, "/other")[0] == 404
    with ProbeServer(full, "127.0.0.1:0", str) as probes:
        status, answer = get(probes.port, "/readyz")
        assert status == 503
        assert "min_free" in str(answer["reasons"])
        assert get(probes.port, "/healthz")[0] == 200
    node.close()
    full.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--listen", "nowhere"], "--listen"),
        (["--max-age", "soon"], "--max-age"),
        (["--max-size", "-3"], "--max-size"),
        (["--listen", "0.0.0.0:0"], "anybody"),
        (["--token-file", "missing"], "token"),
        (["--tls-cert", "missing.pem"], "--tls"),
        (["--http", "nowhere"], "--http"),
        (["--cold-store", "store"], "max_age or max_size"),
    ],
)
def test_what_is_wrong_with_its_options_is_said(
    tmp_path: Path, options: list[str], says: str
) -> None:
    result = CliRunner().invoke(cli, ["node", "--data", str(tmp_path), *options])
    assert isinstance(result.exception, BadConfig), result.output
    assert says in str(result.exception)


def test_scenario_32_a_directory_that_is_served_is_refused(tmp_path: Path) -> None:
    node = DataNode(tmp_path)
    result = CliRunner().invoke(cli, ["node", "--data", str(tmp_path), "--listen", "127.0.0.1:0"])
    assert isinstance(result.exception, DirectoryLocked)
    node.close()


def test_a_node_is_scrubbed_by_its_address_or_by_its_directory(tmp_path: Path) -> None:
    parts = some_parts()

    def scrub(target: str) -> tuple[int, dict[str, Any]]:
        command = ["node", "scrub", target, "--json"]
        done = CliRunner().invoke(cli, command, standalone_mode=False)
        assert done.exception is None
        return done.return_value, json.loads(done.stdout)

    with served(tmp_path) as (node, location):
        for one in parts:
            hand_over(node, one)
        read = {"parts": 4, "size_bytes": sum(one.part.size_bytes for one in parts)}
        assert scrub(location) == (0, {"ok": True, **read, "damaged": []})
        folder = Path(node._all_parts()[1].folder)
        (folder / "bundles.arrow").write_bytes(b"garbage")
        code, found = scrub(location)
        assert (code, found["ok"], found["parts"]) == (Damaged.exit_code, False, 4)
        (damaged,) = found["damaged"]
        assert damaged["part"] == str(parts[1].part.id)
        assert Path(damaged["folder"], "manifest").is_file()
        done = CliRunner().invoke(cli, ["node", "scrub", str(node.root)])
        assert isinstance(done.exception, DirectoryLocked)
        assert "while it runs" in done.exception.hint
        with connected(location) as transport, pytest.raises(BadInput, match="another was meant"):
            transport.scrub("another")
    assert scrub(str(tmp_path / "node"))[1]["parts"] == 3
    done = CliRunner().invoke(cli, ["node", "scrub", str(tmp_path)])
    assert isinstance(done.exception, BadInput)
