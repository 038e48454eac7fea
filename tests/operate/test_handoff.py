"""`holdfast handoff` beside a running gateway with two data nodes; and the answers of workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.graph.gateways import gateway_of, running, send
from tests.graph.lineage import run_event
from tests.graph.test_nodes import TwoNodes, graph_of, nodes
from tests.handoff.comparing import verbs_of
from tests.handoff.test_sender import Calm
from tests.patience import until, until_async

from holdfast.errors import BadInput
from holdfast.graph.control import gateway_verbs
from holdfast.handoff.control import VERB
from holdfast.node.data_node import DataNode
from holdfast.node.replica import AdoptedPart
from holdfast.operate.cli import cli
from holdfast.operate.supervisor import Workers
from holdfast.operate.up import worker_directory
from holdfast.quiver.engine.control import serve
from holdfast.seam.clock import RealClock

__all__ = ["nodes"]


def invoke(*words: str, ends: int = 0, given: str | None = None) -> Result:
    result = CliRunner().invoke(cli, ["handoff", *words], input=given, standalone_mode=False)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert (result.return_value or 0) == ends, result.output
    return result


def asked(*words: str, ends: int = 0) -> Any:
    return json.loads(invoke(*words, "--json", ends=ends).stdout)


@contextlib.contextmanager
def listening(directory: Path, verbs: Any) -> Iterator[None]:
    control = serve(PurePath(directory), verbs, RealClock())
    assert control is not None
    try:
        yield
    finally:
        control.close()


def use(target: str) -> None:
    """Pause a node, lose a part of it by hand, find that out, and mend it."""
    assert [one["node"] for one in asked("status", target)] == ["a", "b"]
    invoke("pause", "a", target)
    assert "paused" in invoke("status", target, "--node", "a").output
    token = asked("syncpoint", "create", target)["token"]
    (waiting,) = asked("ls", target, "--node", "a")
    part = waiting["part"]
    assert part in invoke("ls", target).output
    shown = {one["node"]: one for one in asked("show", part, target)}
    assert shown["a"]["state"] == "waiting"
    assert asked("syncpoint", "wait", token, target, "--timeout", "0s", ends=75)["senders"][0][
        "waiting"
    ] == {"a": [[0, waiting_end(part)]]}
    # Nothing is given up without a word.
    refused = CliRunner().invoke(cli, ["handoff", "discard", part, target, "--node", "a"], "n\n")
    assert refused.exit_code == 1
    assert "lost to a" in str(refused.exception)
    assert len(asked("ls", target, "--node", "a")) == 1
    drop = ["drop", "a", target, "--before", "2001-01-01T00:00:00+00:00", "--yes"]
    with pytest.raises(BadInput, match="nothing like that waits"):
        invoke(*drop)
    assert "1 part given up" in invoke("discard", part, target, "--node", "a", "--yes").output
    invoke("resume", "a", target)
    (gap,) = asked("gaps", target, ends=65)
    assert (gap["node"], gap["outcome"]) == ("a", "dropped")
    assert "dropped" in invoke("gaps", target, ends=65).output
    reached = asked("syncpoint", "wait", token, target, "--timeout", "60s", ends=65)
    assert reached["senders"][0]["lost"] == {"a": [[0, waiting_end(part)]]}
    (repaired,) = asked("repair", target)["repaired"]
    assert (repaired["part"], repaired["answer"] in ("ack", "waits")) == (part, True)
    # Its next statement says that it has it.
    until(lambda: looked(token, target)["is_complete"], "that nothing is lost any more")
    assert "no data node lacks anything" in invoke("gaps", target).output
    assert asked("verify", target)["compared_parts"] == 1
    assert "0 differ" in invoke("verify", target).output
    change(target)


def change(target: str) -> None:
    assert asked("rate", "5MB", target, "--node", "a")[0]["rate_bytes_s"] == 5 << 20
    assert "no limit" in invoke("rate", "off", target).output
    assert asked("retry", "b", target)[0]["node"] == "b"
    assert "0 parts released" in invoke("release", target).output
    assert asked("drain", "b", target, "--wait")[0]["is_drained"]
    assert "bound to whoever" in invoke("rebind", "a", target, "--yes").output
    assert "forgotten" in invoke("forget", "b", target, "--mode", "reassign", "--yes").output
    assert [one["node"] for one in asked("status", target)] == ["a"]
    for words in (["pause", "nobody"], ["forget", "nobody", "--mode", "drop"], ["drain", "b"]):
        with pytest.raises(BadInput, match="there is no data node"):
            invoke(words[0], words[1], target, *words[2:])
    for words in (["show", "7"], ["rate", "quick"], ["syncpoint", "wait", "x"]):
        with pytest.raises(BadInput):
            invoke(*words, target)
    with pytest.raises(BadInput, match="--before is missing"):
        invoke("drop", "a", target)


def looked(token: str, target: str) -> Any:
    words = ["handoff", "syncpoint", "wait", token, target, "--timeout", "0s", "--json"]
    return json.loads(CliRunner().invoke(cli, words, standalone_mode=False).stdout)


def waiting_end(part: str) -> int:
    return int(part.rpartition("-")[2]) + 1


def test_operators_find_out_what_a_node_lacks_and_mend_it(tmp_path: Path, nodes: TwoNodes) -> None:
    async def run() -> None:
        async with running(gateway_of(tmp_path, graph_of(nodes))) as gateway:
            (runner,) = gateway.handoffs["copies"]
            handoff = runner.handoff
            await until_async(lambda: handoff.healthy_nodes() == {"a", "b"})
            with handoff.lock:
                handoff.workers["a"].reader.pause()
            assert await send(gateway, run_event(job="one")) == [200]
            await until_async(lambda: handoff.quiver.segments() != ())
            point = handoff.sync_point()
            await until_async(lambda: set(handoff.reached(point).waiting) == {"a"})
            verbs = gateway_verbs(gateway, asyncio.get_running_loop())
            with listening(tmp_path / "data", verbs):
                await asyncio.to_thread(use, str(tmp_path / "data"))

    asyncio.run(run())


def test_a_node_is_added_while_the_gateway_runs_and_is_still_there_afterwards(
    tmp_path: Path, nodes: TwoNodes
) -> None:
    graph = graph_of(nodes).replace(f', b: "{nodes["b"][1]}"', "")
    target, where = str(tmp_path / "data"), nodes["b"][1]

    def use() -> None:
        assert "could be added" in invoke("add", "b", where, target, "--dry-run").output
        assert [one["node"] for one in asked("status", target)] == ["a"]
        with pytest.raises(BadInput, match="no exporter 'nobody'"):
            invoke("add", "b", where, target, "--exporter", "nobody")
        (added,) = asked("add", "b", where, target)
        assert (added["node_id"], added["from_seq"] > 0) == (nodes["b"][0].node_id, True)
        with pytest.raises(BadInput, match="was added already"):
            invoke("add", "b", where, target)
        assert "yet: " in invoke("add", "c", "127.0.0.1:9", target).output
        status = {one["node"]: one for one in asked("status", target)}
        assert {name: one["is_added"] for name, one in status.items()} == {
            "a": False,
            "b": True,
            "c": True,
        }
        assert where in invoke("status", target).output
        assert "forgotten" in invoke("forget", "c", target, "--mode", "drop", "--yes").output

    async def run(job: str, use: Callable[[], None] | None) -> None:
        async with running(gateway_of(tmp_path, graph)) as gateway:
            runner = gateway.handoffs["copies"][0]
            assert await send(gateway, run_event(job=job)) == [200]
            await until_async(lambda: runner.handoff.quiver.segments() != ())
            with listening(tmp_path / "data", gateway_verbs(gateway, asyncio.get_running_loop())):
                if use is not None:
                    await asyncio.to_thread(use)
            assert await send(gateway, run_event(job=f"{job} and then")) == [200]
            point = runner.handoff.sync_point()
            await until_async(lambda: runner.handoff.reached(point).is_complete)
            assert sorted(runner.handoff.membership.bound) == ["a", "b"]

    asyncio.run(run("one", use))
    first_seq = [min(part.summary.first_seq for part in _parts(node)) for node, _ in nodes.values()]
    assert first_seq[0] == 0 < first_seq[1]
    asyncio.run(run("after a restart", None))
    assert max(part.summary.last_seq for part in _parts(nodes["b"][0])) > first_seq[1]


def _parts(node: DataNode) -> list[AdoptedPart]:
    return [part for replica in node.replicas() for part in replica.parts()]


def test_a_gateway_without_data_nodes_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(gateway_of(tmp_path)) as gateway:
            verbs = gateway_verbs(gateway, asyncio.get_running_loop())
            with listening(tmp_path / "data", verbs):
                await asyncio.to_thread(invoke, "status", str(tmp_path / "data"))

    with pytest.raises(BadInput, match="sends to no data nodes"):
        asyncio.run(run())


def test_the_senders_of_several_workers_answer_as_one(tmp_path: Path) -> None:
    sims = [Calm(1, seed=1), Calm(1, seed=2)]
    with contextlib.ExitStack() as stack:
        for number, sim in enumerate(sims):
            stack.callback(sim.quiver.close)
            sim.run(10.0)
            sim.seal(1 + number)
            directory = worker_directory(tmp_path, number)
            directory.mkdir(parents=True)
            stack.enter_context(listening(directory, {VERB: verbs_of(sim)}))
        verb = Workers(tmp_path, 2).verbs()[VERB]
        waiting = verb({"action": "ls"})["records"]
        assert [one["worker"] for one in waiting] == [0, 1, 1]
        assert len(verb({"action": "ls", "worker": 1})["records"]) == 2
        # A part is one worker's, a rate is all of theirs together.
        part = waiting[-1]["part"]
        (lost,) = verb({"action": "discard", "part": part, "node": "a"})["records"]
        assert (lost["worker"], lost["is_dropped"]) == (1, True)
        verb({"action": "rate", "bytes_s": 10})
        assert {sim.handoff.scheduler.rate() for sim in sims} == {5.0}
        tokens = [one["token"] for one in verb({"action": "syncpoint"})["records"]]
        reached = verb({"action": "reached", "tokens": tokens})["records"]
        assert [one["is_reached"] for one in reached] == [False, False]
        with pytest.raises(BadInput, match="no worker 7"):
            verb({"action": "ls", "worker": 7})
