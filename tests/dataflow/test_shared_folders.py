"""Plain paths of a pipeline on a cluster: seen by every host as by the driver, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.dataflow.driver.cluster import not_shared, refuse_address, unseen
from holdfast.dataflow.spec import Pipeline
from holdfast.errors import BadConfig


def test_a_folder_counts_as_seen_only_with_what_the_driver_put_there(tmp_path: Path) -> None:
    (tmp_path / "mark").write_bytes(b"driver")
    here, gone = str(tmp_path / "mark"), str(tmp_path / "elsewhere" / "mark")
    assert unseen({here: b"driver"}) == []
    assert unseen({here: b"another host's", gone: b"driver"}) == [
        str(tmp_path),
        str(tmp_path / "elsewhere"),
    ]


def test_the_sentence_names_the_host_the_folder_and_what_to_do() -> None:
    error = not_shared("worker-7", ["/data/state"])
    assert "worker-7 does not see /data/state" in error.message
    assert "mount" in error.hint
    assert error.path == "/data/state"


@pytest.mark.parametrize("address", ["s3://bucket/state", "hdfs://name/state", "abfss://c@a/state"])
def test_a_state_directory_in_an_object_store_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(BadConfig, match="the state directory is an address"):
        refuse_address(Path(address).absolute())
    refuse_address(tmp_path / "state")


def test_a_files_sink_in_an_object_store_is_refused() -> None:
    built = Pipeline().source("a", quiver="q").sink(name="out", files="s3a://bucket/out")
    with pytest.raises(BadConfig, match=r"files: .* is an address"):
        _ = built.settings
