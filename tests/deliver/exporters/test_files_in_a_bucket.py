"""The files exporter and a real server of S3: what the bucket has, and what is said without one."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import obstore
import pyarrow.parquet as pq
import pytest
from obstore.store import S3Store
from pydantic import ValidationError
from tests.deliver.exporters.sending import context, event, send
from tests.deliver.exporters.test_file_tables import TEN_NS, spans
from tests.deliver.exporters.test_files import HOUR_NS, NOON_NS, numbered
from tests.patience import PATIENCE_S, until
from tests.store.s3_proxy import Proxy, Trouble, running_proxy

from holdfast.deliver.exporter import Answer, Exporter, FailureClass
from holdfast.deliver.exporters import files
from holdfast.deliver.exporters.file_places import CHECK_KEY
from holdfast.errors import CannotOpen
from holdfast.prove.store import BUCKET, running_s3
from holdfast.seam.bucket import PART_BYTES, BucketAccess, open_bucket

MB = 2**20
PREFIXES = itertools.count()


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_s3(tmp_path_factory.mktemp("s3") / "server.log") as variables:
        yield variables["AWS_ENDPOINT_URL"]


@pytest.fixture
def place(endpoint: str) -> dict[str, Any]:
    """A prefix of its own, and how it is reached."""
    options = {"access_key_id": "prove", "secret_access_key": "prove", "region": "us-east-1"}
    bucket = {"endpoint": endpoint, "allow_http": True, "options": options}
    return {"directory": f"s3://{BUCKET}/prefix-{next(PREFIXES)}", "bucket": bucket}


def exporter(base_dir: Path, place: dict[str, Any], **config: Any) -> Exporter:
    return files.make(files.Config.model_validate(place | config), context(base_dir))


def objects(place: dict[str, Any], endpoint: str) -> dict[str, bytes]:
    """Return what a reader finds."""
    prefix = place["directory"].removeprefix(f"s3://{BUCKET}/")
    store = S3Store(
        BUCKET,
        prefix=prefix,
        endpoint=endpoint,
        **place["bucket"]["options"],
        client_options={"allow_http": True},
    )
    found = [one["path"] for one in obstore.list(store).collect()]
    return {key: bytes(obstore.get(store, key).bytes()) for key in found if key != CHECK_KEY}


def unfinished(endpoint: str) -> bytes:
    """Return what the server says of uploads that were neither finished nor given up."""
    import urllib.request

    with urllib.request.urlopen(f"{endpoint}/{BUCKET}?uploads", timeout=PATIENCE_S) as answer:
        return bytes(answer.read())


def numbers(found: dict[str, bytes]) -> list[int]:
    return [json.loads(line)["n"] for key in sorted(found) for line in found[key].splitlines()]


def test_lines_in_partitions(tmp_path: Path, place: dict[str, Any], endpoint: str) -> None:
    batch = [event(n, b'{"n":%d}' % n, ingestion_ns=NOON_NS + n * HOUR_NS) for n in (1, 2, 10)]
    made = exporter(tmp_path, place, partition_by="hour")
    assert send(made, batch[:2], batch[2:]) == [Answer(), Answer()]
    assert {key: numbers({key: text}) for key, text in objects(place, endpoint).items()} == {
        "date=2025-06-15/hour=16/20250615T160640.000000Z-7b0a2c1e-1.0-1.0.ndjson": [1],
        "date=2025-06-15/hour=17/20250615T170640.000000Z-7b0a2c1e-2.0-2.0.ndjson": [2],
        "date=2025-06-16/hour=01/20250616T010640.000000Z-7b0a2c1e-10.0-10.0.ndjson": [10],
    }
    assert not list(tmp_path.rglob("journal-*"))
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
def test_parquet(tmp_path: Path, place: dict[str, Any], endpoint: str, compression: str) -> None:
    made = exporter(tmp_path, place, format="parquet", compression=compression)
    assert send(made, numbered(1, 5)) == [Answer()]
    (content,) = objects(place, endpoint).values()
    assert pq.read_table(BytesIO(content))["seq"].to_pylist() == [1, 2, 3, 4, 5]


def test_tables_in_folders_of_hours_and_services(
    tmp_path: Path, place: dict[str, Any], endpoint: str
) -> None:
    made = exporter(tmp_path, place, format="parquet", tables=["spans"])
    assert send(made, [spans(1, ("a/b", TEN_NS), ("c", TEN_NS))]) == [Answer()]
    found = objects(place, endpoint)
    # The store's own escapes stay out of it: names are those of the local folders.
    assert {key.rpartition("/")[0] for key in found} == {
        "spans/hour=2026-11-16T22/service=a%2Fb",
        "spans/hour=2026-11-16T22/service=c",
    }


def test_a_large_object_goes_in_parts(tmp_path: Path, place: dict[str, Any], endpoint: str) -> None:
    large = [event(n, b'"%s"' % (b"%d" % n * 5 * MB)) for n in range(1, 6)]
    assert send(exporter(tmp_path, place), *([one] for one in large)) == [Answer()] * 5
    (content,) = objects(place, endpoint).values()
    assert content == b"".join(one.payload + b"\n" for one in large)
    assert len(content) > 3 * PART_BYTES


@pytest.mark.parametrize("trouble", [Trouble.REFUSE, Trouble.LOSE_ANSWER, Trouble.TWICE])
@pytest.mark.parametrize("nth", range(1, 4))
def test_a_put_that_goes_wrong(
    tmp_path: Path, place: dict[str, Any], endpoint: str, trouble: Trouble, nth: int
) -> None:
    """Refused, or stored without an answer, or twice: every event is there once."""
    with running_proxy(endpoint) as (proxy, address):
        through = place | {"bucket": place["bucket"] | {"endpoint": address}}
        answers = asyncio.run(
            insist(exporter(tmp_path, through, max_file_events=3), proxy, nth, trouble)
        )
    assert numbers(objects(place, endpoint)) == list(range(1, 13))
    assert (FailureClass.TRANSIENT in answers) == (trouble is not Trouble.TWICE)


async def insist(made: Exporter, proxy: Proxy, nth: int, trouble: Trouble) -> set[FailureClass]:
    """Send until all is taken; the nth request has a trouble."""
    if nth == 1:
        proxy.strike("PUT", trouble)
    await made.start()
    seen = set()
    for number, first in enumerate(range(1, 13, 3), start=2):
        if number == nth:
            proxy.strike("PUT", trouble, trouble)
        while (answer := await made.send(numbered(first, first + 2))).failed:
            seen |= {failure.kind for failure in answer.failed.values()}
    await made.close()
    # What failed at the start was told there, and not by a send.
    return seen | ({FailureClass.TRANSIENT} if nth == 1 and trouble is not Trouble.TWICE else set())


def test_a_put_whose_answer_never_comes(
    tmp_path: Path, place: dict[str, Any], endpoint: str
) -> None:
    with running_proxy(endpoint) as (proxy, address):
        bucket = place["bucket"] | {"endpoint": address, "request_timeout": "1s"}
        made = exporter(tmp_path, place | {"bucket": bucket}, max_file_events=3)

        async def run() -> None:
            await made.start()
            assert not (await made.send(numbered(1, 3))).failed
            proxy.strike("PUT", Trouble.HANG)
            while (await made.send(numbered(4, 6))).failed:
                pass
            await made.close()

        asyncio.run(run())
    assert numbers(objects(place, endpoint)) == [1, 2, 3, 4, 5, 6]


def test_a_part_that_is_refused_leaves_nothing_behind(
    tmp_path: Path, place: dict[str, Any], endpoint: str
) -> None:
    with running_proxy(endpoint) as (proxy, address):
        access = BucketAccess(place["directory"], address, True, place["bucket"]["options"])
        proxy.strike("PUT", Trouble.REFUSE)
        bucket = open_bucket(access)
        pieces = [bytes([n]) * MB for n in range(20)]
        with pytest.raises(Exception, match="did not answer"):
            bucket.put("large", 20 * MB, iter(pieces))
        assert objects(place, endpoint) == {}
        assert b"<Upload>" not in unfinished(endpoint)
        bucket.put("large", 20 * MB, iter(pieces))
    assert objects(place, endpoint) == {"large": b"".join(pieces)}


SENDER = """
import sys
from holdfast.seam.bucket import BucketAccess, open_bucket
url, endpoint = sys.argv[1:]
options = {"access_key_id": "prove", "secret_access_key": "prove", "region": "us-east-1"}
bucket = open_bucket(BucketAccess(url, endpoint, True, options))
bucket.put("large", 40 << 20, (bytes(1 << 20) for _ in range(40)))
"""


def test_of_an_object_whose_sender_is_killed_nothing_is_seen(
    place: dict[str, Any], endpoint: str
) -> None:
    with running_proxy(endpoint) as (proxy, address):
        proxy.strike("PUT", Trouble.HANG)
        sender = subprocess.Popen([sys.executable, "-c", SENDER, place["directory"], address])
        try:
            until(lambda: proxy.requests.count("PUT") >= 2, "parts on their way")
        finally:
            sender.kill()
            sender.wait()
    assert objects(place, endpoint) == {}


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"directory": "s3://nowhere/x"}, FailureClass.TRANSIENT, "the bucket does not exist"),
        ({"endpoint": "http://127.0.0.1:1"}, FailureClass.TRANSIENT, "did not answer"),
    ],
)
def test_a_bucket_that_cannot_be_used_is_told_and_nothing_is_taken(
    tmp_path: Path,
    place: dict[str, Any],
    changes: dict[str, Any],
    kind: FailureClass,
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = changes.get("directory", place["directory"])
    bucket = place["bucket"] | {k: v for k, v in changes.items() if k != "directory"}
    made = exporter(tmp_path, {"directory": directory, "bucket": bucket})
    (answer,) = send(made, numbered(1, 3))
    assert {failure.kind for failure in answer.failed.values()} == {kind}
    assert words in answer.failed[0].reason
    assert "nothing can be written" in caplog.text
    assert "prove" not in answer.failed[0].reason
    assert not list(tmp_path.rglob("journal-*"))


def test_credentials_that_are_refused_are_told_and_events_wait(
    tmp_path: Path, place: dict[str, Any], endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running_proxy(endpoint) as (proxy, address):
        proxy.strike("PUT", Trouble.DENY, Trouble.DENY)
        through = place | {"bucket": place["bucket"] | {"endpoint": address}}
        refused, taken = send(exporter(tmp_path, through), numbered(1, 3), numbered(1, 3))
    assert {failure.kind for failure in refused.failed.values()} == {FailureClass.AUTH}
    assert "check the credentials" in caplog.text
    assert not taken.failed
    assert numbers(objects(place, endpoint)) == [1, 2, 3]


def test_options_that_there_are_not_are_told_when_it_is_made(
    tmp_path: Path, place: dict[str, Any]
) -> None:
    bucket = place["bucket"] | {"options": {"acces_key_id": "hunter2"}}
    with pytest.raises(CannotOpen, match="acces_key_id") as failed:
        exporter(tmp_path, place | {"bucket": bucket})
    assert "hunter2" not in str(failed.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"directory": "hdfs://name/x"}, "or a bucket"),
        ({"directory": "s3:///x"}, "names no bucket"),
        ({"directory": "s3://key:secret@bucket/x"}, "no user, password or port"),
        ({"directory": "s3://bucket/x?versionId=1"}, "more than a bucket and a prefix"),
        ({"directory": "s3://bucket/a/../b"}, "parts that no object can have"),
        ({"directory": "s3://bucket", "max_total_size": "1GB"}, "lifecycle rule"),
        ({"directory": "s3://bucket", "max_file_size": "100GB"}, "at most"),
        ({"directory": "out", "bucket": {}}, "is a folder"),
        ({"directory": "s3://b", "bucket": {"endpoint": "minio:9000"}}, "has to begin with"),
        ({"directory": "s3://b", "bucket": {"endpoint": "http://minio:9000"}}, "allow_http: true"),
    ],
)
def test_what_cannot_be_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        files.Config.model_validate(config)


@pytest.mark.parametrize(
    "url", ["s3://b/p", "gs://b", "az://container/p", "abfss://c@account.dfs.core.windows.net/p"]
)
def test_every_provider_has_its_address(tmp_path: Path, url: str) -> None:
    options = {"account_name": "account", "use_emulator": "true"} if url[0] == "a" else {}
    skip = {"skip_signature": "true"} | options
    made = exporter(tmp_path, {"directory": url, "bucket": {"options": skip}})
    assert made.max_batch_events == 1000
