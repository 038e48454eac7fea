"""Files as OTAP dataflow has them: its names, its keys, and what they mean here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.graph.files import findings, load_text

from holdfast.errors import BadConfig
from holdfast.graph.loader import load
from holdfast.graph.paths import plan
from holdfast.graph.printing import as_yaml, printed

# The proposal's own example, as it is printed there.
PRINTED = Path(__file__).with_name("seed_000.yaml")
READ_AS = "round_robin behind urn:otap:processor:persistence is read as broadcast"
NOT_A_DURATION = "'tomorrow' is not a duration; write a number with ms, s, m, h or d"

TURNS = """\
nodes:
  in: {kind: receiver, type: toy, to: [hold]}
  hold:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports:
      out_port:
        destinations: [one, two]
        dispatch_strategy: round_robin
  one: {kind: exporter, type: memory}
  two: {kind: exporter, type: memory}
"""


def destinations(folder: Path, text: str) -> list[str]:
    (quiver,) = plan(load_text(folder, text).graph)
    return [one.name for one in quiver.destinations]


def test_round_robin_behind_the_proposal_s_component_gives_each_destination_everything(
    tmp_path: Path,
) -> None:
    assert destinations(tmp_path, TURNS) == ["one", "two"]
    assert findings(tmp_path, TURNS) == [
        f"9:28 warning {READ_AS}: each of one, two gets everything"
    ]
    again = as_yaml(printed(load_text(tmp_path, TURNS)))
    assert "round_robin" not in again, "it would be read otherwise under our own name"
    assert destinations(tmp_path, again) == ["one", "two"]


@pytest.mark.parametrize("name", ["quiver", "persistence", "processor:durable_buffer"])
def test_under_other_names_exporters_take_turns(tmp_path: Path, name: str) -> None:
    text = TURNS.replace("urn:otap:processor:persistence", name)
    assert destinations(tmp_path, text) == ["hold.out_port"]
    assert findings(tmp_path, text) == []


def quiver_config(folder: Path, config: str, name: str = "urn:otap:processor:persistence") -> Any:
    text = f"""\
    nodes:
      in: {{kind: receiver, type: toy, to: [hold]}}
      hold: {{kind: processor, plugin_urn: "{name}", to: [out], config: {{{config}}}}}
      out: {{kind: exporter, type: memory}}
    """
    assert findings(folder, text) == []
    config_model: Any = load_text(folder, text).graph.nodes["hold"].config
    return config_model.as_config()


def test_every_key_of_the_proposal_s_retention_is_known(tmp_path: Path) -> None:
    retention = (
        "max_retain_after_ingestion_hours: 72, size_cap: 500GB, size_cap_policy: drop_oldest, "
        "steady_state_headroom: 1MB, max_segments: 500"
    )
    read = quiver_config(tmp_path, f"retention: {{{retention}}}").retention
    assert (read.max_age_s, read.size_cap_bytes, read.size_cap_policy) == (
        72 * 3600,
        500 * 1024**3,
        "drop_oldest",
    )
    assert (read.steady_state_headroom_bytes, read.max_segments) == (1024**2, 500)


def test_a_durable_buffer_has_its_settings_in_one_level(tmp_path: Path) -> None:
    config = "path: buffer, retention_size_cap: 20 GiB, max_age: 24h, size_cap_policy: drop_oldest"
    config += ", max_segment_open_duration: 1s"
    read = quiver_config(tmp_path, config, "urn:otel:processor:durable_buffer")
    assert read.retention.size_cap_bytes == 20 * 1024**3
    assert read.retention.max_age_s == 24 * 3600
    assert read.retention.size_cap_policy == "drop_oldest"
    assert read.segment.max_open_duration_s == 1.0


def test_what_is_wrong_with_such_a_setting_is_told_where_it_stands(tmp_path: Path) -> None:
    text = """\
nodes:
  in: {kind: receiver, type: toy, to: [hold]}
  hold:
    kind: processor
    type: processor:durable_buffer
    to: [out]
    config:
      max_age: tomorrow
      poll_interval: 100ms
  out: {kind: exporter, type: memory}
"""
    assert findings(tmp_path, text) == [
        f"8:16 error retention.max_age: {NOT_A_DURATION}",
        "9:7 error there is no key 'poll_interval' here",
    ]


def test_a_placeholder_is_warned_of(tmp_path: Path) -> None:
    text = TURNS.replace("type: quiver", "x").replace(
        "one: {kind: exporter, type: memory}",
        'one: {kind: exporter, type: memory, config: {url: "http://{{backend_hostname}}:1235"}}',
    )
    (found,) = [one for one in findings(tmp_path, text) if "placeholder" in one]
    assert found.endswith("warning {{backend_hostname}} is a placeholder, and nothing replaces it")


OTLP = """\
nodes:
  telemetry:
    kind: receiver
    type: urn:otel:receiver:otlp
    config: CONFIG
    to: [out]
  out: {kind: exporter, type: "exporter:otlp_http", config: {endpoint: "http://127.0.0.1:1"}}
"""


def loaded_otlp(folder: Path, config: str) -> Any:
    path = folder / "otlp.yaml"
    path.write_text(OTLP.replace("CONFIG", config))
    return load(path).graph.nodes


def test_a_receiver_of_otlp_takes_its_addresses_by_protocol(tmp_path: Path) -> None:
    config = "{protocols: {grpc: {listening_addr: '127.0.0.1:1'}, http: {listening_addr: ':2'}}}"
    nodes = loaded_otlp(tmp_path, config.replace("':2'", "'127.0.0.1:2'"))
    assert nodes["telemetry"].config.listening == {
        "listening_addr": "127.0.0.1:1",
        "http_listening_addr": "127.0.0.1:2",
    }
    assert nodes["out"].config.speaks == "http"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{protocols: {grpc: {listening_addr: ':1', tls: {}}}}", "each of them `listening_addr`"),
        ("{protocols: {udp: {listening_addr: ':1'}}}", "`protocols` has `grpc` and `http`"),
        ("{protocols: [grpc]}", "there is no key 'protocols' here"),
        (
            "{listening_addr: '127.0.0.1:1', protocols: {grpc: {listening_addr: '127.0.0.1:1'}}}",
            "are the same; keep one",
        ),
    ],
)
def test_other_settings_by_protocol_are_refused(tmp_path: Path, config: str, message: str) -> None:
    with pytest.raises(BadConfig) as caught:
        loaded_otlp(tmp_path, config)
    assert [message in one.message for one in caught.value.findings] == [True]


def test_the_proposal_s_own_file_is_read_with_three_warnings() -> None:
    loaded = load(PRINTED)
    assert [(one.line, one.message) for one in loaded.warnings] == [
        (
            34,
            f"{READ_AS}: each of otap_exporter, otlp_exporter gets everything",
        ),
        (51, "{{backend_hostname}} is a placeholder, and nothing replaces it"),
        (55, "'otlp_exporter' sends to 'otap_receiver' of this same file"),
    ]
    (quiver,) = plan(loaded.graph)
    assert [one.name for one in quiver.receivers] == ["otlp_receiver", "otap_receiver"]
    assert [one.name for one in quiver.destinations] == ["otap_exporter", "otlp_exporter"]
