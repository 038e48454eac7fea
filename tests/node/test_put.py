"""One put of many parts: they are stored side by side, and answered in order."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from tests.node.handing_over import check_exactly_once, open_node, some_parts
from tests.patience import PATIENCE_S

from holdfast.errors import OwnerGone
from holdfast.node.data_node import DataNode
from holdfast.node.points import NodePoint
from holdfast.node.service import PARTS_AT_ONCE, SLICES_WAITING_MAX, PutReceiver
from holdfast.replica.messages import PartAnswer
from holdfast.replica.part import Slice, slices
from holdfast.replica.transport import OutgoingPart
from holdfast.seam.disk import Disk, Handle
from holdfast.seam.simulated import SimulatedDisk


class WaitingDisk:
    """Lets no sync of a part end before as many parts are being written as may be at once."""

    def __init__(self, inner: SimulatedDisk) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._is_full = threading.Event()
        self._storing = 0
        self.most = 0
        self.waits_in_vain = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def make_dir(self, path: Any, at: str) -> None:
        self._inner.make_dir(path, at)
        if at == NodePoint.STAGE_MAKE_DIR:
            with self._lock:
                self._storing += 1
                self.most = max(self.most, self._storing)
                if self._storing == PARTS_AT_ONCE:
                    self._is_full.set()

    def sync(self, handle: Handle, at: str) -> None:
        if at == NodePoint.STAGE_SYNC and not self._is_full.wait(PATIENCE_S):
            self.waits_in_vain = True
        self._inner.sync(handle, at)

    def rename(self, source: Any, target: Any, at: str) -> None:
        self._inner.rename(source, target, at)
        if at == NodePoint.ADOPT_RENAME:
            with self._lock:
                self._storing -= 1


def put(
    node: DataNode,
    parts: Sequence[OutgoingPart],
    answer: Callable[[PartAnswer], None],
    *,
    breaks: bool = False,
) -> None:
    """Put parts; a put that breaks ends before the last slice."""
    pieces = [
        (place, piece)
        for place, one in enumerate(parts)
        for piece in slices(one.disk, one.folder, one.part)
    ]
    with PutReceiver(node, [one.part for one in parts], answer) as receiver:
        for place, piece in pieces[:-1] if breaks else pieces:
            receiver.take(place, piece)
        if breaks:
            raise ConnectionResetError
        receiver.finish()


def test_parts_are_stored_side_by_side_no_more_than_may_be_and_answered_in_order() -> None:
    parts, inner, answers = some_parts(3 * PARTS_AT_ONCE), SimulatedDisk(), list[PartAnswer]()
    disk = WaitingDisk(inner)
    with contextlib.closing(open_node(cast("Disk", disk))) as node:
        put(node, parts, answers.append)
        assert not disk.waits_in_vain
        assert disk.most == PARTS_AT_ONCE
        assert [(one.part, one.kind) for one in answers] == [(o.part.id, "ack") for o in parts]
    check_exactly_once(inner, parts, parts)


def test_a_put_that_breaks_stores_what_came_whole_and_nothing_of_the_rest() -> None:
    parts, disk, answers = some_parts(), SimulatedDisk(), list[PartAnswer]()
    with contextlib.closing(open_node(disk)) as node:
        with pytest.raises(ConnectionResetError):
            put(node, parts, answers.append, breaks=True)
        assert [one.part for one in answers] == [one.part.id for one in parts[:-1]]
        replica = node.replica(parts[0].part.id.quiver_id)
        assert not disk.list(replica.folder / "staging")
        assert [str(one.kind) for one in node.offer([parts[-1].part])] == ["need"]
    check_exactly_once(disk, parts, parts[:-1])


def test_a_sender_that_is_gone_is_told_once_and_no_thread_is_left() -> None:
    parts, disk = some_parts(2 * PARTS_AT_ONCE), SimulatedDisk()

    def answer(one: PartAnswer) -> None:
        raise OwnerGone("the sender hung up", hint="")

    with contextlib.closing(open_node(disk)) as node:
        with pytest.raises(OwnerGone):
            put(node, parts, answer)
        assert "node-part" not in [one.name for one in threading.enumerate()]
    check_exactly_once(disk, parts, [])


def test_slices_of_a_refused_part_are_passed_over_however_many_they_are() -> None:
    parts, disk, answers = some_parts()[:2], SimulatedDisk(), list[PartAnswer]()
    with contextlib.closing(open_node(disk)) as node:
        with PutReceiver(node, [one.part for one in parts], answers.append) as receiver:
            for _ in range(3 * SLICES_WAITING_MAX):
                receiver.take(0, Slice(7, 0, b"x"))
            for piece in slices(parts[1].disk, parts[1].folder, parts[1].part):
                receiver.take(1, piece)
            receiver.finish()
        assert [str(one.kind) for one in answers] == ["reject", "ack"]
    check_exactly_once(disk, parts, parts[1:])
