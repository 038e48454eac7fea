"""Data nodes in one line of a graph file, or by flags of `holdfast up`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.graph.files import TOYS, findings, load_text

from holdfast.errors import BadConfig
from holdfast.graph import quiver_node
from holdfast.graph.loader import load
from holdfast.graph.paths import QuiverPlan, plan
from holdfast.graph.printing import as_yaml, printed
from holdfast.handoff import settings
from holdfast.operate.cli import cli

HIDDEN = """\
data_node_list: 10.0.0.1:8816, 10.0.0.2:8816
handoff_max_size_mb: 1024
handoff_store_max_size_mb: 10240
handoff_root_path: elsewhere
nodes:
  in: {kind: receiver, type: toy, to: out}
  out: {kind: exporter, type: memory}
"""
SHOWN = """\
nodes:
  in: {kind: receiver, type: toy, to: [hold]}
  hold: {kind: processor, type: quiver, out_ports: {p: {destinations: [out]}}}
  out: {kind: exporter, type: memory}
"""
FLAGS = {
    "data_node_list": "10.0.0.1:8816,10.0.0.2:8816",
    "handoff_max_size_mb": 1024,
    "handoff_store_max_size_mb": 10240,
    "handoff_root_path": "elsewhere",
}


def check(one: QuiverPlan, folder: Path) -> None:
    assert [to.name for to in one.destinations] == ["out"]
    assert one.directory == folder / "elsewhere"
    assert isinstance(one.config, quiver_node.Config)
    assert one.config.retention.size_cap == 10240 * 2**20
    assert one.to_nodes is not None
    config = one.to_nodes.config
    assert isinstance(config, settings.Config)
    assert config.nodes == {"10.0.0.1_8816": "10.0.0.1:8816", "10.0.0.2_8816": "10.0.0.2:8816"}
    assert (config.max_size, config.when_full) == (1024 * 2**20, "drop_copied")


def test_keys_of_the_file_and_flags_mean_the_same_as_the_long_form(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, HIDDEN)
    (one,) = plan(loaded.graph)
    assert one.name == "quiver"
    check(one, tmp_path)
    # What is printed is the long form, and can be loaded.
    text = as_yaml(printed(loaded))
    assert "handoff_" not in text
    (again,) = plan(load_text(tmp_path, text).graph)
    check(again, tmp_path)
    (tmp_path / "graph.yaml").write_text(SHOWN)
    flagged = load(tmp_path / "graph.yaml", registry=TOYS, environment={}, flags=FLAGS)
    (one,) = plan(flagged.graph)
    assert (one.name, flagged.flags) == ("hold", FLAGS)
    check(one, tmp_path)


@pytest.mark.parametrize(
    ("head", "tail", "expected"),
    [
        ("data_node_list: [nowhere]\n", "",
         "1:17 error 'nowhere' is not an address; write host:port, and IPv6 as [::1]:8815"),
        ("handoff_max_size_mb: 5\n", "",
         "1:1 error handoff_max_size_mb: there is not one exporter of type nodes"),
        ("handoff_store_max_size_mb: 0\n", "",
         "1:28 error handoff_store_max_size_mb: input should be greater than 0"),
        ("handoff_store_max_size_mb: 8\n", "",
         "4:9 error the size cap is 8388608 bytes, less than four segments (67108864 bytes)"),
        ("data_node_list: h:1\n", "  more: {kind: processor, type: quiver, to: [out]}\n",
         "1:1 error data_node_list: there are 2 quivers"),
        ("data_node_list: h:1\n", "  c: {kind: exporter, type: nodes, config: {nodes: ['h:2']}}\n",
         "1:1 error data_node_list: the exporter 'c' is there already"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_them_is_found_where_they_stand(
    tmp_path: Path, head: str, tail: str, expected: str
) -> None:
    assert any(one.startswith(expected) for one in findings(tmp_path, head + SHOWN + tail))


def test_flags_of_up_are_checked_like_the_file(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(
        "admin: {listen: null}\n"
        "nodes:\n"
        "  in: {kind: receiver, type: openlineage, config: {listen: '127.0.0.1:0'}, to: [out]}\n"
        "  out: {kind: exporter, type: log}\n"
    )

    def up(*flags: str) -> str:
        told = ["up", str(file), "--check", "--data-node-list", "h:1,h:2", *flags]
        return CliRunner().invoke(cli, told, catch_exceptions=False, standalone_mode=False).output

    assert "ready to run here" in up("--handoff-max-size-mb", "100")
    with pytest.raises(BadConfig) as refused:
        up("--handoff-max-size-mb", "100", "--handoff-store-max-size-mb", "100")
    (found,) = refused.value.findings
    assert "the quiver has room for 75 MB" in found.message
