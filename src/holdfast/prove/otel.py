"""Prove the gateway of telemetry: clients send OTLP, two backends receive it, both ends are killed.

It is the proof of the gateway with other ends (telemetry.py): requests come over gRPC and HTTP, in
protobuf and JSON, and leave joined, over gRPC to one backend and over HTTP to the other. Items are
known by their names, which ids and contents follow from. One thing more is looked at: no client may
ever be given an answer upon which an SDK drops its data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast.prove.gateway import GatewayEnds, GatewayProver, around_buffer
from holdfast.prove.journal import whole_lines
from holdfast.prove.runner import ProofOptions, ProofRunner
from holdfast.prove.telemetry import ITEMS_MAX

GRPC, HTTP = "grpc", "http"
# How many requests are joined to one at most: what a kill may bring twice.
JOINED_MAX = 20
# A send that takes longer is repeated without a kill: only a machine that stands still is so slow.
SEND_TIMEOUT = "60s"
# What an SDK repeats, by the specification; upon anything else it drops what it has.
REPEATED = {
    *("429", "502", "503", "504"),
    *("UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "DATA_LOSS"),
}
EXAMPLES_MAX = 5


def _receiver(ports: Sequence[int]) -> Mapping[str, Any]:
    grpc_address, http_address = (f"127.0.0.1:{port}" for port in ports)
    addresses = {"listening_addr": grpc_address, "http_listening_addr": http_address}
    return {"type": "otlp", "config": addresses}


def _exporters(backend_ports: Mapping[str, int]) -> Mapping[str, Mapping[str, Any]]:
    return {
        protocol: {
            "type": "otlp",
            "config": {
                "url": f"http://127.0.0.1:{port}",
                "protocol": protocol,
                "compression": "zstd",
                "max_batch_events": JOINED_MAX,
                "timeout": SEND_TIMEOUT,
            },
            "delivery": {"retry_max": "100ms", "send_timeout": SEND_TIMEOUT},
        }
        for protocol, port in backend_ports.items()
    }


TELEMETRY_ENDS = GatewayEnds(
    module="telemetry",
    ports=2,
    roles={GRPC: GRPC, HTTP: HTTP},
    events_per_request=dict.fromkeys((GRPC, HTTP), JOINED_MAX * ITEMS_MAX),
    graph=around_buffer(_receiver, _exporters),
    by_client=True,
)


def dropping_answers(journals: Path) -> Iterator[str]:
    """Yield what clients were answered upon which an SDK drops its data."""
    for path in sorted(journals.glob("*.journal")):
        for line in whole_lines(path):
            fact, name, *rest = line.split(" ", 3)
            # A connection that ended is noted by the name of its exception.
            if fact != "E" or rest[0] == "no":
                continue
            code = rest[1].split(" ")[0]
            if (code.isdigit() or code.isupper()) and code not in REPEATED:
                yield f"{name}: {rest[1]}"


def prove_otel(options: ProofOptions) -> dict[str, Any]:
    """Kill gateway and backends again and again under load, and check what was promised."""
    runner, prover = ProofRunner(options), GatewayProver(options, TELEMETRY_ENDS)
    verdict = runner.run(prover, options.kills, options.seconds)
    dropping = list(dropping_answers(options.directory / "journals"))
    verdict.examples += dropping[:EXAMPLES_MAX]
    findings = {**asdict(verdict), "answers_that_drop": len(dropping)}
    return runner.report("otel", verdict.ok and not dropping, findings)
