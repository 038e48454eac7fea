"""Paths in configuration files are of this machine."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from holdfast.deliver.exporters import files
from holdfast.errors import BadInput
from holdfast.quiver import Quiver
from holdfast.settings import LocalPath, Settings


class Folder(Settings):
    """Something with a path."""

    path: LocalPath


@pytest.mark.parametrize(
    "address", ["s3://bucket/lineage", "gs://b", "hdfs://host/x", "FILE:///x", "abfss://c@a/x"]
)
def test_an_address_is_no_path(address: str) -> None:
    with pytest.raises(ValidationError, match="is an address"):
        Folder(path=address)


@pytest.mark.parametrize("path", ["", "a", "./a:b", "/a//b", "c:/data", "a/s3://x", "://x"])
def test_a_path_is_taken_as_it_is(path: str) -> None:
    assert Folder(path=path).path == path


def test_a_file_address_is_told_as_the_path_it_means() -> None:
    with pytest.raises(ValidationError, match="write /var/lib without"):
        Folder(path="file:///var/lib")


def test_an_archive_on_hdfs_is_not_made_a_folder_called_hdfs() -> None:
    with pytest.raises(ValidationError, match=r"only folders of this machine .* or a bucket"):
        files.Config.model_validate({"directory": "hdfs://name/lineage"})


def test_a_quiver_is_not_opened_at_an_address() -> None:
    with pytest.raises(BadInput, match="is an address"):
        Quiver.open("s3://bucket/data")
