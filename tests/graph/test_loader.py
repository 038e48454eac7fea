"""Everything that can be wrong with a graph file, each with its line and column."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from tests.graph.files import TOYS, findings, hints, load_text

from holdfast.errors import BadConfig
from holdfast.extras import install_command
from holdfast.graph import registry
from holdfast.graph.loader import load
from holdfast.graph.registry import Component, Registry

GOOD = """\
data_dir: ./data
nodes:
  in:
    kind: receiver
    type: toy
    to: [hold]
  hold:
    kind: processor
    type: quiver
    to: [out]
  out:
    kind: exporter
    type: memory
"""


def with_line(line: int, text: str) -> str:
    """Return the good file with another line."""
    lines = GOOD.splitlines()
    lines[line - 1 : line] = text.split("\n")
    return "\n".join(lines)


def test_a_good_file_is_loaded_without_a_word(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, GOOD)
    assert loaded.warnings == ()
    assert list(loaded.graph.nodes) == ["in", "hold", "out"]
    assert loaded.graph.data_dir == tmp_path / "data"
    assert loaded.graph.nodes["in"].destinations == ["hold"]


@pytest.mark.parametrize(
    ("line", "text", "finding", "hint"),
    [
        (1, "data_dri: ./data", "1:1 error there is no key 'data_dri' here",
         "did you mean 'data_dir'?"),
        (1, "data_dir: {a: 1}", "1:11 error data_dir: input should be a valid string", ""),
        (1, "workers: many", ("1:10 error workers: input should be a valid integer, "
         "unable to parse string as an integer"), ""),
        (1, "workers: 0",
         "1:10 error workers: input should be greater than or equal to 1", ""),
        (1, "drain: 5x", ("1:8 error drain: '5x' is not a duration; "
         "write a number with ms, s, m, h or d"), ""),
        (1, "drain: -1",
         "1:8 error drain: -1.0 is not a duration; it must not be negative", ""),
        (1, "logging: {level: loud}", ("1:18 error logging.level: input should be 'debug', "
         "'info', 'warning' or 'error'"), ""),
        (1, "logging: {lvl: info}", "1:11 error there is no key 'lvl' here",
         "did you mean 'level'?"),
        (1, "admin: {listen: nowhere}",
         "1:17 error admin.listen: 'nowhere' is not an address; write host:port", ""),
        (1, "statsd: {address: 5}", "1:19 error statsd.address: input should be a valid string",
         ""),
        (1, "dead_letters: {rejected: {max_siz: 1}}",
         "1:27 error there is no key 'max_siz' here", "did you mean 'max_size'?"),
        (1, "dead_letters: {rejected: {max_bytes: 1KB}}", ("1:38 error dead_letters.rejected."
         "max_bytes: input should be greater than or equal to 33554432"), ""),
        (1, "dead_letters: {handlers: {tell: {kind: log}}}",
         "1:27 error the key 'type' is missing", "add it"),
        (4, "    kind: reciever", ("4:11 error nodes.in.kind: input should be 'receiver', "
         "'processor' or 'exporter'"), ""),
        (5, "    type: tooy", "5:11 error there is no receiver of type 'tooy'",
         "did you mean 'toy'?"),
        (5, "    plugin_urn: urn:x", "5:17 error there is no receiver of type 'urn:x'",
         "known receivers: toy"),
        (5, "    type: memory", "5:11 error there is no receiver of type 'memory'",
         "'memory' is a type of exporter: change `kind`, or `type`"),
        (5, "    to: []", "4:5 error nodes.in: give either `type` or `plugin_urn`", ""),
        (6, "    to: [hold]\n    config: {listn: x}", "7:14 error there is no key 'listn' here",
         "did you mean 'listen'?"),
        (6, "    to: [hold]\n    config: {limits: {max_body: lots}}",
         ("7:33 error limits.max_body: 'lots' is not a size; "
         "write bytes, or a number with KB, MB, GB or TB"), ""),
        (6, "    to: [hold]\n    config: {auth: {type: kee}}",
         ("7:20 error auth: input tag 'kee' found using 'type' does not match any of the "
         "expected tags: 'key', 'name'"), ""),
        (6, "    to: [hold]\n    config: {auth: {type: key, keey: x}}",
         "7:14 error the key 'key' is missing", "add it"),
        (6, "    to: [hold]\n    config: {tokens: {a: 5}}",
         "7:26 error tokens.a: input should be a valid string", ""),
        (6, "    to: [hold]\n    config: {names: [a, {b: c}]}",
         "7:25 error names.1: input should be a valid string", ""),
        (6, "    to: [hold]\n    config: [1]",
         "7:13 error nodes.in.config: input should be a valid dictionary", ""),
        (6, "    to: [hold]\n    out_ports: {a: {destinations: [hold]}}",
         "4:5 error nodes.in: give either `to` or `out_ports`", ""),
        (6, "    to: {hold: 1}", "6:9 error nodes.in.to: input should be a valid list", ""),
        (6, "    to: [hold, 5]", "6:16 error nodes.in.to.1: input should be a valid string", ""),
        (6, "    out_ports: {a: {destination: [hold]}}",
         "6:17 error the key 'destinations' is missing", "add it"),
        (6, "    out_ports: {a b: {destinations: [hold]}}",
         ("6:17 error nodes.in.out_ports.a b: a name has 1 to 64 letters, digits, '_', '-' or "
         "'.', and begins with none of '-' '.'"), ""),
        (10, "    to: [out]\n    config: {segment: {target_size: 512MB}}",
         "11:23 error segment: segment.target_size_bytes must be between 1 MB and 256 MB", ""),
        (10, "    to: [out]\n    config: {retention: {size_cap: 1MB}}",
         ("11:13 error the size cap is 1048576 bytes, less than four segments "
         "(67108864 bytes); raise the cap, or make segments smaller (1 MB is the least)"),
         ""),
        (10, "    to: [out]\n    config: {retention: {size_cap_policy: panic}}",
         ("11:43 error retention.size_cap_policy: input should be 'backpressure' or "
         "'drop_oldest'"), ""),
        (13, "    type: memory\n    delivery: {order: random}",
         "14:23 error nodes.out.delivery.order: input should be 'received' or 'key'", ""),
        (13, "    type: memory\n    delivery: {retry_mx: 5s}",
         "14:16 error there is no key 'retry_mx' here", "did you mean 'retry_max'?"),
        (13, "    type: absent", "11:3 error the exporter 'absent' is not installed",
         install_command("absent")),
        (13, "    type: memory\n    config: {mark: '${env:MARK}'}",
         "14:20 error the environment has no variable MARK",
         "set it, or give a default: ${env:MARK:-…}"),
        (13, "    type: memory\n    config: {mark: '${file:mark}'}",
         "14:20 error the file 'mark' cannot be read: No such file or directory", None),
    ],
)  # fmt: skip
def test_an_error_is_found_at_its_line_and_column(
    line: int, text: str, finding: str, hint: str | None, tmp_path: Path
) -> None:
    told, said = findings(tmp_path, with_line(line, text)), hints(tmp_path, with_line(line, text))
    assert finding in told
    if hint is not None:
        assert said[told.index(finding)] == hint


def test_mistakes_of_every_kind_are_found_in_one_pass(tmp_path: Path) -> None:
    text = """\
    workers: many
    drain: 30x
    retries: 3
    dead_letters:
      rejected: {max_siz: 1MB}
      handlers:
        archive: {type: memroy}
        log: {type: memory, config: {urll: 1}}
    nodes:
      in: {kind: receiver, type: toy, to: [hold, nowhere]}
      hold: {kind: processor, type: quiver, to: [out, other, small], config: {wal: {max_size: x}}}
      out: {kind: exporter, type: memory, delivery: {order: random, lanes: 0}}
      other: {kind: exporter, typ: memory, config: {mark: '${env:NOT_THERE}'}}
      small: {kind: exporter, type: memory, config: {urll: 2}}
    pipelines:
      one: {vertices: {a: {source: {}}}, edges: [a -> b]}
    """
    lines = [found.split(" ")[0].split(":")[0] for found in findings(tmp_path, text)]
    missed = {str(line) for line in (1, 2, 3, 5, 7, 8, 10, 11, 12, 13, 14, 16)} - set(lines)
    assert missed == set(), findings(tmp_path, text)
    assert lines.count("12") == 2


def test_every_error_is_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """\
    wrokers: 2
    admin: {listen: 5}
    nodes:
      in: {kind: receiver, type: toy, to: a, config: {listn: 1, ratio: x}}
      a: {kind: exporter, type: memory, config: {urll: 2}}
      a: {kind: exporter, type: memory}
    """
    assert findings(tmp_path, text) == [
        "1:1 error there is no key 'wrokers' here",
        "2:17 error admin.listen: input should be a valid string",
        "4:51 error there is no key 'listn' here",
        "4:68 error ratio: input should be a valid number, unable to parse string as a number",
        "5:46 error there is no key 'urll' here",
        "6:3 error duplicate key 'a'",
    ]


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("nodes:", "1:7 error nodes: input should be a valid dictionary"),
        ("nodes: {}", ("1:8 error nodes: Dictionary should have at least 1 item after "
                      "validation, not 0")),
        ("workers: 1", "1:1 error the key 'nodes' is missing"),
        ("just text", "1:1 error input should be a valid dictionary or instance of GraphFile"),
        ("[1, 2]", "1:1 error input should be a valid dictionary or instance of GraphFile"),
        ("nodes: {in: 5}", ("1:13 error nodes.in: input should be a valid dictionary or "
                           "instance of NodeSettings")),
        ("nodes: {-x: {kind: receiver, type: toy}}",
         ("1:9 error nodes.-x: a name has 1 to 64 letters, digits, '_', '-' or '.', and "
         "begins with none of '-' '.'")),
    ],
)  # fmt: skip
def test_a_file_without_shape_is_told(text: str, finding: str, tmp_path: Path) -> None:
    assert finding in findings(tmp_path, text)


def test_who_validates_pipelines_alone_as_a_graph_is_told_what_checks_them(tmp_path: Path) -> None:
    path = tmp_path / "pipelines.yaml"
    path.write_text("pipelines: {}")
    with pytest.raises(BadConfig) as wrong:
        load(path)
    (found,) = wrong.value.findings
    assert found.message == "the key 'nodes' is missing"
    assert "holdfast dataflow validate" in found.hint


def test_a_value_never_stands_in_a_message_that_pydantic_made(tmp_path: Path) -> None:
    secret = "hunter2-hunter2"
    text = with_line(
        6, f"    to: [hold]\n    config: {{tokens: {{a: [{secret}]}}, ratio: {secret}}}"
    )
    with pytest.raises(BadConfig) as caught:
        load_text(tmp_path, text)
    assert len(caught.value.findings) == 2
    assert secret not in str([one._asdict() for one in caught.value.findings])


def test_the_error_says_how_many_and_where(tmp_path: Path) -> None:
    with pytest.raises(BadConfig) as caught:
        load_text(tmp_path, "a: 1\nb: 2\n")
    assert caught.value.message == "the configuration has 3 errors"
    assert caught.value.exit_code == 78
    assert caught.value.path == str(tmp_path / "graph.yaml")


def test_a_missing_file_is_a_bad_configuration(tmp_path: Path) -> None:
    with pytest.raises(BadConfig) as caught:
        load(tmp_path / "missing.yaml")
    assert [one.message for one in caught.value.findings] == [
        "the file cannot be read: No such file or directory"
    ]


# ----------------------------------------------------------------------- what it means


def test_references_are_replaced_in_values_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "mark").write_text("a: {b: c}\n")
    text = """\
    workers: ${env:WORKERS:-1}
    nodes:
      in: {kind: receiver, type: toy, to: out, config: {ratio: "${env:RATIO}"}}
      out: {kind: exporter, type: memory, config: {mark: "${file:mark}", url: "$${env:X}"}}
    """
    graph = load_text(tmp_path, text, {"RATIO": "0.25"}).graph
    assert graph.settings.workers == 1
    assert graph.nodes["in"].config.model_dump()["ratio"] == 0.25
    assert graph.nodes["out"].config.model_dump()["mark"] == "a: {b: c}"
    assert graph.nodes["out"].config.model_dump()["url"] == "${env:X}"
    key = "nodes: {'${env:NAME}': {kind: receiver, type: toy}}"
    assert "1:9 error nodes.${env:NAME}: a name" in findings(tmp_path, key, {"NAME": "a"})[0]


def test_what_looks_like_a_reference_of_another_tool_is_a_warning(tmp_path: Path) -> None:
    text = with_line(13, "    type: memory\n    config: {mark: '${HOME}'}")
    assert findings(tmp_path, text) == ["14:20 warning ${HOME} is not replaced"]
    assert hints(tmp_path, text) == [
        "write ${env:HOME} for the variable, or $${HOME} for this text"
    ]


def test_an_alias_of_a_type_and_the_seed_s_keys_mean_the_same(tmp_path: Path) -> None:
    text = """\
    nodes:
      in:
        kind: receiver
        type: toy
        out_ports:
          out_port:
            destinations:
              - persistence
            dispatch_strategy: round_robin
      persistence:
        kind: processor
        plugin_urn: "urn:otap:processor:persistence"
        out_ports:
          out_port:
            destinations:
              - out
            dispatch_strategy: round_robin
        config:
          path: ./quiver_data  # Platform-appropriate persistent storage location
          segment:
            target_size: 32MB
          wal:
            max_size: 4GB
            flush_interval: 25ms
          retention:
            max_retain_after_ingestion_hours: 72
            size_cap: 500GB
            size_cap_policy: drop_oldest  # or backpressure
      out: {kind: exporter, type: memory}
    """
    config = load_text(tmp_path, text).graph.nodes["persistence"].config
    quiver = config.as_config()  # type: ignore[attr-defined]
    assert quiver.segment.target_size_bytes == 32 * 1024**2
    assert quiver.wal.max_size_bytes == 4 * 1024**3
    assert quiver.wal.flush_interval_s == 0.025
    assert quiver.retention.max_age_s == 72 * 3600
    assert quiver.retention.size_cap_bytes == 500 * 1024**3
    assert quiver.retention.size_cap_policy == "drop_oldest"


def test_an_empty_config_and_a_single_name_are_fine(tmp_path: Path) -> None:
    text = """\
    nodes:
      in: {kind: receiver, type: toy, to: out, config: }
      out: {kind: exporter, type: memory}
    """
    assert load_text(tmp_path, text).graph.nodes["in"].destinations == ["out"]


def test_a_component_cannot_take_the_name_of_another() -> None:
    other = Component("toy", "receiver", "somewhere.else", "Wants to be the toy.")
    both = Registry([*TOYS, other])
    found = both.find("receiver", "toy")
    assert found is not None
    assert found.module == "tests.graph.toys.receiver"
    assert both.find("exporter", "toy") is None
    assert "toy" in both.types("receiver")


def test_holdfast_s_own_components_can_be_loaded() -> None:
    for component in Registry.standard():
        assert component.config_model.model_fields is not None
        assert component.summary.endswith(".")


def test_installed_packages_bring_components_by_entry_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def installed(group: str) -> list[EntryPoint]:
        return [
            EntryPoint(name, f"tests.graph.toys.{name}", group)
            for name in ("exporter", "receiver")
            if group == f"holdfast.{name}s"
        ]

    monkeypatch.setattr(registry, "entry_points", installed)
    found = Registry.standard().find("exporter", "exporter")
    assert found is not None
    assert found.code.make.__module__ == "tests.graph.toys.exporter"
    assert Registry.standard().find("receiver", "receiver") is not None
    assert Registry.standard().find("processor", "exporter") is None
