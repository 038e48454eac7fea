"""The faulty wrapper does what it says, so that tests that use it can fail."""

from __future__ import annotations

import threading

import pytest
from tests.store.objects.places import on_simulated_disk, simulated_disk

from holdfast.errors import ObjectMissing, StoreUnavailable
from holdfast.store.objects.faulty import FaultyObjects, ObjectFault, ObjectFaultKind
from holdfast.store.objects.objects import ObjectExists

Kind = ObjectFaultKind


def faulty(*faults: ObjectFault) -> FaultyObjects:
    return FaultyObjects(on_simulated_disk(simulated_disk()), faults)


def keys(objects: FaultyObjects) -> list[str]:
    return [stored.key for stored in objects.list("")]


def test_the_named_call_is_struck_and_no_other() -> None:
    objects = faulty(ObjectFault("put", Kind.REFUSED, nth=2, times=2))
    objects.put("1", [b""])
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            objects.put("2", [b""])
    objects.put("3", [b""])
    assert keys(objects) == ["1", "3"]
    assert objects.calls() == {"put": 4, "list": 1}


@pytest.mark.parametrize("operation", ["put", "put_many"])
def test_an_answer_is_lost_after_the_request_landed(operation: str) -> None:
    objects = faulty(ObjectFault("put", Kind.ANSWER_LOST))
    with pytest.raises(StoreUnavailable):
        objects.put("key", [b""]) if operation == "put" else objects.put_many([("key", [b""])])
    assert keys(objects) == ["key"]


def test_a_late_put_and_a_late_delete_land_when_told() -> None:
    objects = faulty(ObjectFault("put", Kind.LANDS_LATE, nth=2))
    objects.put("old", [b""])
    with pytest.raises(StoreUnavailable):
        objects.put("new", [b"bytes"])
    objects.strike("delete", Kind.LANDS_LATE)
    with pytest.raises(StoreUnavailable):
        objects.delete_many(["old"])
    assert keys(objects) == ["old"]
    assert objects.land_late() == 2
    assert keys(objects) == ["new"]
    assert objects.land_late() == 0


def test_a_request_lands_twice() -> None:
    objects = faulty(ObjectFault("delete", Kind.TWICE), ObjectFault("put", Kind.TWICE))
    objects.put("key", [b"x"])
    assert objects.get("key") == b"x"
    objects.delete_many(["key"])
    assert keys(objects) == []


def test_answers_that_are_not_true() -> None:
    objects = faulty(
        ObjectFault("get", Kind.MISSING),
        ObjectFault("put", Kind.EXISTS, nth=2),
        ObjectFault("get", Kind.REFUSED, nth=2),
        ObjectFault("list", Kind.REFUSED),
    )
    objects.put("key", [b"x"])
    with pytest.raises(ObjectMissing):
        objects.get("key")
    with pytest.raises(ObjectExists):
        objects.put("other", [b"x"])
    with pytest.raises(StoreUnavailable):
        objects.get("key")
    with pytest.raises(StoreUnavailable):
        objects.list("")
    assert objects.get("key") == b"x"


def test_a_stale_listing_is_the_one_before() -> None:
    objects = faulty(ObjectFault("list", Kind.STALE, nth=2))
    objects.put("1", [b""])
    assert keys(objects) == ["1"]
    objects.put("2", [b""])
    assert keys(objects) == ["1"]
    assert keys(objects) == ["1", "2"]


def test_a_delayed_request_waits_to_be_let_go() -> None:
    objects = faulty(ObjectFault("put", Kind.DELAYED))
    thread = threading.Thread(target=lambda: objects.put("key", [b""]))
    thread.start()
    while objects.calls().get("put") != 1:
        pass
    assert keys(objects) == []
    objects.go_on.set()
    thread.join()
    assert keys(objects) == ["key"]


def test_healing_ends_all_faults() -> None:
    objects = faulty(ObjectFault("put", Kind.REFUSED, times=100))
    objects.heal()
    objects.put("key", [b""])
    assert objects.now_s() > 0
    objects.close()
