"""Adoption: every part once, whatever comes again, in which order, from how many senders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.node.handing_over import (
    ROOT,
    check_exactly_once,
    hand_over,
    offered,
    open_node,
    part_folders,
    some_parts,
)
from tests.replica.parts import NOON_NS, seal_parts

from holdfast.errors import (
    BadInput,
    DirectoryLocked,
    DiskFull,
    HoldfastError,
    StorageFailed,
    UnknownPosition,
)
from holdfast.node.data_node import DataNode
from holdfast.node.points import NodePoint
from holdfast.node.replica import Incoming
from holdfast.node.settings import DataNodeSettings
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.replica.messages import AnswerKind, PartAnswer, ScrubPage
from holdfast.replica.part import Part, PartId, Slice, slices
from holdfast.replica.transport import OutgoingPart
from holdfast.seam.clock import JumpingClock
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedDisk

DAY_S = 86_400.0


def test_a_part_is_taken_once_and_stays_taken_after_a_restart() -> None:
    disk, parts = SimulatedDisk(), some_parts()
    node = open_node(disk)
    assert offered(node, parts) == ["need"] * 4
    assert [hand_over(node, one).kind for one in parts] == [AnswerKind.ACK] * 4
    assert [hand_over(node, one).kind for one in parts] == [AnswerKind.HAVE] * 4
    node.close()
    again = open_node(disk, seed=2)
    assert again.node_id == node.node_id
    assert again.boot_id != node.boot_id
    assert offered(again, parts) == ["have"] * 4
    check_exactly_once(disk, parts, parts)


def test_defect_01_equal_ranges_of_two_quivers_are_two_parts() -> None:
    """Upstream's part ids collide between shards; ours name their quiver."""
    disk = SimulatedDisk()
    node = open_node(disk)
    one, two = some_parts(1, seed=1)[0], some_parts(1, seed=2)[0]
    assert one.part.id[1:] == two.part.id[1:]
    assert {hand_over(node, one).kind, hand_over(node, two).kind} == {AnswerKind.ACK}
    assert node.statistics().parts == 2


def test_scenario_05_a_lost_answer_is_have_the_next_time() -> None:
    disk, (sent, *_) = SimulatedDisk(), some_parts()
    node = open_node(disk)
    hand_over(node, sent)  # nobody hears of it
    assert offered(node, [sent]) == ["have"]
    check_exactly_once(disk, [sent], [sent])


def test_scenario_07_of_two_senders_of_one_part_one_is_told_to_wait() -> None:
    disk, (sent, *_) = SimulatedDisk(), some_parts()
    node = open_node(disk)
    with node.receiving(sent.part) as first:
        assert isinstance(first, Incoming)
        second = hand_over(node, sent)
        assert second.kind is AnswerKind.BUSY
        assert second.retry_after_s
        assert offered(node, [sent]) == ["busy"]
        for piece in slices(sent.disk, sent.folder, sent.part):
            first.write(piece)
        assert node.commit(first).kind is AnswerKind.ACK
    assert hand_over(node, sent).kind is AnswerKind.HAVE
    check_exactly_once(disk, [sent], [sent])


def test_scenario_12_all_slots_of_a_part_come_as_one() -> None:
    disk = SimulatedDisk()
    (sent,) = seal_parts(SimulatedDisk(), PurePath("/quiver"), [4])
    node = open_node(disk)
    hand_over(node, sent)
    (segment,) = node.replica(sent.part.id.quiver_id).segments()
    assert segment.summary.slots == ("slot-0", "slot-1")
    assert len(list(segment.bundles())) == 4


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), max_size=8),
    st.tuples(st.integers(0, 30), st.integers(1, 12)),
    st.booleans(),
)
def test_ranges_are_answered_by_what_is_here_and_was(
    had: list[tuple[int, int]], asked: tuple[int, int], removed: bool
) -> None:
    """Covered: HAVE or EXPIRED; disjoint: NEED; anything else: CONFLICT, and nothing is merged."""
    node = open_node(SimulatedDisk())
    quiver_id = some_parts()[0].part.id.quiver_id
    replica = node._replica(quiver_id)
    numbers = {seq for first, size in had for seq in range(first, first + size)}
    held = replica._seen.removed if removed else replica._stored
    for first, size in had:
        held.add(first, first + size)
    wanted = set(range(asked[0], sum(asked)))
    answer = replica.answer(PartId(quiver_id, asked[0], sum(asked) - 1))
    if wanted <= numbers:
        assert answer.kind is (AnswerKind.EXPIRED if removed else AnswerKind.HAVE)
    elif wanted & numbers:
        assert answer.kind is AnswerKind.CONFLICT
        assert "not here" in answer.reason
    else:
        assert answer.kind is AnswerKind.NEED


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(st.sampled_from(["offer", "put", "restart", "remove"]), st.integers(0, 3)),
        max_size=14,
    )
)
def test_whatever_happens_a_part_is_applied_once(steps: list[tuple[str, int]]) -> None:
    disk, parts = SimulatedDisk(), some_parts()
    node = open_node(disk)
    fate: dict[int, str] = {}
    for verb, place in steps:
        sent = parts[place]
        if verb == "restart":
            node.close()
            node = open_node(disk)
        elif verb == "remove":
            stored = [one for one in node._all_parts() if one.folder.name == sent.folder.name]
            for one in stored:
                node.replica(sent.part.id.quiver_id).remove([one])
                fate[place] = "expired"
        else:
            answer = hand_over(node, sent) if verb == "put" else node.offer([sent.part])[0]
            expected = fate.get(place, "ack" if verb == "put" else "need")
            assert answer.kind == expected
            if answer.kind is AnswerKind.ACK:
                fate[place] = "have"
        check_exactly_once(disk, parts, [parts[one] for one in fate if fate[one] == "have"])


# ------------------------------------------------------------------- what is refused


def test_scenario_08_a_part_that_arrives_damaged_is_sent_again() -> None:
    disk, (sent, *_) = SimulatedDisk(), some_parts()
    node = open_node(disk)
    with node.receiving(sent.part) as incoming:
        assert isinstance(incoming, Incoming)
        for piece in slices(sent.disk, sent.folder, sent.part):
            damaged = piece.file == len(sent.part.files) - 1
            incoming.write(piece._replace(data=bytes(len(piece.data))) if damaged else piece)
        answer = node.commit(incoming)
    assert answer.kind is AnswerKind.RETRY
    assert "damaged" in answer.reason
    assert not disk.list(ROOT / "replicas" / sent.part.id.quiver_id / "staging")
    assert hand_over(node, sent).kind is AnswerKind.ACK


def take(incoming: Incoming, stream: Iterable[Slice]) -> None:
    for piece in stream:
        incoming.write(piece)
    incoming.commit()


def test_defect_05_a_part_that_ends_early_is_not_stored() -> None:
    """Upstream skips a file that cannot be read, and sends the rest as if it were whole."""
    disk, (sent, *_) = SimulatedDisk(), some_parts()
    node = open_node(disk)
    pieces = list(slices(sent.disk, sent.folder, sent.part))
    wrong = {
        "a file is missing": pieces[:-1],
        "a file is skipped": pieces[:1] + pieces[2:],
        "a slice comes twice": [pieces[0], *pieces],
        "a slice is short": [*pieces[:-1], pieces[-1]._replace(data=pieces[-1].data[:-1])],
        "a slice is long": [*pieces[:-1], pieces[-1]._replace(data=bytes(pieces[-1].data) + b"x")],
        "a file too many": [*pieces, Slice(len(sent.part.files), 0, b"x")],
    }
    for stream in wrong.values():
        with node.receiving(sent.part) as incoming:
            assert isinstance(incoming, Incoming)
            with pytest.raises(BadInput):
                take(incoming, stream)
    assert not part_folders(disk, sent.part.id.quiver_id)
    assert hand_over(node, sent).kind is AnswerKind.ACK


def test_a_sender_that_lies_about_which_part_it_is_is_refused() -> None:
    disk, (one, two, *_) = SimulatedDisk(), some_parts()
    node = open_node(disk)
    lie = Part(one.part.id, one.part.folder_name, 2, two.part.files)
    answer = hand_over(node, OutgoingPart(lie, two.disk, two.folder))
    assert answer.kind is AnswerKind.REJECT
    assert not part_folders(disk, one.part.id.quiver_id)


def test_scenario_29_a_version_that_the_node_cannot_verify_is_rejected_by_name() -> None:
    (sent, *_) = some_parts()
    newer = Part(sent.part.id, sent.part.folder_name, 99, sent.part.files)
    answer = open_node(SimulatedDisk()).offer([newer])[0]
    assert answer.kind is AnswerKind.REJECT
    assert "99" in answer.reason


def test_scenario_18_a_disk_that_is_nearly_full_makes_senders_wait() -> None:
    disk, (sent, *_) = SimulatedDisk(capacity_bytes=1 << 22), some_parts()
    node = open_node(disk, DataNodeSettings(min_free=1 << 23))
    (answer,) = node.offer([sent.part])
    assert answer.kind is AnswerKind.BUSY
    assert answer.retry_after_s
    assert hand_over(node, sent).kind is AnswerKind.BUSY
    health = node.health()
    assert not health.is_writable
    assert "min_free" in health.reason
    assert not disk.list(ROOT / "replicas"), "nothing was written for it"


def test_scenario_32_two_processes_on_one_directory_are_refused() -> None:
    disk = SimulatedDisk()
    open_node(disk)
    with pytest.raises(DirectoryLocked, match="served by"):
        open_node(disk)


# -------------------------------------------------------------- retention and `seen`


def test_scenario_10_what_retention_took_is_expired_and_never_applied_again() -> None:
    disk, parts, clock = SimulatedDisk(), some_parts(), JumpingClock(NOON_NS)
    node = open_node(disk, DataNodeSettings(min_free=0, max_size=1))
    for one in parts:
        hand_over(node, one)
    assert node.sweep() == 4
    node.close()
    node = open_node(disk, clock=clock)
    assert offered(node, parts) == ["expired"] * 4
    assert hand_over(node, parts[0]).kind is AnswerKind.EXPIRED
    assert not part_folders(disk, parts[0].part.id.quiver_id)


def test_retention_by_bytes_takes_the_oldest() -> None:
    disk, parts = SimulatedDisk(), some_parts()
    most = sum(one.part.size_bytes for one in parts[2:])
    node = open_node(disk, DataNodeSettings(min_free=0, max_size=most))
    for one in parts:
        hand_over(node, one)
    assert node.sweep() == 2
    assert offered(node, parts) == ["expired", "expired", "have", "have"]
    assert node.sweep() == 0


def test_retention_is_off_unless_it_is_set() -> None:
    disk, parts, clock = SimulatedDisk(), some_parts(), JumpingClock(NOON_NS)
    node = open_node(disk, clock=clock)
    for one in parts:
        hand_over(node, one)
    clock.jump(1000 * DAY_S)
    assert node.sweep() == 0


def test_scenario_21_a_clock_that_steps_expires_nothing() -> None:
    disk, parts, clock = SimulatedDisk(), some_parts(), JumpingClock(NOON_NS)
    keeps = DataNodeSettings(min_free=0, max_age=3600.0)
    node = open_node(disk, keeps, clock)
    for one in parts:
        hand_over(node, one)
    for step_s in (DAY_S, -2 * DAY_S):
        clock.jump(step_s)
        assert node.sweep() == 0
    node.close()
    later = JumpingClock(NOON_NS + int(DAY_S * 1e9))
    assert open_node(disk, keeps, later).sweep() == 0, "not before `clock_grace`"


def test_age_is_believed_where_the_clock_is() -> None:
    disk, parts = SimulatedDisk(), some_parts()
    node = open_node(disk)
    for one in parts:
        hand_over(node, one)
    node.close()
    keeps = DataNodeSettings(min_free=0, max_age=60.0)
    assert open_node(disk, keeps, JumpingClock(NOON_NS + int(1800e9))).sweep() == 4


def test_a_lost_seen_file_is_made_anew_and_reported() -> None:
    disk, parts = SimulatedDisk(), some_parts()
    node = open_node(disk)
    for one in parts:
        hand_over(node, one)
    replica = node.replica(parts[0].part.id.quiver_id)
    replica.remove(replica.parts()[:1])
    assert offered(node, parts) == ["expired", "have", "have", "have"]
    node.close()
    disk.unlink(replica.folder / "seen", "test")
    node = open_node(disk)
    assert "`seen` was lost" in node.findings()[0]
    assert offered(node, parts) == ["need", "have", "have", "have"]
    node.close()
    assert open_node(disk).findings() == []


def test_a_damaged_copy_of_seen_costs_nothing() -> None:
    disk, parts = SimulatedDisk(), some_parts()
    node = open_node(disk)
    for one in parts:
        hand_over(node, one)
    replica = node.replica(parts[0].part.id.quiver_id)
    replica.remove(replica.parts()[:1])
    node.close()
    disk.overwrite(replica.folder / "seen", 3, b"\xff")
    node = open_node(disk)
    assert node.findings() == []
    assert offered(node, parts) == ["expired", "have", "have", "have"]


def test_scenario_23_a_lost_identity_is_another_node() -> None:
    disk = SimulatedDisk()
    node = open_node(disk)
    node.close()
    disk.put(ROOT / "NODE", b"garbage")
    assert open_node(disk, seed=5).node_id != node.node_id


def test_what_is_not_owned_closes_the_intervals_and_is_taken_if_owners_change() -> None:
    disk, parts = SimulatedDisk(), some_parts()
    node = open_node(disk)
    one, two, three, four = (sent.part.id for sent in parts)
    hand_over(node, parts[0])
    hand_over(node, parts[2])
    node.tell_not_owned(one.quiver_id, IntervalSet([(one.end_seq, three.first_seq)]))
    node.tell_not_owned(one.quiver_id, IntervalSet([(three.end_seq, four.end_seq)]))
    (holding,) = node.health().holdings
    assert list(holding.seen) == [(one.first_seq, four.end_seq)]
    assert len(holding.stored) == 2
    node.close()
    node = open_node(disk)
    assert list(node.health().holdings[0].seen) == [(one.first_seq, four.end_seq)]
    assert hand_over(node, parts[1]).kind is AnswerKind.ACK
    # Of one across the border of two blocks half may have been told.
    node.tell_not_owned(one.quiver_id, IntervalSet([(four.first_seq, four.first_seq + 1)]))
    assert hand_over(node, parts[3]).kind is AnswerKind.ACK
    assert node.health().holdings[0].stored.covers(one.first_seq, four.end_seq)
    assert two.first_seq >= one.end_seq


@pytest.mark.parametrize(
    ("kind", "error"), [(FaultKind.ENOSPC, DiskFull), (FaultKind.EIO, StorageFailed)]
)
def test_a_disk_that_fails_when_ranges_are_told_is_an_error_with_words(
    kind: FaultKind, error: type[HoldfastError]
) -> None:
    disk, (sent, *_) = SimulatedDisk(), some_parts()
    node = open_node(FaultyDisk(disk, [Fault(NodePoint.SEEN_CREATE, kind, nth=2)], disk.die))
    hand_over(node, sent)
    with pytest.raises(error, match="disk failed"):
        node.tell_not_owned(sent.part.id.quiver_id, IntervalSet([(50, 60)]))
    node.tell_not_owned(sent.part.id.quiver_id, IntervalSet([(50, 60)]))
    assert node.health().holdings[0].seen.covers(50, 60)


# ------------------------------------------------------------------ health, fetch, scrub


def test_health_says_who_it_is_and_what_it_has() -> None:
    disk, parts = SimulatedDisk(), some_parts()
    node = open_node(disk)
    before = node.health()
    hand_over(node, parts[0])
    after = node.health()
    assert (after.node_id, after.boot_id) == (node.node_id, node.boot_id)
    assert after.is_writable
    assert before.digest != after.digest
    assert node.health(known_digest=after.digest).holdings == ()
    assert list(after.holdings[0].stored) == [
        (parts[0].part.id.first_seq, parts[0].part.id.end_seq)
    ]


def hand_on(source: DataNode, target: DataNode, part_id: PartId) -> PartAnswer:
    """Fetch a part from one node, and put it to another."""
    part, pieces = source.fetch(part_id)
    with target.receiving(part) as incoming:
        if isinstance(incoming, PartAnswer):
            return incoming
        for piece in pieces:
            incoming.write(piece)
        return target.commit(incoming)


def test_scenario_08_scrub_finds_damage_and_a_sound_copy_replaces_it() -> None:
    disk, other, parts = SimulatedDisk(), SimulatedDisk(), some_parts()
    node, neighbour = open_node(disk), open_node(other)
    for one in parts:
        hand_over(node, one)
        hand_over(neighbour, one)
    assert node.scrub() == ScrubPage(4, sum(one.part.size_bytes for one in parts), ())
    folder = node._all_parts()[1].folder
    disk.overwrite(folder / parts[1].part.files[-1].name, 700, b"\x00\xff\x01")
    (found,) = node.scrub().damaged
    aside = folder.parents[1] / "quarantine" / f"{folder.name}.0"
    assert (found.part, found.folder) == (parts[1].part.id, str(aside))
    assert not disk.exists(folder)
    assert {entry.name for entry in disk.list(aside)} == {f.name for f in parts[1].part.files}
    assert offered(node, parts) == ["have", "need", "have", "have"]
    assert node.statistics().damaged == 1
    with pytest.raises(UnknownPosition):
        node.fetch(parts[1].part.id)
    node.close()
    node = open_node(disk)  # it is known there, too
    assert offered(node, parts) == ["have", "need", "have", "have"]
    assert node.statistics().damaged == 1
    assert hand_on(neighbour, node, parts[1].part.id).kind is AnswerKind.ACK
    assert node.scrub().damaged == ()
    check_exactly_once(disk, parts, parts)
    assert node.statistics().damaged == 0
    assert not disk.list(aside.parent), "a sound copy came in its place"


@pytest.mark.parametrize("bound", ["quarantine_max_parts", "quarantine_max_size"])
def test_a_node_takes_nothing_new_while_too_much_is_damaged_but_sound_copies_of_that(
    bound: str,
) -> None:
    disk, parts = SimulatedDisk(), some_parts()
    node = open_node(disk, DataNodeSettings.model_validate({"min_free": 0, bound: 1}))
    for one in parts[:3]:
        hand_over(node, one)
    replica = node._all_parts()[0].folder.parents[1]
    for stored, one in zip(node._all_parts()[:2], parts, strict=False):
        disk.overwrite(stored.folder / one.part.files[-1].name, 700, b"\x00\xff\x01")
    assert node.refusal() == ""
    assert len(node.scrub().damaged) == 2
    told = node.statistics()
    assert (told.damaged, told.is_writable) == (2, False)
    assert told.damaged_bytes >= sum(one.part.size_bytes for one in parts[:2])
    assert bound in node.refusal()
    assert node.health().is_writable  # or nobody would offer what it lacks
    assert offered(node, parts) == ["need", "need", "have", "busy"]
    assert hand_over(node, parts[3]).kind is AnswerKind.BUSY
    assert hand_over(node, parts[0]).kind is AnswerKind.ACK
    # What is left may be looked at, and taken away by hand: nothing else removes it.
    (aside,) = disk.list(replica / "quarantine")
    assert (bound in node.refusal()) == (bound == "quarantine_max_size")
    disk.rename(replica / "quarantine" / aside.name, replica / "away", "test")
    node.sweep()
    assert (node.statistics().damaged, node.statistics().damaged_bytes) == (0, 0)
    assert offered(node, parts) == ["have", "need", "have", "need"]


def test_scrub_finds_a_part_that_somebody_removed_behind_the_nodes_back() -> None:
    disk, parts = SimulatedDisk(), some_parts()
    node = open_node(disk)
    for one in parts:
        hand_over(node, one)
    folder = node._all_parts()[1].folder
    disk.rename(folder, folder.parents[1] / "away", "test")
    assert offered(node, parts) == ["have"] * 4  # nobody looked yet
    (found,) = node.scrub().damaged
    assert (found.part, found.reason) == (parts[1].part.id, "its folder is gone")
    assert offered(node, parts) == ["have", "need", "have", "have"]
    node.sweep()
    assert (node.statistics().damaged, node.scrub().damaged) == (1, ())
    assert hand_over(node, parts[1]).kind is AnswerKind.ACK
    assert node.statistics().damaged == 0


def test_a_node_whose_directory_is_gone_says_so_and_vouches_for_nothing() -> None:
    disk, parts = SimulatedDisk(), some_parts()
    node = open_node(disk)
    hand_over(node, parts[0])
    away = ROOT.parent / "away"
    disk.rename(ROOT, away, "test")
    with pytest.raises(StorageFailed, match="moved, unmounted or deleted"):
        node.health()
    assert offered(node, parts) == ["busy"] * 4
    assert hand_over(node, parts[1]).kind is AnswerKind.BUSY
    assert "gone" in node.refusal()
    assert not node.statistics().is_writable
    disk.rename(away, ROOT, "test")
    assert node.health().is_writable
    assert hand_over(node, parts[1]).kind is AnswerKind.ACK


def test_a_scrub_goes_on_behind_what_it_read() -> None:
    disk, parts = SimulatedDisk(), some_parts()
    others = some_parts(seed=5)
    node = open_node(disk)
    for one in (*parts, *others):
        hand_over(node, one)
    pages = [node.scrub(budget_s=0.0)]
    while pages[-1].after is not None:
        pages.append(node.scrub(pages[-1].after, budget_s=0.0))
    assert [page.parts for page in pages] == [1] * 8
    assert [page.after for page in pages[:-1]] == sorted(one.part.id for one in (*parts, *others))[
        :-1
    ]
    assert node.statistics().scrubs_total == 1


@pytest.mark.parametrize("point", [NodePoint.SCRUB_SET_ASIDE, NodePoint.SCRUB_SYNC_DIR])
def test_damage_that_cannot_be_set_aside_is_not_served_and_replaced_all_the_same(
    point: NodePoint,
) -> None:
    disk, parts = SimulatedDisk(), some_parts()
    node = open_node(FaultyDisk(disk, [Fault(point, FaultKind.EIO)], disk.die))
    for one in parts:
        hand_over(node, one)
    disk.overwrite(node._all_parts()[1].folder / parts[1].part.files[-1].name, 700, b"\xff\x01")
    assert len(node.scrub().damaged) == 1
    assert offered(node, parts) == ["have", "need", "have", "have"]
    assert hand_over(node, parts[1]).kind is AnswerKind.ACK
    assert node.scrub().damaged == ()
    check_exactly_once(disk, parts, parts)
    assert node.statistics().damaged == 0


@pytest.mark.parametrize("is_scrubbed", [False, True])
def test_a_part_whose_manifest_is_damaged_is_not_served_and_comes_again(is_scrubbed: bool) -> None:
    disk, parts = SimulatedDisk(), some_parts()
    node = open_node(disk)
    for one in parts:
        hand_over(node, one)
    folder = node._all_parts()[0].folder
    node.close()
    disk.put(folder / "manifest", b"garbage")
    node = open_node(disk)
    assert "not served" in node.findings()[0]
    assert node.statistics().damaged == 1
    assert offered(node, parts) == ["need", "have", "have", "have"]
    if is_scrubbed:
        (found,) = node.scrub().damaged
        assert found.part == parts[0].part.id
        assert not disk.exists(folder)
    assert hand_over(node, parts[0]).kind is AnswerKind.ACK
    check_exactly_once(disk, parts, parts)


def test_a_part_of_which_a_file_is_gone_does_not_keep_the_others_from_being_served() -> None:
    disk, parts = SimulatedDisk(), some_parts()
    node = open_node(disk)
    for one in parts:
        hand_over(node, one)
    folder = node._all_parts()[0].folder
    node.close()
    disk.unlink(folder / "bundles.arrow", "test")
    node = open_node(disk)
    assert "not served" in node.findings()[0]
    assert offered(node, parts) == ["need", "have", "have", "have"]
    assert hand_over(node, parts[0]).kind is AnswerKind.ACK
    check_exactly_once(disk, parts, parts)


def test_fetch_gives_what_is_here_and_refuses_the_rest() -> None:
    disk, parts = SimulatedDisk(), some_parts()
    node = open_node(disk)
    hand_over(node, parts[0])
    fetched = node.fetch(parts[0].part.id)
    assert fetched.part == parts[0].part
    with pytest.raises(UnknownPosition):
        node.fetch(parts[1].part.id)
    with pytest.raises(BadInput):
        node.fetch(PartId("0f0e0d0c-0b0a-4908-8706-050403020100", 0, 1))
