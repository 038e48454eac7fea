"""One subscriber does not feel another: not its death, not its caps, not its losses."""

from __future__ import annotations

import pytest
from tests.patience import APPEND_S
from tests.readers.setting import (
    StillMachine,
    append,
    calm,
    check_books,
    drain,
    keep,
    must_plan,
)

from holdfast.errors import Overloaded
from holdfast.quiver import LeaseOptions, Outcome, Quiver, RetentionConfig, SubscriberOptions
from holdfast.quiver.base.config import KB, MB

CAP = 2 * MB
PAYLOAD_BYTES = 100 * KB


def run(still: StillMachine, options: SubscriberOptions | None) -> tuple[Quiver, list[int]]:
    """Append and deliver for a while, with or without somebody dead; return what was delivered."""
    quiver = still.start(calm(RetentionConfig(size_cap_bytes=8 * MB), timeout_s=APPEND_S))
    if options is not None:
        quiver.register("dead", options=options)
    lease = quiver.lease("healthy")
    delivered: list[int] = []
    for round_ in range(40):
        append(quiver, 3, size_bytes=PAYLOAD_BYTES)
        if round_ % 4 == 3:
            quiver.flush()
        delivered += drain(lease)
        keep(quiver)
        check_books(quiver)
    return quiver, delivered


def test_one_that_is_dead_at_its_drop_oldest_cap_refuses_no_producer_and_changes_nothing() -> None:
    with StillMachine() as alone, StillMachine() as beside:
        quiver, expected = run(alone, None)
        crowded, delivered = run(beside, SubscriberOptions(max_bytes=CAP, on_full="drop_oldest"))
        assert delivered == expected == list(range(120))
        assert quiver.balance("healthy") == crowded.balance("healthy")
        statistics = crowded.statistics()
        assert statistics.retention.throttled == 0
        dead = crowded.balance("dead")
        assert dead.outcomes[Outcome.DROPPED].bundles > 90
        assert dead.pending_bytes <= CAP
        assert statistics.used_bytes < 8 * MB


def test_one_that_is_dead_without_a_cap_of_its_own_is_dropped_at_the_common_one() -> None:
    with StillMachine() as beside:
        quiver, delivered = run(beside, SubscriberOptions(on_full="drop_oldest"))
        assert delivered == list(range(120))
        assert quiver.balance("dead").outcomes[Outcome.DROPPED].bundles > 50


@pytest.mark.parametrize("cap", [CAP, None])
def test_one_that_is_dead_and_chose_block_refuses_the_producer_and_is_named(
    cap: int | None,
) -> None:
    with StillMachine() as beside, pytest.raises(Overloaded, match="dead") as refused:
        run(beside, SubscriberOptions(max_bytes=cap, on_full="block"))
    assert refused.value.stored == "no"
    assert refused.value.retry_after_s is not None


def test_several_readers_of_all_sorts_each_get_everything_in_their_own_order() -> None:
    with StillMachine() as still:
        quiver = still.start()
        for name in ("fifo", "newest", "cursor", "rejecting"):
            quiver.register(name)
        append(quiver, 10)
        newest = quiver.lease("newest", leasing=LeaseOptions(order="newest_first"))
        assert list(drain(quiver.lease("fifo"))) == list(range(10))
        assert list(drain(newest)) == list(range(9, -1, -1))
        cursor = quiver.cursor("cursor")
        planned = must_plan(cursor)
        cursor.commit(planned)
        rejecting = quiver.lease("rejecting")
        while (delivery := rejecting.poll()) is not None:
            delivery.reject("no")
        quiver.flush()
        keep(quiver)
        assert quiver.segments() == ()
        for balance in check_books(quiver).values():
            assert balance.pending.bundles == 0
