"""Graph files to begin with. They are in `operate/cases`, each explained line by line."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from holdfast.errors import BadInput

DEFAULT_FILE = "holdfast.yaml"
# Case, what it is for, and the extra that it needs.
CASES = {
    "openlineage": ("lineage of Airflow, Spark or dbt, to Marquez and to files", "gateway"),
    "telemetry": ("traces, metrics and logs of OpenTelemetry, to a collector and to files", "otel"),
    "kafka": ("lineage to Kafka, secrets removed on the way", "kafka"),
    "copies": ("lineage to a backend, and copies on two data nodes", "gateway"),
    "pipelines": ("lineage to files, and counted in windows on Spark", "spark"),
}
DEFAULT_CASE = "openlineage"


def write_case(case: str, path: Path) -> None:
    """Write the graph file of a case; never over another one."""
    text = files("holdfast.operate").joinpath("cases", f"{case}.yaml").read_text("utf-8")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        hint = f"run it with `holdfast up {path}`, or name another with --file"
        raise BadInput("the file is there already", hint=hint, path=str(path)) from None
    except OSError as error:
        message = f"the file cannot be written: {error.strerror}"
        raise BadInput(message, hint="name another with --file", path=str(path)) from error
