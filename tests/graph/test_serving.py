"""A gateway that serves its quivers over Flight, to others and to the pipelines of its own file."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest
import yaml
from tests.graph.gateways import REGISTRY, gateway_of, running, send
from tests.graph.lineage import run_event

from holdfast.dataflow.driver.state_dir import StateDir
from holdfast.dataflow.driver.wire import Access
from holdfast.errors import BadConfig, NotAllowed
from holdfast.graph.loader import load
from holdfast.graph.model import Graph
from holdfast.graph.paths import state_dir
from holdfast.graph.pipelines import ask_for_access, load_pipelines, quiver_directories
from holdfast.graph.reload import reload
from holdfast.graph.runtime import Gateway
from holdfast.graph.serving import TOKEN_FILE, own_token
from holdfast.remote import ClientSettings, RemoteQuiver
from holdfast.settings import Secret

PIPELINE = """\
pipelines:
  counts:
    vertices:
      events: {source: {quiver: quiver, decode: openlineage}}
      out: {sink: {files: out}}
    edges: [events -> out]
"""
NODES = """\
data_dir: data
nodes:
  lineage: {kind: receiver, type: openlineage, config: {listen: "127.0.0.1:0"}, to: [left]}
  left: {kind: exporter, type: memory}
"""


def pending(gateway: Gateway, address: str, token: str | None) -> int:
    """Ask over Flight how many events wait behind the beginning."""
    location, _, name = address.rpartition("/")
    settings = ClientSettings(token=None if token is None else Secret(token))
    return RemoteQuiver.open(location, name, settings).statement().pending_events


def test_without_pipelines_and_without_flight_nobody_is_served(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(gateway_of(tmp_path, NODES)) as gateway:
            assert gateway.access is None
            assert (await gateway.statistics()).flight is None

    asyncio.run(run())
    assert not (tmp_path / "data" / TOKEN_FILE).exists()


def test_the_pipelines_of_the_file_are_served_and_nobody_else(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(gateway_of(tmp_path, NODES + PIPELINE)) as gateway:
            access = gateway.access
            assert access is not None
            (address,) = access.addresses["quiver"]
            assert address.startswith("grpc://127.0.0.1:")
            assert await send(gateway, run_event(), run_event()) == [200, 200]
            count = await asyncio.to_thread(pending, gateway, address, access.token)
            assert count == 2
            for token in (None, "wrong"):
                with pytest.raises(NotAllowed):
                    await asyncio.to_thread(pending, gateway, address, token)
            told = (await gateway.statistics()).flight
            assert told is not None
            assert told.calls_total >= 2
            assert told.refused_total == 2

    asyncio.run(run())
    token = tmp_path / "data" / TOKEN_FILE
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert own_token(tmp_path / "data") == token.read_text()


def test_events_wait_for_a_pipeline_before_its_driver_is_there(tmp_path: Path) -> None:
    """Spark takes seconds to start; what is accepted meanwhile must not be cleaned away."""

    async def run(is_closed: bool) -> tuple[str, ...]:
        gateway = gateway_of(tmp_path, NODES + PIPELINE)
        if is_closed:
            folder = StateDir(state_dir(gateway.graph, "counts"))
            folder.lock().close()
            folder.close()
        async with running(gateway):
            return gateway._quivers.find("quiver").store.quiver.subscribers()

    assert asyncio.run(run(False)) == ("left", "counts.events")
    assert asyncio.run(run(False)) == ("left", "counts.events")
    # One that is finished will never read again: nothing is kept for it.
    assert asyncio.run(run(True)) == ("left",)


def test_with_tokens_of_others_the_pipelines_have_one_of_their_own(tmp_path: Path) -> None:
    flight = 'flight: {listen: "127.0.0.1:0", tokens: [{name: me, token: mine, rights: [read]}]}\n'

    async def run() -> None:
        async with running(gateway_of(tmp_path, NODES + flight)) as gateway:
            access = gateway.access
            assert access is not None
            (address,) = access.addresses["quiver"]
            for token in ("mine", access.token):
                assert await asyncio.to_thread(pending, gateway, address, token) == 0

    asyncio.run(run())


def test_a_port_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()

    async def run() -> None:
        async with running(
            gateway_of(tmp_path, NODES + 'flight: {listen: "127.0.0.1:0"}\n')
        ) as one:
            assert one.access is not None
            port = one.access.addresses["quiver"][0].rpartition(":")[2].partition("/")[0]
            flight = f'flight: {{listen: "127.0.0.1:{port}"}}\n'
            other = gateway_of(tmp_path / "other", NODES + flight)
            with pytest.raises(BadConfig):
                await other.start()
            assert other.state == "stopped"

    asyncio.run(run())


def test_a_driver_elsewhere_finds_directories_or_addresses(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(NODES.replace("memory", "log") + PIPELINE)
    loaded = load_pipelines(path)
    assert loaded.quivers == {"quiver": str(tmp_path / "data" / "quiver" / "core-00")}
    assert ask_for_access(loaded.data_dir) is None
    for name in ("core-00", "core-01"):
        (tmp_path / "data" / "quiver" / name).mkdir(parents=True)
    both = load_pipelines(path).quivers["quiver"]
    assert [Path(one).name for one in both.split(",")] == ["core-00", "core-01"]
    access = Access({"quiver": ("grpc://a:1/quiver",)}, "secret")
    joined = access.joined(Access({"quiver": ("grpc://b:2/quiver",), "other": ("grpc://b:2/o",)}))
    assert Access.from_fields(joined.to_fields()) == joined
    reaching = loaded.reaching(joined)
    assert reaching.quivers["quiver"] == "grpc://a:1/quiver,grpc://b:2/quiver"
    source = reaching.pipelines["counts"].vertices["events"].source
    assert source is not None
    assert source.token is not None
    assert source.token.get_secret_value() == "secret"
    sink = reaching.pipelines["counts"].vertices["out"].sink
    assert sink is not None
    assert sink.token is None, "a sink that is no quiver of the gateway needs none"


def test_sealing_early_can_be_set(tmp_path: Path) -> None:
    tree = yaml.safe_load(NODES)
    tree["nodes"]["lineage"]["to"] = ["buffer"]
    segment = {"min_open_duration": "10ms"}
    tree["nodes"]["buffer"] = {
        "kind": "processor", "type": "quiver", "config": {"segment": segment}, "to": ["left"],
    }  # fmt: skip
    gateway = gateway_of(tmp_path, yaml.safe_dump(tree))
    assert set(quiver_directories(gateway.graph)) == {"buffer"}

    async def run() -> None:
        async with running(gateway):
            config = gateway._quivers.find("buffer").plan.config.as_config()
            assert config.segment.min_open_duration_s == 0.01

    asyncio.run(run())


def test_pipelines_that_come_and_go_need_a_restart(tmp_path: Path) -> None:
    def written(text: str) -> Graph:
        (tmp_path / "graph.yaml").write_text(text)
        return load(tmp_path / "graph.yaml", registry=REGISTRY).graph

    other = PIPELINE.replace("counts:", "others:")
    changed = PIPELINE.replace("files: out", "files: elsewhere")

    async def run() -> list[list[str]]:
        async with running(gateway_of(tmp_path, NODES + PIPELINE)) as gateway:
            texts = [NODES + other, NODES, NODES + changed, NODES + PIPELINE]
            return [(await reload(gateway, written(text))).needs_restart for text in texts]

    assert asyncio.run(run()) == [
        ["pipelines.counts", "pipelines.others"], ["pipelines.counts"], ["pipelines.counts"], [],
    ]  # fmt: skip
