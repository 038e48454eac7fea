"""The exporter `nodes` in a gateway: what is accepted reaches data nodes."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.graph.files import findings
from tests.graph.gateways import gateway_of, running, send
from tests.graph.lineage import run_event
from tests.node.serving import served
from tests.patience import PATIENCE_S, until_async
from tests.ports import free_port
from tests.support.certificates import make_certificates

from holdfast.errors import BadInput
from holdfast.graph import node_senders
from holdfast.graph.model import Graph
from holdfast.graph.reload import reload
from holdfast.graph.runtime import Gateway
from holdfast.node.data_node import DataNode
from holdfast.operate.gateway_metrics import gateway_records
from holdfast.operate.handoff_metrics import HANDOFF_METRICS
from holdfast.remote import FlightTls, FlightToken
from holdfast.settings import Secret

GRAPH = """\
data_dir: data
nodes:
  lineage:
    kind: receiver
    type: openlineage
    config: {{listen: "127.0.0.1:0"}}
    to: [quiver]
  quiver:
    kind: processor
    type: quiver
    config: {{segment: {{max_open_duration: 50ms}}}}
    to: [copies]
  copies:
    kind: exporter
    type: nodes
    config:
      nodes: {{a: "{a}", b: "{b}"}}
      probe_interval: 50ms
      probe_timeout: 60s
"""

# Patient: a machine that is busy makes no node suspect.
PROBES = "      probe_interval: 50ms\n      probe_timeout: 60s\n"
TwoNodes = dict[str, tuple[DataNode, str]]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[TwoNodes]:
    """Two data nodes, and where they listen."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            node, location = stack.enter_context(served(tmp_path / name))
            found[name] = (node, location.partition("://")[2])
        yield found


def graph_of(nodes: TwoNodes) -> str:
    return GRAPH.format(**{name: address for name, (_, address) in nodes.items()})


def test_what_a_gateway_accepts_reaches_every_data_node_once(
    tmp_path: Path, nodes: TwoNodes
) -> None:
    async def run() -> None:
        async with running(gateway_of(tmp_path, graph_of(nodes))) as gateway:
            (runner,) = gateway.handoffs["copies"]
            assert await send(gateway, run_event(job="one"), run_event(job="two")) == [200, 200]
            await until_async(lambda: runner.handoff.quiver.segments() != ())
            point = runner.handoff.sync_point()
            await until_async(lambda: runner.handoff.reached(point).is_complete)
            for name, (node, _) in nodes.items():
                assert runner.handoff.membership.bound[name].node_id == node.node_id
                with contextlib.closing(runner.connect(name)) as transport:
                    (holding,) = transport.health().holdings
                assert holding.quiver_id == runner.handoff.quiver.quiver_id
                assert list(holding.stored) == [(0, point.end_seq)]
            told = await gateway.statistics()
            figures = [one for one in gateway_records(told) if one.name.startswith("handoff.")]
            assert {one.name for one in figures} | {"handoff.node.lost_events_total"} == {
                metric.name for metric in HANDOFF_METRICS
            }
            for metric in HANDOFF_METRICS:
                shown = [set(one.labels) for one in figures if one.name == metric.name]
                assert all(one == {"worker", *metric.labels} for one in shown)
            states = [one for one in figures if one.name == "handoff.node.state" and one.value]
            assert {(one.labels["node"], one.labels["state"]) for one in states} == {
                ("a", "up"),
                ("b", "up"),
            }
        assert gateway.left_events == {"copies/a": 0, "copies/b": 0}
        assert set(runner.handoff.quiver.subscribers()) == {"node.a", "node.b"}

    asyncio.run(run())
    for node, _ in nodes.values():
        assert node.statistics().answers_total.get("conflict", 0) == 0


def test_data_nodes_and_their_limits_change_while_the_gateway_runs(
    tmp_path: Path, nodes: TwoNodes
) -> None:
    def graph(config: str) -> Graph:
        text = graph_of(nodes)
        text = text[: text.index("      nodes: {a")] + config
        return gateway_of(tmp_path, text).graph

    places = {name: f'{name}: "{address}"' for name, (_, address) in nodes.items()}
    both = f"      nodes: {{{places['a']}, {places['b']}}}\n{PROBES}"

    async def run() -> None:
        first = f"      nodes: {{{places['a']}}}\n{PROBES}"
        async with running(Gateway(graph(first))) as gateway:
            (runner,) = gateway.handoffs["copies"]
            # Only who they are: without a stop.
            report = await reload(gateway, graph(both))
            assert (report.applied, report.needs_restart) == (["the data nodes of quiver"], [])
            assert gateway.handoffs["copies"] == (runner,)
            assert runner.handoff.quiver.subscriber("node.b").options.on_full == "block"
            await send(gateway, run_event(job="one"))
            # The limits: its senders are made anew, and nothing is lost.
            report = await reload(gateway, graph(both + "      max_size: 64MB\n"))
            assert (report.applied, report.needs_restart) == (["the data nodes of quiver"], [])
            (runner,) = gateway.handoffs["copies"]
            options = runner.handoff.quiver.subscriber("node.b").options
            assert (options.max_segment_bytes, options.on_full) == (64 * 2**20, "drop_copied")
            await send(gateway, run_event(job="two"))
            await until_async(
                lambda: all(node.statistics().adopted_total for node, _ in nodes.values())
            )
            point = runner.handoff.sync_point()
            await until_async(lambda: runner.handoff.reached(point).is_complete)
            # One that is gone is an orphan, and keeps what waits for it.
            await reload(gateway, graph(first + "      max_size: 64MB\n"))
            told = {one.backlog.name: one.backlog for one in (await gateway.statistics()).handoffs}
            assert {name: str(one.state) for name, one in told.items()} == {
                "a": "up",
                "b": "orphaned",
            }
            assert told["a"].max_bytes == 64 * 2**20
            assert (await reload(gateway, gateway.graph)).applied == ["the data nodes of quiver"]

    asyncio.run(run())


def test_data_nodes_come_by_a_file_and_by_dns_while_it_runs(
    tmp_path: Path, nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_senders, "FIRST_LOOK_S", PATIENCE_S)
    (a, at_a), (b, at_b) = nodes["a"], nodes["b"]
    listed = tmp_path / "listed.yaml"
    listed.write_text("dead: 127.0.0.1:1")
    text = graph_of(nodes)
    text = text[: text.index("      nodes: {a")] + f"{PROBES}      nodes_file: listed.yaml\n"
    # `localhost` is a name with one or two addresses, at one of which the data node answers.
    text += f"      nodes_dns: localhost:{at_b.rpartition(':')[2]}\n      nodes_refresh: 50ms\n"

    async def run() -> None:
        async with running(gateway_of(tmp_path, text)) as gateway:
            (runner,) = gateway.handoffs["copies"]
            bound = runner.handoff.membership.bound
            assert {*bound} == {"dead", f"dns-{b.node_id}"}, "before the first event is accepted"
            listed.write_text("no: yaml: at all")
            listed.write_text(f"dead: 127.0.0.1:1\na: {at_a}")
            await until_async(lambda: "a" in runner.handoff.membership.bound)
            await send(gateway, run_event())
            await until_async(
                lambda: all(one.statistics().adopted_total for one in (a, b)), "that both have it"
            )
            assert runner.handoff.membership.bound["dead"].node_id is None
        monkeypatch.setattr(node_senders, "FIRST_LOOK_S", 0.01)
        # After a restart it is known before DNS has answered, and at whatever address it is then.
        graph = gateway_of(tmp_path, text.replace("localhost:", "no-such-host.invalid:")).graph
        async with running(Gateway(graph)) as gateway:
            (runner,) = gateway.handoffs["copies"]
            assert f"dns-{b.node_id}" in runner.handoff.workers
            with pytest.raises(BadInput, match="nobody knows where"):
                runner.connect(f"dns-{b.node_id}")

    asyncio.run(run())


def test_workers_divide_the_limits_and_each_sends_its_own(tmp_path: Path, nodes: TwoNodes) -> None:
    text = graph_of(nodes).replace('"127.0.0.1:0"', f'"127.0.0.1:{free_port()}"')
    text = f"workers: 2\n{text}      max_size: 64MB\n      rate: 8MB\n      node_rate: 4MB\n"

    async def run() -> None:
        async with contextlib.AsyncExitStack() as held:
            gateways = [gateway_of(tmp_path, text, worker=worker) for worker in range(2)]
            for gateway in gateways:
                await held.enter_async_context(running(gateway))
                (runner,) = gateway.handoffs["copies"]
                handoff = runner.handoff
                if gateway.worker == 1:
                    # A data node that was added before this worker was there is known to it, too.
                    assert handoff.membership.added == {"c": "127.0.0.1:9"}
                    runner.forget("c", "drop")
                assert handoff.settings.subscriber.max_segment_bytes == 32 * 2**20
                assert handoff.scheduler.rate() == 4 * 2**20
                assert handoff.scheduler.rate("a") == 2 * 2**20
                assert handoff.scheduler.settings.permits == 2
                handoff.quiver.append_raw([b"{}"])
                await until_async(lambda handoff=handoff: handoff.quiver.segments() != ())
                point = handoff.sync_point()
                await until_async(
                    lambda handoff=handoff, point=point: handoff.reached(point).is_complete
                )
                if gateway.worker == 0:
                    runner.add("c", "127.0.0.1:9")
            quivers = {
                one.handoff.quiver.quiver_id for g in gateways for one in g.handoffs["copies"]
            }
            for node, _ in nodes.values():
                assert {one.quiver_id for one in node.health().holdings} == quivers

    asyncio.run(run())


def test_what_a_node_misses_is_dropped_at_its_limit_only_if_another_holds_it(
    tmp_path: Path, nodes: TwoNodes
) -> None:
    limits = "segment: {target_size: 1MB, max_open_duration: 50ms}"
    text = graph_of(nodes).replace("segment: {max_open_duration: 50ms}", limits)
    text = text.replace(nodes["b"][1], f"127.0.0.1:{free_port()}") + "      max_size: 1MB\n"

    async def run() -> None:
        async with running(gateway_of(tmp_path, text)) as gateway:
            (runner,) = gateway.handoffs["copies"]
            quiver = runner.handoff.quiver
            for _ in range(3):
                await asyncio.to_thread(quiver.append_raw, [b"x" * 700_000])
                await asyncio.to_thread(quiver.flush)

            async def dropped() -> bool:
                told = {
                    one.backlog.name: one.backlog for one in (await gateway.statistics()).handoffs
                }
                return told["a"].lost_events == {} and told["b"].lost_events == {"dropped": 2}

            await until_async(dropped, "that two are given up for the node that is away")
            (gap,) = runner.handoff.quiver.subscriber("node.b").losses
            assert gap[:2] == (0, 2)
            with contextlib.closing(runner.connect("a")) as transport:
                (holding,) = transport.health().holdings
            assert holding.stored.covers(0, 2)

    asyncio.run(run())


def test_what_a_former_worker_left_reaches_its_nodes_too(tmp_path: Path, nodes: TwoNodes) -> None:
    away = graph_of({**nodes, "a": (nodes["a"][0], f"127.0.0.1:{free_port()}")})
    away = away.replace('"127.0.0.1:0"', f'"127.0.0.1:{free_port()}"')

    async def run() -> None:
        async with running(gateway_of(tmp_path, f"workers: 2\n{away}", worker=1)) as gateway:
            (runner,) = gateway.handoffs["copies"]
            quiver_id = runner.handoff.quiver.quiver_id
            runner.handoff.quiver.append_raw([b"{}"])
        async with running(gateway_of(tmp_path, graph_of(nodes))) as gateway:
            main, adopted = gateway.handoffs["copies"]
            assert (main.core_id, adopted.core_id) == (0, 1)
            assert adopted.handoff.quiver.quiver_id == quiver_id
            point = adopted.handoff.sync_point()
            assert point.end_seq == 1
            await until_async(lambda: adopted.handoff.reached(point).is_complete)
            for node, _ in nodes.values():
                assert [list(one.stored) for one in node.health().holdings] == [[(0, 1)]]

    asyncio.run(run())


def test_tokens_and_certificates_of_the_file_open_a_data_node(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    (tmp_path / "a").mkdir()
    tls = FlightTls(
        cert_file=made.server.name, key_file=made.server_key.name, client_ca_file=made.ca.name
    )
    for path in (made.server, made.server_key, made.ca):
        (tmp_path / "a" / path.name).write_bytes(path.read_bytes())
    token = FlightToken(name="gateway", token=Secret("a-token-of-a-gateway"))
    with served(tmp_path / "a", tls=tls, tokens=(token,)) as (node, location):
        address = location.partition("://")[2]
        text = GRAPH.format(a=address, b=f"127.0.0.1:{free_port()}")
        text += "      token: a-token-of-a-gateway\n"
        text += f"      tls: {{ca_file: {made.ca.name}, cert_file: {made.client.name}, "
        text += f"key_file: {made.client_key.name}}}\n"

        async def run() -> None:
            async with running(gateway_of(tmp_path, text)) as gateway:
                await send(gateway, run_event())
                await until_async(lambda: node.statistics().adopted_total > 0)
                # A reload connects again: a certificate may be another one.
                assert (await reload(gateway, gateway.graph)).applied == []
                await send(gateway, run_event())
                await until_async(lambda: node.statistics().adopted_total > 1)

        asyncio.run(run())


IN = "in: {kind: receiver, type: toy, to: [hold]}"
HOLD = "hold: {kind: processor, type: quiver, to: [copies]}"
COPIES = "copies: {kind: exporter, type: nodes, config: {nodes: {a: 'h:1', b: 'h:2'}}}"
SMALL = (
    "hold: {kind: processor, type: quiver, to: [copies], "
    "config: {segment: {target_size: 1MB}, retention: {size_cap: 64MB}}}"
)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([IN, HOLD, COPIES], []),
        # Nothing comes between.
        ([IN, "hold: {kind: processor, type: quiver, to: [p]}",
          "p: {kind: processor, type: drop, to: [copies]}", COPIES],
         [("4 error the processor 'p' comes before 'copies', whose data nodes get segments as they "
           "are on disk")]),
        ([IN, ("hold: {kind: processor, type: quiver, out_ports: {out: {destinations: "
           "[copies, m], dispatch_strategy: round_robin}}}"), COPIES,
          "m: {kind: exporter, type: memory}"],
         ["3 error data nodes take no turns"]),
        ([IN, "hold: {kind: processor, type: quiver, to: [copies, more]}", COPIES,
          "more: {kind: exporter, type: nodes, config: {nodes: ['h:3']}}"],
         ["3 error 'hold' leads to data nodes by 'copies' and 'more'"]),
        ([IN, HOLD, COPIES[:-1] + ", delivery: {order: key}}"],
         ["4 error data nodes are sent segments: `delivery` says nothing of that"]),
        ([IN, HOLD, "more: {kind: processor, type: quiver, to: [copies]}", COPIES],
         ["5 error 'copies' is fed by two quivers"]),
        # Names and addresses.
        ([IN, "hold: {kind: processor, type: quiver, to: [copies, node.a]}", COPIES,
          "node.a: {kind: exporter, type: memory}"],
         ["5 error 'node.a' is how the quiver calls a data node"]),
        ([IN, HOLD, COPIES.replace("h:2", "h:1")],
         ["4 error 'b' has the address of 'a'"]),
        ([IN, HOLD, COPIES.replace("h:2", ":2")],
         ["4 error nodes.b: ':2' cannot be called; write host:port"]),
        ([IN, HOLD, COPIES.replace("b:", "'b c':")],
         ["4 error nodes.b c: a data node's name has 1 to 59 letters, digits, '_', '-' or '.'"]),
        ([IN, HOLD, COPIES[:-2] + ", replicas: 3}}"],
         ["4 warning replicas is 3, and there are 2 data nodes"]),
        # Limits.
        ([IN, HOLD, COPIES[:-2] + ", on_full: drop_oldest}}"],
         ["4 error `on_full: drop_oldest` needs `max_size` or `max_age`"]),
        ([IN, HOLD, COPIES[:-2] + ", max_size: 1MB}}"],
         ["4 error max_size is less than a segment (16 MB)"]),
        ([IN, SMALL, COPIES[:-2] + ", max_size: 62MB}}"], []),
        ([IN, SMALL, COPIES[:-2] + ", max_size: 63MB}}"],
         [("4 error 63 MB may wait for data nodes (max_size), and the quiver has room for 62 MB "
           "(size_cap without its reserve)")]),
        # With one copy each, twice as much waits if both are away.
        ([IN, SMALL, COPIES[:-2] + ", max_size: 32MB, replicas: 1}}"],
         [("4 error 64 MB may wait for data nodes (max_size), and the quiver has room for 62 MB "
           "(size_cap without its reserve)")]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_data_nodes_is_found(
    tmp_path: Path, lines: list[str], expected: list[str]
) -> None:
    text = "nodes:\n" + "".join(f"  {line}\n" for line in lines)
    # Without columns: where in its line a value stands is the document's business.
    assert [re.sub(r":\d+", "", one, count=1) for one in findings(tmp_path, text)] == expected


def test_they_take_no_rejected_events_and_do_not_call_their_own_gateway(tmp_path: Path) -> None:
    text = """\
        dead_letters: {handlers: {lost: {type: nodes, config: {nodes: ["h:1"]}}}}
        flight: {listen: "127.0.0.1:8815"}
        nodes:
          in: {kind: receiver, type: toy, to: [copies]}
          copies: {kind: exporter, type: nodes, config: {nodes: "h:1, localhost:8815"}}
        """
    assert findings(tmp_path, text) == [
        "1:40 error data nodes take segments of a quiver, not rejected events",
        "5:57 error 'localhost_8815' is the Flight server of this same gateway",
    ]
