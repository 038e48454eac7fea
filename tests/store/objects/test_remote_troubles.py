"""A bucket behind a bad line: lost answers, refusals, repeats, silence; every wait has an end."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import obstore
import pytest
from obstore.exceptions import PermissionDeniedError
from tests.store.s3_proxy import Proxy, Trouble, running_proxy
from tests.store.variables import in_environment

from holdfast.errors import (
    BadInput,
    CannotOpen,
    HoldfastError,
    NotAllowed,
    ObjectMissing,
    StoreUnavailable,
)
from holdfast.seam import Seam
from holdfast.store.objects import remote as remote_module
from holdfast.store.objects.objects import ObjectExists
from holdfast.store.objects.remote import RemoteLimits, RemoteObjects

LIMITS = RemoteLimits(request_timeout_s=20.0, retries=2, retry_timeout_s=60.0, connections=4)


@pytest.fixture
def line(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, str]]:
    """A bad line to the server, and a prefix at its end."""
    monkeypatch.setattr(remote_module, "FIRST_PAUSE_S", 0.01)
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    with running_proxy(endpoint) as (proxy, address), in_environment({"AWS_ENDPOINT_URL": address}):
        yield proxy, f"{s3_url}/{uuid.uuid4().hex}"


def opened(url: str, limits: RemoteLimits = LIMITS) -> RemoteObjects:
    return RemoteObjects(url, Seam(), limits)


@pytest.mark.parametrize("trouble", [Trouble.REFUSE, Trouble.LOSE_ANSWER, Trouble.TWICE])
def test_a_put_gets_through(line: tuple[Proxy, str], trouble: Trouble) -> None:
    proxy, url = line
    objects = opened(url)
    proxy.strike("PUT", trouble)
    objects.put("one", [b"bytes"])
    proxy.strike("PUT", trouble, trouble)
    objects.put_many([("two", [b"2"]), ("three", [b"3"])])
    assert [objects.get(key) for key in ("one", "two", "three")] == [b"bytes", b"2", b"3"]
    with pytest.raises(ObjectExists):
        objects.put("one", [b"other"])
    objects.close()


@pytest.mark.parametrize("trouble", [Trouble.REFUSE, Trouble.LOSE_ANSWER])
def test_reads_lists_and_deletes_get_through(line: tuple[Proxy, str], trouble: Trouble) -> None:
    proxy, url = line
    objects = opened(url)
    objects.put_many([(f"l/{n}", [b"%d" % n]) for n in range(5)])
    proxy.strike("GET", trouble)
    assert objects.get("l/3") == b"3"
    proxy.strike("GET", trouble)
    assert len(list(objects.list("l/"))) == 5
    proxy.strike("POST", trouble)
    objects.delete_many(["l/1", "l/2"])
    assert sorted(stored.key for stored in objects.list("l/")) == ["l/0", "l/3", "l/4"]
    objects.close()


def test_a_silent_server_is_given_up_and_the_request_may_have_landed(
    line: tuple[Proxy, str],
) -> None:
    proxy, url = line
    objects = opened(url, LIMITS._replace(request_timeout_s=1.0, retries=1))
    proxy.strike("PUT", Trouble.HANG, Trouble.HANG)
    with pytest.raises(StoreUnavailable, match="after 2 tries"):
        objects.put("key", [b"late"])
    assert proxy.requests.count("PUT") == 2
    patient = opened(url)
    assert patient.get("key") == b"late"
    patient.put("key", [b"late"])
    for one in (objects, patient):
        one.close()


def test_tries_are_counted(line: tuple[Proxy, str]) -> None:
    proxy, url = line
    objects = opened(url)
    proxy.strike("GET", *[Trouble.REFUSE] * 3)
    with pytest.raises(StoreUnavailable, match="after 3 tries"):
        objects.get("key")
    assert proxy.requests.count("GET") == 3
    objects.close()


def test_the_time_for_tries_is_bounded_too(line: tuple[Proxy, str]) -> None:
    proxy, url = line
    objects = opened(url, LIMITS._replace(retries=20, retry_timeout_s=0.0))
    proxy.strike("GET", Trouble.REFUSE, Trouble.REFUSE)
    with pytest.raises(StoreUnavailable, match="after 1 tries"):
        objects.get("key")
    objects.close()


def test_closing_ends_a_wait_between_tries(
    line: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "FIRST_PAUSE_S", 50.0)
    proxy, url = line
    objects = opened(url)
    proxy.strike("GET", Trouble.REFUSE, Trouble.REFUSE)
    objects.close()
    with pytest.raises(StoreUnavailable, match="after 1 tries"):
        objects.get("key")


def test_a_server_that_is_not_there_is_said(s3_url: str) -> None:
    with in_environment({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}):
        objects = opened(s3_url, LIMITS._replace(retries=0))
    with pytest.raises(StoreUnavailable, match="did not answer") as raised:
        objects.get("key")
    assert s3_url in str(raised.value)
    objects.close()


def test_more_than_one_request_can_delete_and_list(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "LIST_PAGE", 20)
    monkeypatch.setattr(remote_module, "DELETE_BATCH", 20)
    objects = opened(f"{s3_url}/{uuid.uuid4().hex}")
    names = [f"many/{n:04}" for n in range(45)]
    objects.put_many([(name, [b""]) for name in names])
    assert sorted(stored.key for stored in objects.list("many/")) == names
    objects.delete_many(names)
    assert list(objects.list("many/")) == []
    objects.close()


def test_no_request_deletes_more_than_the_server_takes(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(obstore, "delete", lambda _, keys: sizes.append(len(keys)))
    objects = opened(s3_url)
    objects.delete_many([f"{n}" for n in range(2500)])
    assert sizes == [1000, 1000, 500]
    objects.close()


def test_a_bucket_that_does_not_exist_is_said(s3_url: str) -> None:
    objects = opened("s3://there-is-no-such-bucket/x")
    with pytest.raises(CannotOpen, match="bucket does not exist"):
        objects.put("key", [b"x"])
    with pytest.raises(ObjectMissing):
        objects.get("key")
    objects.close()


def test_credentials_that_are_refused_are_said(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionDeniedError("403")

    objects = opened(s3_url)
    monkeypatch.setattr(obstore, "get", refuse)
    with pytest.raises(NotAllowed, match="credentials"):
        objects.get("key")
    objects.close()


def test_an_address_that_is_none_is_said() -> None:
    with pytest.raises(HoldfastError) as raised:
        opened("s3://")
    assert isinstance(raised.value, CannotOpen | BadInput)
