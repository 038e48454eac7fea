"""What a gateway tells of itself by OTLP: all of it arrives, within bounds, and never in a loop."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest
from tests.graph.test_telemetry import send
from tests.patience import until_async
from tests.ports import free_port
from tests.signals.otlp.telemetry import request
from tests.support.collector import Collector

from holdfast import self_watch
from holdfast.errors import BadConfig
from holdfast.graph.loader import load
from holdfast.graph.printing import printed
from holdfast.graph.runtime import Gateway
from holdfast.operate.telemetry import OwnTelemetry
from holdfast.operate.telemetry_metrics import telemetry_records
from holdfast.operate.up import GatewayWatch
from holdfast.signals.otlp.json_form import request_document
from holdfast.signals.otlp.kinds import OtlpKind

TRACES = request(OtlpKind.TRACES, random.Random(1))
KIND_OF_PATH = {kind.grpc_path: kind for kind in OtlpKind}
NODES = """
data_dir: data
nodes:
  telemetry:
    kind: receiver
    type: otlp
    config: {listening_addr: "127.0.0.1:0", http_listening_addr: "127.0.0.1:0"}
    to: [all]
  all: {kind: exporter, type: files, config: {directory: all, max_file_age: 10ms}}
"""


def graph_text(url: str, **settings: Any) -> str:
    told = {"interval": "100ms", "sample_ratio": 1, "config": {"url": url}, **settings}
    return f"telemetry: {orjson.dumps(told).decode()}" + NODES


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.stop(None).wait()


@asynccontextmanager
async def telling(folder: Path, text: str) -> AsyncIterator[tuple[Gateway, OwnTelemetry]]:
    """Run a gateway that tells of itself."""
    (folder / "graph.yaml").write_text(text)
    gateway = Gateway(load(folder / "graph.yaml").graph)
    watch = GatewayWatch(gateway)
    own = watch.telemetry = OwnTelemetry(gateway.graph, worker=None, records=watch.records)
    async with own.sending():
        await gateway.start()
        try:
            yield gateway, own
        finally:
            await gateway.stop(5.0)


def documents(collector: Collector, kind: OtlpKind) -> list[Any]:
    """Return the resources of one signal, as OTLP JSON."""
    key = {"traces": "resourceSpans", "metrics": "resourceMetrics", "logs": "resourceLogs"}[kind]
    found = [body for path, body, _ in list(collector.seen) if KIND_OF_PATH[path] is kind]
    return [one for body in found for one in request_document(kind, body)[key]]


def named(attributes: list[Any]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in attributes}


def spans(collector: Collector) -> list[Any]:
    resources = documents(collector, OtlpKind.TRACES)
    return [span for one in resources for scope in one["scopeSpans"] for span in scope["spans"]]


def messages(collector: Collector) -> list[str]:
    return [
        record["body"]["stringValue"]
        for one in documents(collector, OtlpKind.LOGS)
        for scope in one["scopeLogs"]
        for record in scope["logRecords"]
    ]


def newest_metrics(collector: Collector) -> dict[str, Any]:
    found = documents(collector, OtlpKind.METRICS)
    return {one["name"]: one for one in found[-1]["scopeMetrics"][0]["metrics"]} if found else {}


def test_metrics_log_and_traces_arrive_at_a_plain_server(
    tmp_path: Path, collector: Collector
) -> None:
    def accepted() -> int:
        metric = newest_metrics(collector).get("gateway.receiver.accepted_items_total")
        if metric is None:
            return 0
        assert metric["sum"]["isMonotonic"]
        points = {named(one["attributes"])["signal"]: one for one in metric["sum"]["dataPoints"]}
        return int(points["traces"]["asInt"])

    async def play() -> None:
        text = graph_text(collector.url, attributes={"deployment.environment": "test"})
        async with telling(tmp_path, text) as (gateway, _):
            grpc_address, http_address = gateway.addresses["telemetry"]
            assert await asyncio.to_thread(send, http_address, OtlpKind.TRACES, TRACES) == 200
            await asyncio.to_thread(call, grpc_address.removeprefix("grpc://"))
            logging.getLogger("holdfast.test").error("it is %d", 7, exc_info=ValueError("x"))
            await until_async(lambda: accepted() > 0)
            lags = newest_metrics(collector)["gateway.destination.lag_bytes"]
            assert (lags["unit"], list(lags["gauge"])) == ("By", ["dataPoints"])
            await until_async(
                lambda: {"receive", "send"} <= {one["name"] for one in spans(collector)}
            )
            await until_async(lambda: "it is 7" in messages(collector))

    asyncio.run(play())
    received = [one for one in spans(collector) if one["name"] == "receive"]
    told = [named(one["attributes"]) for one in received]
    assert {"receiver": "telemetry", "http.response.status_code": "200"} in told
    assert {"receiver": "telemetry", "rpc.method": OtlpKind.TRACES.grpc_path} in told
    assert all(int(one["startTimeUnixNano"]) <= int(one["endTimeUnixNano"]) for one in received)
    resource = named(documents(collector, OtlpKind.METRICS)[0]["resource"]["attributes"])
    assert (resource["service.name"], resource["deployment.environment"]) == ("holdfast", "test")
    assert self_watch.installed is None


def call(target: str) -> None:
    with grpc.insecure_channel(target) as channel:
        method: Any = channel.unary_unary(OtlpKind.TRACES.grpc_path)
        method(TRACES)


def test_what_waits_is_bounded_and_what_is_dropped_is_counted(
    tmp_path: Path, collector: Collector
) -> None:
    codes = [grpc.StatusCode.UNAVAILABLE]

    def decide(body: bytes, context: grpc.ServicerContext) -> bytes:
        if codes:
            context.abort(codes[0], "no")
        return b""

    async def play() -> None:
        collector.decide = decide
        text = graph_text(collector.url, signals=["logs"], max_waiting=5, interval="1h")
        async with telling(tmp_path, text) as (_, own):
            await own.push()
            logger = logging.getLogger("holdfast.test")
            before = own.statistics()
            for number in range(20):
                logger.warning("number %d", number)
            now = own.statistics()
            assert now.waiting["logs"] == 5
            assert now.dropped["logs"] - before.dropped["logs"] == 20 - (5 - before.waiting["logs"])
            # Refused for now: they wait, and are sent when they can be.
            await own.push()
            assert own.statistics().waiting["logs"] == 5
            assert own.statistics().failures > before.failures
            codes.clear()
            await own.push()
            assert own.statistics().waiting["logs"] == 0
            assert own.statistics().sent["logs"] == 5
            # Refused for good: they are dropped.
            codes.append(grpc.StatusCode.INVALID_ARGUMENT)
            logger.warning("never taken")
            dropped = own.statistics().dropped["logs"]
            await own.push()
            assert own.statistics().dropped["logs"] == dropped + 1
            figures = {one.name for one in telemetry_records(own.statistics(), "0")}
            assert "gateway.telemetry.dropped_items_total" in figures

    asyncio.run(play())


def test_an_address_of_the_same_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    text = graph_text("http://localhost:4317", config={"url": "http://localhost:4317"})
    path.write_text(
        text.replace('listening_addr: "127.0.0.1:0"', "listening_addr: ':4317'", 1).replace(
            "config: {listening", "config: {allow_anonymous: true, listening"
        )
    )
    with pytest.raises(BadConfig) as caught:
        load(path)
    (found,) = caught.value.findings
    assert found.message == "telemetry is sent to 'telemetry' of this same file"
    path.write_text(
        graph_text("http://localhost:4317", config={"url": "http://a", "preset": "loki"})
    )
    with pytest.raises(BadConfig) as caught:
        load(path)
    assert [one.message.split(",")[0] for one in caught.value.findings] == [
        "telemetry sends metrics",
        "telemetry sends traces",
    ]


def test_telemetry_that_comes_back_is_not_sent_any_more(tmp_path: Path) -> None:
    port = free_port()
    # Nobody can see from the file that this is the same machine.
    text = graph_text(f"http://127.0.0.2:{port}", interval="100ms").replace(
        '{listening_addr: "127.0.0.1:0"', f'{{allow_anonymous: true, listening_addr: ":{port}"'
    )

    async def play() -> None:
        async with telling(tmp_path, text) as (gateway, own):
            await until_async(lambda: own.statistics().is_looping)
            await own.push()
            sent = own.statistics().sent
            logging.getLogger("holdfast.test").warning("unheard")
            await own.push()
            assert own.statistics().sent == sent
            # What others send is taken as before.
            address = gateway.addresses["telemetry"][1]
            assert await asyncio.to_thread(send, address, OtlpKind.TRACES, TRACES) == 200

    asyncio.run(play())


def test_secrets_of_telemetry_are_not_printed(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(graph_text("", config={"url": "http://a:4317", "headers": {"x-key": "secret"}}))
    shown = printed(load(path))["telemetry"]
    assert shown["config"]["url"] == "http://a:4317"
    assert "secret" not in str(shown)
