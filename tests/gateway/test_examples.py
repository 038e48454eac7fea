"""The examples run as they are, with the files and the environment that they ask for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from requests import HTTPError
from tests.gateway.conftest import MakeBackend
from tests.gateway.processes import Gateway
from tests.gateway.producer import producer
from tests.patience import until
from tests.support.certificates import make_certificates

from holdfast.graph.environment import missing_in_environment
from holdfast.graph.loader import load

EXAMPLES = Path(__file__).parents[2] / "examples"

LAG = "gateway_destination_lag_events"


class Example(Gateway):
    """A gateway whose file is an example, with the ports of this test."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, {})
        self.config = folder / name
        text = (EXAMPLES / name).read_text()
        assert "127.0.0.1:8480" in text
        text = text.replace("127.0.0.1:8480", f"127.0.0.1:{self.admin}")
        self.config.write_text(text.replace("listen: 127.0.0.1:5000", f"listen: {self.address}"))

    @property
    def address(self) -> str:
        """Where its receiver listens."""
        return f"127.0.0.1:{self.port}"


def test_openlineage_yaml(
    tmp_path: Path, make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    marquez = make_backend("marquez")
    monkeypatch.setenv("MARQUEZ_URL", marquez.url)
    gateway = Example(tmp_path, "openlineage.yaml")
    gateway.start()
    try:
        with producer(gateway.url) as client:
            client.emit("a", "b")
        assert gateway.post(b"{}")[0] == 400
        until(lambda: marquez.taken() == client.accepted, "delivery")
        until(lambda: "was not accepted" in gateway.log(), "the handler")
        until(lambda: gateway.metric(LAG, destination="archive") == 0, "the archive")
        gateway.stop()
    finally:
        gateway.kill()
    assert len(archived(tmp_path)) == 2


def archived(folder: Path) -> set[str]:
    """Return the events in the archive; the last file of it is there when the gateway stopped."""
    files = (folder / "lineage_archive").rglob("*.ndjson")
    return {line for path in files for line in path.read_text().splitlines()}


def test_reverse_proxy_yaml(
    tmp_path: Path, make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make_backend()
    monkeypatch.setenv("BACKEND_URL", backend.url)
    gateway = Example(tmp_path, "reverse-proxy.yaml")
    monkeypatch.setenv("LISTEN", gateway.address)
    missing = [found.message for found in missing_in_environment(load(gateway.config))]
    assert [name for name in ("cert.pem", "key.pem", "producers.txt") if name in str(missing)] == [
        "cert.pem",
        "key.pem",
        "producers.txt",
    ]
    made = make_certificates(tmp_path)
    (tmp_path / "tls").mkdir()
    for name in ("cert.pem", "key.pem"):  # the file has both
        shutil.copy(made.whole_server, tmp_path / "tls" / name)
    (tmp_path / "producers.txt").write_text("airflow 9f7e1d5a-token-of-airflow tests lake\n")
    assert missing_in_environment(load(gateway.config)) == []
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(made.ca))
    url = f"https://{gateway.address}"
    gateway.start()
    try:
        with producer(url) as nobody, pytest.raises(HTTPError, match="401"):
            nobody.emit("a")
        auth = {"type": "api_key", "apiKey": "9f7e1d5a-token-of-airflow"}
        with producer(url, auth=auth, endpoint="openapi/openlineage/api/v1/lineage") as client:
            client.emit("a", "b")
        until(lambda: sorted(backend.taken()) == sorted(client.accepted), "delivery")
        gateway.stop()
    finally:
        gateway.kill()


def test_every_example_is_tried_here() -> None:
    # Those of pipelines have tests of their own in tests/dataflow, the collector has
    # tests/graph/test_telemetry.py, the proposal's own file tests/graph/test_seed_example.py; the
    # one with every key has tests/docs/test_every_setting.py, and is not to be run.
    elsewhere = {
        *("lineage_stats.yaml", "lineage_stats_tests.yaml", "telemetry_stats.yaml"),
        *("telemetry_stats_tests.yaml", "collector.yaml", "seed.yaml", "every_setting.yaml"),
    }
    here = Path(__file__).read_text()
    others = [path.name for path in EXAMPLES.glob("*.yaml") if path.name not in elsewhere]
    assert [name for name in others if name not in here] == []
