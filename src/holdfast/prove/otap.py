"""Prove the proposal's graph: OTLP and OTAP come in, each exporter sends everything as its own.

It is the proof of telemetry (otel.py) with the file that Quiver's proposal prints, but for
addresses: half of the clients send requests, half send tables; one backend takes the one, one the
other, and every item has to be at both. The ends that speak OTAP are in otap_ends.py.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from holdfast.prove.gateway import GatewayEnds, GatewayProver, GraphPlaces
from holdfast.prove.otel import EXAMPLES_MAX, dropping_answers
from holdfast.prove.runner import ProofOptions, ProofRunner
from holdfast.prove.telemetry import ITEMS_MAX

OTLP, OTAP = "otlp", "otap"
# How many requests or batches are sent at once at most: what a kill may bring twice. The file of
# the proposal says nothing of it, so these are what the exporters do by themselves.
AT_ONCE = {OTLP: 1000, OTAP: 100}

# The file of the proposal; a test compares it with examples/seed.yaml.
PROPOSAL = """\
nodes:
  otlp_receiver:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports:
      out_port: {{destinations: [persistence], dispatch_strategy: round_robin}}
    config: {{listening_addr: "127.0.0.1:{otlp_in}", response_stream_channel_size: 256}}
  otap_receiver:
    kind: receiver
    plugin_urn: "urn:otel:otap:receiver"
    out_ports:
      out_port: {{destinations: [persistence], dispatch_strategy: round_robin}}
    config: {{listening_addr: "127.0.0.1:{otap_in}", response_stream_channel_size: 256}}
  persistence:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports:
      out_port: {{destinations: [otap_exporter, otlp_exporter], dispatch_strategy: round_robin}}
    config:
      path: ./quiver_data
      segment: {{target_size: 32MB}}
      wal: {{max_size: 4GB, flush_interval: 25ms}}
      retention:
        max_retain_after_ingestion_hours: 72
        size_cap: 500GB
        size_cap_policy: drop_oldest
  otap_exporter:
    kind: exporter
    plugin_urn: "urn:otel:otap:exporter"
    config:
      grpc_endpoint: "http://127.0.0.1:{otap_out}"
      compression_method: zstd
      arrow: {{payload_compression: none}}
  otlp_exporter:
    kind: exporter
    plugin_urn: "urn:otel:otlp:exporter"
    config: {{grpc_endpoint: "http://127.0.0.1:{otlp_out}"}}
"""


def proposal(places: GraphPlaces) -> str:
    """Return the file with the addresses of a run; all else stays as it is printed."""
    otlp_in, otap_in = places.ports
    backends = places.backend_ports
    return PROPOSAL.format(
        otlp_in=otlp_in, otap_in=otap_in, otlp_out=backends[OTLP], otap_out=backends[OTAP]
    )


OTAP_ENDS = GatewayEnds(
    module="otap_ends",
    ports=2,
    roles={OTLP: OTLP, OTAP: OTAP},
    events_per_request={name: count * ITEMS_MAX for name, count in AT_ONCE.items()},
    graph=proposal,
    by_client=True,
)


def prove_otap(options: ProofOptions) -> dict[str, Any]:
    """Kill gateway and backends again and again under load, and check what was promised."""
    runner, prover = ProofRunner(options), GatewayProver(options, OTAP_ENDS)
    verdict = runner.run(prover, options.kills, options.seconds)
    dropping = list(dropping_answers(options.directory / "journals"))
    verdict.examples += dropping[:EXAMPLES_MAX]
    findings = {**asdict(verdict), "answers_that_drop": len(dropping)}
    return runner.report("otap", verdict.ok and not dropping, findings)
