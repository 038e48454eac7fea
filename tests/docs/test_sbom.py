"""The bill of materials names everything that an installation needs, and nothing else."""

from __future__ import annotations

from importlib.metadata import version

from scripts.sbom import bill


def test_the_bill_is_whole_and_repeatable() -> None:
    told = bill(["all"])
    names = {one["name"]: one for one in told["components"]}
    for name in ("pyarrow", "pyspark", "grpcio", "obstore", "httptools", "confluent-kafka"):
        assert names[name]["version"] == version(name)
        assert names[name]["purl"] == f"pkg:pypi/{name}@{version(name)}"
    # What only tests need is no part of it.
    assert not {"pytest", "hypothesis", "mypy"} & {*names}
    known = {one["bom-ref"] for one in (*names.values(), told["metadata"]["component"])}
    edges = {one["ref"]: one["dependsOn"] for one in told["dependencies"]}
    assert {*edges} == known
    assert {ref for needed in edges.values() for ref in needed} <= known
    assert bill(["all"]) == told


def test_the_base_is_small() -> None:
    base = {one["name"] for one in bill(["none"])["components"]}
    assert {"click", "orjson", "pyarrow", "rich", "xxhash"} <= base
    assert not {"httptools", "pyspark", "pydantic"} & base
