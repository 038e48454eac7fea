"""The launcher of Spark's Python workers: everything as it was, but for the zipped pyspark."""

from __future__ import annotations

import os
import subprocess

from holdfast.dataflow.driver.session import worker_environment

SHOW = "import os, sys, pyspark; print(os.environ['PYTHONPATH'], pyspark.__file__, *sys.argv[1:])"


def start(path: str) -> list[str]:
    wanted = worker_environment()
    environ = {**os.environ, **wanted, "PYTHONPATH": path}
    told = subprocess.run(
        [wanted["PYSPARK_PYTHON"], "-c", SHOW, "a  b", "*"],
        env=environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return told.stdout.removesuffix("\n").split(" ", 2)


def test_the_zipped_libraries_are_left_out_and_nothing_else() -> None:
    zips = worker_environment()["HOLDFAST_PYSPARK_LIB"]
    assert os.path.exists(f"{zips}/pyspark.zip")
    path, module, arguments = start(f"{zips}/pyspark.zip:{zips}/py4j-0-src.zip:/with space/x:/y*")
    # The one with a space was split above: put together again.
    whole = f"{path} {module} {arguments}"
    assert whole.startswith("/with space/x:/y* ")
    assert ".zip" not in whole
    assert whole.endswith("pyspark/__init__.py a  b *")


def test_processes_of_a_data_source_are_started_so_too() -> None:
    """Spark takes the driver's Python for them: for what looks it up, plans, reads and writes."""
    wanted = worker_environment()
    assert wanted["PYSPARK_DRIVER_PYTHON"] == wanted["PYSPARK_PYTHON"]


def test_another_spark_s_zip_stays() -> None:
    path, _, _ = start("/elsewhere/python/lib/pyspark.zip")
    assert path == "/elsewhere/python/lib/pyspark.zip"
