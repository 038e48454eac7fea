"""Readers in as few words as a test about something else wants to spend on them."""

from __future__ import annotations

from holdfast.quiver import Quiver


def acknowledge(quiver: Quiver, subscriber: str, count: int = 1) -> None:
    """Take the next bundles of a subscriber, and say that they arrived."""
    with quiver.lease(subscriber) as deliveries:
        for _ in range(count):
            delivery = deliveries.poll()
            assert delivery is not None
            assert delivery.ack()


def reject(quiver: Quiver, subscriber: str, reason: str) -> None:
    """Take the next bundle of a subscriber, and say that it never will."""
    with quiver.lease(subscriber) as deliveries:
        delivery = deliveries.poll()
        assert delivery is not None
        assert delivery.reject(reason)
