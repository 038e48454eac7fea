"""Programs of others that write lineage, as users run them: their events arrive behind the gateway.

Each runs a real job, and sends with its own client, unchanged, to a gateway process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gateway.conftest import MakeGateway
from tests.gateway.processes import exporter
from tests.patience import SPARK_PATIENCE_S, until
from tests.support.backend import HttpBackend

BUILD = Path(__file__).parents[2] / "build"
CLIENTS = BUILD / "clients"
JARS = sorted((BUILD / "openlineage-spark").glob("openlineage-spark_*.jar"))

pytestmark = pytest.mark.slow


def needs(name: str) -> pytest.MarkDecorator:
    there = (CLIENTS / name / "installed.txt").exists()
    return pytest.mark.skipif(not there, reason=f"needs {name}: make setup-clients")


@pytest.fixture
def backend() -> Iterator[HttpBackend]:
    one = HttpBackend()
    yield one
    one.close()


@pytest.fixture
def url(make_gateway: MakeGateway, backend: HttpBackend) -> str:
    """Where lineage goes."""
    return make_gateway({"backend": exporter(f"{backend.url}/api/v1/lineage")}).url


def run(command: list[str | Path], folder: Path, **environment: str) -> str:
    """Run a program to its end; return all it said."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**kept, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SPARK_PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:]
    return ended.stdout


def finished(backend: HttpBackend, job: str) -> bool:
    """Whether a job of this name began and ended well."""
    states = {
        str(event["eventType"])
        for event in list(backend.events)
        if job in event.get("job", {}).get("name", "")
    }
    return {"START", "COMPLETE"} <= states


@needs("dbt")
def test_dbt(url: str, backend: HttpBackend, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "models").mkdir(parents=True)
    (project / "models" / "orders.sql").write_text("select 1 as id")
    (project / "dbt_project.yml").write_text("name: shop\nversion: '1.0'\nprofile: shop\n")
    profile = "shop:\n  target: dev\n  outputs:\n    dev: {type: duckdb, path: shop.duckdb}\n"
    (project / "profiles.yml").write_text(profile)
    bin_dir = CLIENTS / "dbt" / "bin"
    run(
        [bin_dir / "dbt-ol", "run", "--project-dir", ".", "--profiles-dir", "."],
        project,
        PATH=f"{bin_dir}:{os.environ['PATH']}",
        OPENLINEAGE_URL=url,
        OPENLINEAGE_NAMESPACE="dbt",
        DBT_SEND_ANONYMOUS_USAGE_STATS="false",
    )
    until(lambda: finished(backend, "orders"), "the model's lineage")


DAG = """\
from datetime import datetime
from airflow.sdk import dag, task

@dag(dag_id="orders", schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def orders():
    @task
    def load():
        return 1
    load()

found = orders()
if __name__ == "__main__":
    found.test()
"""


@needs("airflow")
def test_airflow(url: str, backend: HttpBackend, tmp_path: Path) -> None:
    dags = tmp_path / "airflow" / "dags"
    dags.mkdir(parents=True)
    (dags / "orders.py").write_text(DAG)
    bin_dir = CLIENTS / "airflow" / "bin"
    settings = {
        "PATH": f"{bin_dir}:{os.environ['PATH']}",
        "AIRFLOW_HOME": str(dags.parent),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__OPENLINEAGE__NAMESPACE": "production",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": (
            f'{{"type": "http", "url": "{url}", "endpoint": "api/v1/lineage"}}'
        ),
    }
    run([bin_dir / "airflow", "db", "migrate"], tmp_path, **settings)
    run([bin_dir / "airflow", "dags", "reserialize"], tmp_path, **settings)
    run([bin_dir / "python", dags / "orders.py"], tmp_path, **settings)
    until(lambda: finished(backend, "orders.load"), "the task's lineage")


JOB = """\
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").appName("orders").getOrCreate()
spark.range(10).write.mode("overwrite").parquet(sys.argv[1])
spark.read.parquet(sys.argv[1]).groupBy().count().write.mode("overwrite").parquet(sys.argv[2])
spark.stop()
"""


@pytest.mark.skipif(not JARS, reason="needs its listener: make setup-openlineage-spark")
def test_spark(url: str, backend: HttpBackend, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    bin_dir = Path(sys.executable).parent
    settings = {
        "spark.jars": str(JARS[-1]),
        "spark.extraListeners": "io.openlineage.spark.agent.OpenLineageSparkListener",
        "spark.openlineage.transport.type": "http",
        "spark.openlineage.transport.url": url,
        "spark.openlineage.namespace": "production",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
    }
    given = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    run(
        [bin_dir / "spark-submit", *given, "job.py", tmp_path / "first", tmp_path / "second"],
        tmp_path,
        PATH=f"{bin_dir}:{os.environ['PATH']}",
        PYSPARK_PYTHON=sys.executable,
    )
    until(lambda: finished(backend, "orders"), "the job's lineage")
    outputs = [output for event in backend.events for output in event.get("outputs", [])]
    assert any(output["name"].endswith("second") for output in outputs)
