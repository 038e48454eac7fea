"""The gateway in this process: what it opens, delivers, tells, changes and closes."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import pytest
from tests.graph.gateways import GRAPH, REGISTRY, address, gateway_of, running, send
from tests.graph.lineage import post, run_event
from tests.graph.toys import exporter as toy_exporter
from tests.graph.toys.exporter import DELIVERED, REFUSING, MemoryExporter
from tests.patience import APPEND_S, PATIENCE_S, until, until_async

from holdfast.dead_letters.stored import LetterSelection
from holdfast.deliver import destination
from holdfast.deliver.destination import Destination
from holdfast.deliver.exporter import Answer, ExporterContext
from holdfast.deliver.redrive import replay_request
from holdfast.errors import BadConfig, BadInput, CannotOpen
from holdfast.graph.control import gateway_verbs
from holdfast.graph.loader import load
from holdfast.graph.reload import reload
from holdfast.graph.runtime import Gateway
from holdfast.graph.worker_quivers import WorkerQuivers
from holdfast.quiver import Quiver
from holdfast.quiver.log.reserve import FREE_BYTES_MIN
from holdfast.receive.receiver import ReceiverContext
from holdfast.seam import Seam
from holdfast.seam.disk import RealDisk
from holdfast.signals.event import Event


@pytest.fixture(autouse=True)
def nothing_delivered() -> Iterator[None]:
    DELIVERED.clear()
    REFUSING.clear()
    yield
    DELIVERED.clear()
    REFUSING.clear()


def jobs(payloads: list[bytes]) -> list[str]:
    return [json.loads(payload.removeprefix(b">"))["job"]["name"] for payload in payloads]


def test_events_reach_every_destination_by_its_way(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(gateway_of(tmp_path)) as gateway:
            events = [run_event(job=name) for name in ("a", "a secret", "b")]
            assert await send(gateway, *events) == [200, 200, 200]

            async def counted() -> bool:
                # After it was delivered: the exporter has an event before its destination counts.
                told = await gateway.statistics()
                by_name = {one.name: one.figures for one in told.destinations}
                left, right = by_name["left"], by_name["right"]
                return (left.sent_events, right.sent_events, right.filtered) == (3, 2, 1)

            await until_async(counted)
            assert (await gateway.statistics()).receivers["lineage"].accepted == 3
            assert await gateway.not_ready() == []

    asyncio.run(run())
    assert jobs(DELIVERED["left"]) == ["a", "a secret", "b"]
    assert jobs(DELIVERED["right"]) == ["a", "b"]
    with Quiver.open(tmp_path / "data" / "quiver" / "core-00") as quiver:
        assert set(quiver.subscribers()) == {"left", "right"}
        assert quiver.balance("right").holds
        assert quiver.balance("right").pending.events == 0


def test_what_a_gateway_tells_tools_of_itself_is_json(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(gateway_of(tmp_path)) as gateway:
            status = gateway_verbs(gateway, asyncio.get_running_loop())["status"]
            told = json.loads(json.dumps(await asyncio.to_thread(status, {})))
            assert told["receivers"]["lineage"]["items"] == {}

    asyncio.run(run())


def test_a_disk_with_less_free_than_is_wanted_takes_nothing(tmp_path: Path) -> None:
    text = GRAPH.replace("to: [left, clean]", "to: [hold]")
    text += "  hold: {kind: processor, type: quiver, to: [left, clean], "
    text += "config: {retention: {min_free: 1000000TB}}}\n"

    async def run() -> None:
        async with running(gateway_of(tmp_path, text)) as gateway:
            (reason,) = await gateway.not_ready()
            assert "hold refuses" in reason

    asyncio.run(run())


def test_a_stopped_gateway_leaves_nothing_open_and_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        gateway = gateway_of(tmp_path)
        assert await gateway.not_ready() == ["the gateway is new"]
        await gateway.start()
        where = address(gateway)
        await gateway.stop()
        assert gateway.state == "stopped"
        assert (await gateway.statistics()).quivers == {}
        await gateway.stop()
        with pytest.raises(OSError, match="refused"):
            await asyncio.to_thread(post, where, run_event())

    asyncio.run(run())
    Quiver.open(tmp_path / "data" / "quiver" / "core-00").close()


def test_what_one_run_did_not_deliver_the_next_one_does(tmp_path: Path) -> None:
    async def first() -> None:
        async with running(gateway_of(tmp_path)) as gateway:
            gateway.pause("left")
            assert await send(gateway, *(run_event(job=f"j{n}") for n in range(5))) == [200] * 5
            await until_async(lambda: len(DELIVERED["right"]) == 5)
            await gateway.stop()
            assert gateway.left_events == {"left": 5, "right": 0}

    async def second() -> None:
        async with running(gateway_of(tmp_path)) as gateway:
            figures = {one.name: one.figures for one in (await gateway.statistics()).destinations}
            assert figures["left"].state == "paused"
            gateway.resume("left")
            await until_async(lambda: len(DELIVERED["left"]) == 5)

    asyncio.run(first())
    asyncio.run(second())
    assert jobs(DELIVERED["left"]) == [f"j{n}" for n in range(5)]
    assert len(DELIVERED["right"]) == 5


def test_the_policy_of_every_destination_is_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = GRAPH.replace(
        "left: {kind: exporter, type: memory}",
        "left: {kind: exporter, type: memory, "
        "delivery: {on_full: block, retention_time: 5h, retention_size: null}}",
    )

    async def run() -> None:
        async with running(gateway_of(tmp_path, text)):
            pass

    with caplog.at_level(logging.INFO, "holdfast.graph"):
        asyncio.run(run())
    assert (
        "destination left: events wait for at most 5 hours, then receivers answer "
        "503" in caplog.messages
    )
    assert (
        "destination right: events wait for as long as the quiver has room, then receivers answer "
        "503" in caplog.messages
    )


def test_a_start_that_fails_closes_what_it_opened(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(gateway_of(tmp_path)) as gateway:
            port = address(gateway).rpartition(":")[2]
            (tmp_path / "other").mkdir()
            other = gateway_of(
                tmp_path / "other", GRAPH.replace("127.0.0.1:0", f"127.0.0.1:{port}")
            )
            with pytest.raises(BadConfig, match="cannot listen"):
                await other.start()
            assert other.state == "stopped"

    asyncio.run(run())
    Quiver.open(tmp_path / "other" / "data" / "quiver" / "core-00").close()


def test_two_gateways_cannot_have_one_directory(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(gateway_of(tmp_path)):
            with pytest.raises(CannotOpen, match="in use"):
                await gateway_of(tmp_path).start()

    asyncio.run(run())


class Replay(NamedTuple):
    """A start that has come to its replay, and when it may go on."""

    runs: threading.Event
    may_go_on: threading.Event


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> Replay:
    """A replay that takes until the test says so."""
    open_store = WorkerQuivers.open
    held = Replay(threading.Event(), threading.Event())

    def slow_open(*arguments: Any) -> WorkerQuivers:
        held.runs.set()
        assert held.may_go_on.wait(PATIENCE_S)
        return open_store(*arguments)

    monkeypatch.setattr(WorkerQuivers, "open", slow_open)
    return held


def test_it_is_not_ready_while_it_replays(tmp_path: Path, replay: Replay) -> None:
    async def run() -> None:
        gateway = gateway_of(tmp_path)
        starting = asyncio.create_task(gateway.start())
        assert await asyncio.to_thread(replay.runs.wait, PATIENCE_S)
        assert await gateway.not_ready() == ["the gateway is replaying"]
        assert (await gateway.statistics()).state == "replaying"
        replay.may_go_on.set()
        await starting
        assert await gateway.not_ready() == []
        await gateway.stop(5.0)

    asyncio.run(run())


def test_a_start_that_is_cancelled_while_it_replays_leaves_nothing_open(
    tmp_path: Path, replay: Replay
) -> None:
    async def run() -> None:
        gateway = gateway_of(tmp_path)
        starting = asyncio.create_task(gateway.start())
        assert await asyncio.to_thread(replay.runs.wait, PATIENCE_S)
        starting.cancel()
        replay.may_go_on.set()
        await asyncio.wait([starting])
        assert starting.cancelled()
        assert gateway.state == "stopped"

    asyncio.run(run())
    Quiver.open(tmp_path / "data" / "quiver" / "core-00").close()


def test_a_destination_that_cannot_be_made_leaves_the_others_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = toy_exporter.make

    def refuse(config: toy_exporter.Config, context: ExporterContext) -> MemoryExporter:
        if context.name == "right":
            raise BadConfig("it cannot be", hint="do not")
        return make(config, context)

    monkeypatch.setattr(toy_exporter, "make", refuse)

    async def run() -> None:
        gateway = gateway_of(tmp_path)
        with pytest.raises(BadConfig):
            await gateway.start()
        assert gateway.state == "stopped"

    asyncio.run(run())
    # Those of the gateway of an earlier test may be on their way out.
    until(lambda: not [one for one in threading.enumerate() if one.name.startswith("deliver-")])


def test_a_delivery_that_ends_by_a_bug_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(destination, "RESTART_MIN_S", 0.01)
    whole_run = Destination.run
    broken: set[str] = set()

    async def run_once_with_a_bug(self: Destination) -> None:
        if self.name not in broken:
            broken.add(self.name)
            raise AssertionError("BUG: made by a test")
        await whole_run(self)

    monkeypatch.setattr(Destination, "run", run_once_with_a_bug)

    async def run() -> None:
        async with running(gateway_of(tmp_path)) as gateway:
            await send(gateway, run_event())
            await until_async(lambda: len(DELIVERED.get("left", ())) == 1)
            await until_async(lambda: len(DELIVERED.get("right", ())) == 1)

    asyncio.run(run())
    assert "left: the delivery ended because of a bug; restarting it" in caplog.messages


def test_a_stop_that_hurries_leaves_what_is_under_way_and_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends = asyncio.Event()

    async def hang(self: object, events: Sequence[Event]) -> Answer:
        sends.set()
        await asyncio.sleep(3600)
        raise AssertionError("BUG: it was not cut off")

    monkeypatch.setattr(MemoryExporter, "send", hang)

    async def run() -> None:
        gateway = gateway_of(tmp_path)
        await gateway.start()
        await send(gateway, run_event())
        await sends.wait()
        stopping = asyncio.create_task(gateway.stop(3600.0))
        await until_async(lambda: gateway.state == "stopping")
        stopping.cancel()
        await asyncio.wait([stopping])
        assert gateway.state == "stopped"

    asyncio.run(run())
    with Quiver.open(tmp_path / "data" / "quiver" / "core-00") as quiver:
        assert quiver.balance("left").pending.events == 1


# ------------------------------------------------------------------------- refusing


def test_it_is_not_ready_while_a_quiver_refuses(tmp_path: Path) -> None:
    text = GRAPH.replace("to: [left, clean]", "to: [hold]").replace(
        "left: {kind: exporter, type: memory}",
        "left: {kind: exporter, type: memory, delivery: {on_full: block, retention_size: 1MB}}",
    )
    text += "  hold: {kind: processor, type: quiver, config: {segment: {target_size: 1MB}}, "
    text += "to: [left, clean]}\n"
    large = run_event(job="x" * 600_000)

    async def run() -> None:
        async with running(gateway_of(tmp_path, text)) as gateway:
            gateway.pause("left")
            assert await send(gateway, large, large) == [200, 200]

            async def refuses() -> bool:
                return bool(await gateway.not_ready())

            await until_async(refuses)
            (reason,) = await gateway.not_ready()
            assert reason.startswith("hold refuses: subscriber 'left' is more than 1048576 bytes")
            assert "hold" in (await gateway.statistics()).refusing
            gateway.resume("left")

            async def takes() -> bool:
                return not await gateway.not_ready()

            await until_async(takes)

    asyncio.run(run())


class NearlyFullDisk(RealDisk):
    """The real one, with as much room as a test says."""

    room_bytes = 1 << 30

    def free_bytes(self, path: PurePath) -> int:
        return self.room_bytes


def test_it_is_not_ready_while_the_disk_refuses_events_larger_than_ordinary_ones(
    tmp_path: Path,
) -> None:
    text = GRAPH.replace("to: [left, clean]", "to: [hold]")
    text += "  hold: {kind: processor, type: quiver, to: [left, clean], "
    text += f"config: {{append: {{timeout: {APPEND_S * 1000:.0f}ms}}}}}}\n"
    (tmp_path / "graph.yaml").write_text(text)
    disk = NearlyFullDisk()
    graph = load(tmp_path / "graph.yaml", registry=REGISTRY).graph
    large = run_event(job="x" * 220_000)

    async def run() -> None:
        async with running(Gateway(graph, Seam(disk=disk))) as gateway:
            assert await send(gateway, run_event()) == [200]
            disk.room_bytes = FREE_BYTES_MIN + 200_000
            assert await send(gateway, large, run_event()) == [503, 200]
            (reason,) = await gateway.not_ready()
            assert reason.startswith("hold refuses: the disk has")
            assert "hold" in (await gateway.statistics()).refusing
            disk.room_bytes = 1 << 30
            assert await gateway.not_ready() == []
            assert (await gateway.statistics()).refusing == {}

    asyncio.run(run())


# --------------------------------------------------------------------- dead letters


def test_rejected_events_go_to_their_handlers(tmp_path: Path) -> None:
    text = "dead_letters: {handlers: {tell: {type: memory}}}\n" + GRAPH

    async def run() -> None:
        async with running(gateway_of(tmp_path, text)) as gateway:
            assert await send(gateway, {"wrong": 1}, run_event()) == [400, 200]
            await until_async(lambda: DELIVERED["tell"] == [b'{"wrong": 1}'])
            told = await gateway.statistics()
            assert told.dead_letters is not None
            assert told.dead_letters.rejected.events == 1
            (handler,) = [one for one in told.destinations if one.name == "tell"]
            assert handler.quiver == "dead_letters"

    asyncio.run(run())


def test_the_log_handler_says_why_without_the_payload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "dead_letters: {handlers: {tell: {type: log}}}\n" + GRAPH

    async def run() -> None:
        async with running(gateway_of(tmp_path, text)) as gateway:
            await send(gateway, {"hunter2": 1})
            await until_async(lambda: any("was not accepted" in line for line in caplog.messages))

    asyncio.run(run())
    (line,) = [line for line in caplog.messages if "was not accepted" in line]
    assert "was not accepted by lineage: invalid" in line
    assert "hunter2" not in line


def test_dead_letters_are_replayed_to_their_destination_only(tmp_path: Path) -> None:
    request = replay_request(LetterSelection(destination="left"))

    async def run() -> None:
        async with running(gateway_of(tmp_path, GRAPH)) as gateway:
            REFUSING.add("left")
            await send(gateway, run_event(job="x"))

            async def filed() -> bool:
                told = (await gateway.statistics()).dead_letters
                return told is not None and told.undelivered.events == 1

            await until_async(filed)
            refused = await gateway.replay_dead_letters(request)
            assert (refused["delivered"], refused["filed_again"]) == (0, 1)
            REFUSING.clear()
            replayed = await gateway.replay_dead_letters(request)
            assert (replayed["delivered"], replayed["filed_again"]) == (1, 0)
            await until_async(lambda: len(DELIVERED["right"]) == 1)
            with pytest.raises(BadInput, match="no destination"):
                await gateway.replay_dead_letters({"destination": "nobody"})
            told = (await gateway.statistics()).dead_letters
            assert told is not None
            assert told.undelivered.events == 0

    asyncio.run(run())
    assert jobs(DELIVERED["left"]) == jobs(DELIVERED["right"]) == ["x"]


# -------------------------------------------------------------------------- changing


async def has_filtered(gateway: Gateway, name: str, events: int) -> bool:
    (found,) = [one for one in (await gateway.statistics()).destinations if one.name == name]
    return found.figures.filtered == events


async def apply(gateway: Gateway, folder: Path, text: str) -> tuple[list[str], list[str]]:
    (folder / "graph.yaml").write_text(text)
    report = await reload(gateway, load(folder / "graph.yaml", registry=REGISTRY).graph)
    return report.applied, report.needs_restart


def test_a_reload_changes_destinations_and_processors(tmp_path: Path) -> None:
    changed = GRAPH.replace('mark: ">"', 'mark: ">"').replace('drop: "secret"', 'drop: "other"')
    changed += "  third: {kind: exporter, type: memory}\n"
    changed = changed.replace("to: [left, clean]", "to: [third, clean]").replace(
        "  left: {kind: exporter, type: memory}\n", ""
    )

    async def run() -> None:
        async with running(gateway_of(tmp_path)) as gateway:
            await send(gateway, run_event(job="a secret"))
            await until_async(lambda: len(DELIVERED["left"]) == 1)
            # Not yet decided, it would be up to the processor that comes now.
            await until_async(partial(has_filtered, gateway, "right", 1))
            applied, restart = await apply(gateway, tmp_path, changed)
            assert applied == [
                "the destination left is gone",
                "the destination right",
                "the destination third is new",
            ]
            assert restart == []
            await send(gateway, run_event(job="b secret"), run_event(job="c other"))
            await until_async(lambda: len(DELIVERED["third"]) == 3)
            await until_async(lambda: jobs(DELIVERED["right"]) == ["b secret"])
            assert await apply(gateway, tmp_path, changed) == ([], [])

    asyncio.run(run())
    assert len(DELIVERED["left"]) == 1


def test_a_reload_applies_limits_and_says_what_needs_a_restart(tmp_path: Path) -> None:
    changed = (
        "drain: 7s\nlogging: {level: debug, format: json}\nadmin: {listen: '127.0.0.1:9999'}\n"
        + GRAPH.replace(
            "left: {kind: exporter, type: memory}",
            "left: {kind: exporter, type: memory, delivery: {retention_size: 64MB}}",
        ).replace('listen: "127.0.0.1:0"', 'listen: "127.0.0.1:0", level: written')
    )

    async def run() -> None:
        async with running(gateway_of(tmp_path)) as gateway:
            applied, restart = await apply(gateway, tmp_path, changed)
            assert applied == ["drain", "logging.level", "the destination left"]
            assert restart == ["admin.listen", "logging.format", "the receiver lineage"]
            assert gateway.graph.settings.drain == 7.0
            again, _ = await apply(gateway, tmp_path, changed)
            assert again == []

    asyncio.run(run())
    with Quiver.open(tmp_path / "data" / "quiver" / "core-00") as quiver:
        options = quiver._engine.ledger.state.subscribers["left"].options
        assert options.max_bytes == 64 * 1024**2


def test_a_reload_gives_a_receiver_new_tokens(tmp_path: Path) -> None:
    with_token = GRAPH.replace(
        '"127.0.0.1:0"', '"127.0.0.1:0", tokens: [{name: a, token: first-token-1}]'
    )
    changed = with_token.replace("first-token-1", "second-token-2")

    async def run() -> None:
        async with running(gateway_of(tmp_path, with_token)) as gateway:

            async def status(token: str) -> int:
                return (await asyncio.to_thread(post, address(gateway), run_event(), token))[0]

            assert (await status("first-token-1"), await status("second-token-2")) == (200, 401)
            assert await apply(gateway, tmp_path, changed) == (["the receiver lineage"], [])
            assert (await status("first-token-1"), await status("second-token-2")) == (401, 200)

    asyncio.run(run())


def test_a_destination_that_cannot_be_made_anew_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = toy_exporter.make

    def refuse(config: toy_exporter.Config, context: ExporterContext) -> MemoryExporter:
        if config.mark == "!":
            raise BadConfig("it cannot be", hint="do not")
        return make(config, context)

    monkeypatch.setattr(toy_exporter, "make", refuse)

    async def run() -> None:
        async with running(gateway_of(tmp_path)) as gateway:
            changed = GRAPH.replace('mark: ">"', 'mark: "!"')
            assert await apply(gateway, tmp_path, changed) == (
                [],
                ["the destination right: it cannot be"],
            )
            await send(gateway, run_event())
            await until_async(lambda: len(DELIVERED["right"]) == 1)

    asyncio.run(run())
    assert DELIVERED["right"][0].startswith(b">")


def test_handlers_come_and_go_with_a_reload(tmp_path: Path) -> None:
    changed = "dead_letters: {handlers: {tell: {type: memory}}}\n" + GRAPH

    async def run() -> None:
        async with running(gateway_of(tmp_path)) as gateway:
            await send(gateway, {"wrong": 1})
            assert await apply(gateway, tmp_path, changed) == (
                ["the destination tell is new"],
                [],
            )
            await until_async(lambda: len(DELIVERED.get("tell", ())) == 1)
            assert await apply(gateway, tmp_path, GRAPH) == (["the destination tell is gone"], [])

    asyncio.run(run())


def test_a_destination_that_is_gone_from_the_file_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    without = GRAPH.replace("to: [left, clean]", "to: [clean]").replace(
        "  left: {kind: exporter, type: memory}\n", ""
    )

    async def run(text: str) -> None:
        async with running(gateway_of(tmp_path, text)):
            pass

    asyncio.run(run(GRAPH))
    with caplog.at_level(logging.WARNING, "holdfast.graph"):
        asyncio.run(run(without))
    (line,) = [line for line in caplog.messages if "no longer a destination" in line]
    assert line.startswith("left is no longer a destination of quiver")
    assert "holdfast quiver drop-subscriber" in line


# ------------------------------------------------------------------------- workers


WORKERS = GRAPH.replace("type: memory", "type: memory, delivery: {order: key}", 1).replace(
    'memory, config: {mark: ">"}', 'memory, delivery: {order: key}, config: {mark: ">"}'
)


def test_what_a_former_worker_left_is_delivered_by_those_that_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    two = "workers: 2\n" + WORKERS.replace("127.0.0.1:0", "127.0.0.1:1")

    def second_worker() -> None:
        """Leave two events for `left` in the quiver of a second worker."""
        gateway = gateway_of(tmp_path, two, worker=1)
        gateway._open()
        gateway._make_destinations()
        quiver = gateway._quivers.quivers[0].store.quiver
        for name in ("x", "y"):
            payload = json.dumps(run_event(job=name)).encode()
            quiver.append_raw([payload], slot="openlineage")
        gateway._opened.close()

    async def one_worker() -> None:
        async with running(gateway_of(tmp_path, WORKERS)) as gateway:
            await until_async(lambda: len(DELIVERED["left"]) == len(DELIVERED["right"]) == 2)
            told = await gateway.statistics()
            cores = [(core.core_id, core.adopted) for core in told.quivers["quiver"]]
            assert cores == [(0, False), (1, True)]

    async def again() -> None:
        async with running(gateway_of(tmp_path, WORKERS)) as gateway:
            cores = (await gateway.statistics()).quivers["quiver"]
            assert [core.core_id for core in cores] == [0]

    second_worker()
    assert (tmp_path / "data" / "dead_letters-01").is_dir()
    asyncio.run(one_worker())
    assert sorted(jobs(DELIVERED["left"])) == ["x", "y"]
    asyncio.run(again())
    assert not (tmp_path / "data" / "quiver" / "core-01").exists()
    # But letters are nobody's to deliver: they stay, and every start says where.
    told = [line for line in caplog.messages if "dead letters of a former worker" in line]
    assert len(told) == 2
    assert str(tmp_path / "data" / "dead_letters-01") in told[0]


def test_receivers_of_several_workers_share_their_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts: list[ReceiverContext] = []

    class Quiet:
        addresses: list[str] = []  # noqa: RUF012

        async def start(self) -> None: ...

        async def stop(self, drain_s: float) -> None: ...

    def make(config: object, context: ReceiverContext) -> Quiet:
        contexts.append(context)
        return Quiet()

    monkeypatch.setattr("holdfast.receive.openlineage.make", make)

    async def run(text: str) -> None:
        gateway = gateway_of(tmp_path, text)
        await gateway.start()
        await gateway.stop(0.0)

    asyncio.run(run(WORKERS))
    asyncio.run(run("workers: 2\n" + WORKERS.replace("127.0.0.1:0", "127.0.0.1:1")))
    assert [context.reuse_port for context in contexts] == [False, True]
