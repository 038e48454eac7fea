"""`holdfast gc` on a real store in a folder: plan, run, status, serve."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from tests.patience import PATIENCE_S

from holdfast.errors import BadConfig, BadInput, CannotOpen
from holdfast.operate.cli.cmd_gc import command
from holdfast.seam.holder import this_process
from holdfast.store.gc import gc_pb2 as pb
from holdfast.store.gc.service import SERVICE
from holdfast.store.objects.objects import ChunkKey, hash_of
from holdfast.store.store import Store


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A store with one commit's chunk, one that nothing refers to, and an orphan."""
    place = str(tmp_path / "store")
    with Store.create(place) as store, store.references.open_job("j") as job:
        references = store.references
        for data in (b"kept", b"garbage"):
            (reserved,) = references.reserve_chunks(job, [(hash_of(data), len(data))])
            store.objects.put(reserved.key.object_key(), [data])
            references.mark_uploaded(job, [(reserved.key, [])])
        references.confirm_commit(references.publish_commit(job, "c", b"", [hash_of(b"kept")]))
        (number,) = references.database.numbers(1)
        store.objects.put(ChunkKey(hash_of(b"orphan"), number).object_key(), [b"orphan"])
    return place


def run(*words: str) -> Any:
    """Run a command with --json, and return what it says."""
    result = CliRunner().invoke(command, [*words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_look_run_look(place: str) -> None:
    plan = run("plan", "--store", place)
    assert plan["totals"] == [{"reason": "nothing refers to it", "chunks": 1, "bytes": 7}]
    assert [one["chunk"] for one in plan["chunks"]] == [hash_of(b"garbage").hex()]
    done = run("run", "--store", place, "--grace", "0s", "--objects-per-s", "1000")
    assert (done["objects_deleted"], done["bytes_deleted"]) == (1, 7)
    assert done["sweep"]["orphans_deleted"] == 1
    assert run("plan", "--store", place)["totals"] == []
    status = run("status", "--store", place)
    assert status["states"]["live"] == {"chunks": 1, "size_bytes": 4}
    assert status["collectors"][0]["chunks"] == 1
    assert run("run", "--store", place, "--no-sweep")["sweep"] is None


def test_tables_for_people(place: str) -> None:
    for words, expected in (
        (["plan", "--store", place], hash_of(b"garbage").hex()[:16]),
        (["run", "--store", place], "orphans too young"),
        (["status", "--store", place], "commits published: 1"),
    ):
        result = CliRunner().invoke(command, words, catch_exceptions=False)
        assert result.exit_code == 0
        assert expected in result.output


VICTIM = """
import sys
from holdfast.seam import Seam
from holdfast.seam.disk import RealDisk
from holdfast.store.objects.objects import hash_of
from holdfast.store.store import Store

class Stopping(RealDisk):
    def link(self, source, target, at):
        print("stopped", flush=True)
        sys.stdin.read()

store = Store.open(sys.argv[1], seam=Seam(disk=Stopping()))
job = store.references.open_job("a put that is killed")
(reserved,) = store.references.reserve_chunks(job, [(hash_of(b"half"), 4)])
store.objects.put(reserved.key.object_key(), [b"half"])
"""


@pytest.mark.skipif(not this_process().boot, reason="who is dead is known with /proc")
def test_what_a_killed_put_leaves_is_shown_and_goes_at_once(place: str) -> None:
    """Its files stayed for a day, its lease for ten minutes, and nobody could tell whose it was."""
    words = [sys.executable, "-c", VICTIM, place]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"stopped\n"
        [lease] = run("status", "--store", place)["leases"]
        assert (lease["name"], lease["pid"]) == ("a put that is killed", victim.pid)
        assert (lease["host"], lease["verdict"]) == (this_process().host, "at work")
        refused = CliRunner().invoke(command, ["end-lease", str(lease["id"]), "--store", place])
        assert refused.exit_code == 1, "nobody said yes"
        done = run("run", "--store", place)
        assert (done["leases_expired"], done["temporary_files"]["kept"]) == (0, 1)
        victim.kill()
    assert run("end-lease", str(lease["id"]), "--store", place)["verdict"] == "its process is dead"
    with pytest.raises(BadInput, match="no lease"):
        run("end-lease", str(lease["id"]), "--store", place)
    assert run("status", "--store", place)["leases"] == []
    assert not list(Path(place, "tmp").iterdir()), "they went when the store was opened"


def test_shards_are_run_one_by_one(place: str) -> None:
    done = [run("run", "--store", place, "--shard", f"{part}/4") for part in range(1, 5)]
    assert sum(one["objects_deleted"] for one in done) == 1


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["run", "--shard", "5/4"], BadInput),
        (["serve", "--listen", "0.0.0.0:0"], BadConfig),
        (["serve", "--token-file", "missing"], BadConfig),
        (["serve", "--tls-key", "missing"], BadConfig),
    ],
)
def test_bad_options_are_told(place: str, words: list[str], error: type[Exception]) -> None:
    with pytest.raises(error):
        CliRunner().invoke(command, [*words, "--store", place], catch_exceptions=False)


@pytest.mark.parametrize(
    "words", [["--grace", "soon"], ["--bytes-per-s", "fast"], ["--objects-per-s", "0"]]
)
def test_bad_values_are_told(place: str, words: list[str]) -> None:
    result = CliRunner().invoke(command, ["run", "--store", place, *words])
    assert result.exit_code == 2


def test_no_store_is_told(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen):
        run("status", "--store", str(tmp_path))


def test_serve_until_told_to_stop(place: str) -> None:
    words = ["gc", "serve", "--store", place, "--listen", "127.0.0.1:0", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = ""
            while "}" not in said:
                line = process.stdout.readline()
                assert line, "it ended"
                said += line
            with grpc.insecure_channel(json.loads(said)["listen"]) as channel:
                flush = channel.unary_unary(
                    f"/{SERVICE}/FlushDeletes",
                    request_serializer=pb.FlushDeletesRequest.SerializeToString,
                    response_deserializer=pb.FlushDeletesResponse.FromString,
                )
                named = [pb.Chunk(hash=hash_of(b"garbage"))]
                flush(pb.FlushDeletesRequest(chunks=named), timeout=PATIENCE_S, wait_for_ready=True)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    with Store.open(place) as store:
        assert hash_of(b"kept") in store.references.resolve([hash_of(b"kept")])
