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
from tests.patience import until_async

from holdfast.node.data_node import DataNode

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
"""

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
        assert set(runner.handoff.quiver.subscribers()) == {"node.a", "node.b"}

    asyncio.run(run())
    for node, _ in nodes.values():
        assert node.statistics().answers_total.get("conflict", 0) == 0


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
        # Names and addresses.
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
