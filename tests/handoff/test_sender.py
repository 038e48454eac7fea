"""A sender and its data nodes, one scenario after another, each found by its number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath

import pyarrow as pa
import pytest
from tests.handoff.simulation import Network, Simulation

from holdfast.errors import OwnerGone, WrongQuiver
from holdfast.handoff.fake import FakeNode, StoredPart
from holdfast.handoff.membership import subscriber_of
from holdfast.handoff.monitor import MonitorSettings, NodeState
from holdfast.handoff.scheduler import MIB, SchedulerSettings
from holdfast.handoff.sender import HandoffSettings
from holdfast.handoff.statistics import backlog_statistics
from holdfast.handoff.syncpoint import SyncPoint
from holdfast.handoff.worker import WorkerSettings
from holdfast.quiver import Outcome, SubscriberOptions
from holdfast.quiver.segments.segment import Segment
from holdfast.replica.messages import AnswerKind, PartAnswer
from holdfast.replica.part import PartId, part_id, part_of

FAST = SchedulerSettings(slow_start_bytes_s=1e15)
SELDOM = MonitorSettings(probe_interval_s=5.0)


class Calm(Simulation):
    """A simulation in which nothing happens but what a test does."""

    def __init__(
        self, nodes: int = 2, settings: HandoffSettings | None = None, seed: int = 1
    ) -> None:
        settings = settings or HandoffSettings(scheduler=FAST)
        super().__init__(seed, nodes, replace(settings, monitor=SELDOM), Network(0, 0, 0, 0, 0))

    def seal(self, parts: int = 1, size_bytes: int = 10) -> list[PartId]:
        """Accept and seal some parts of one bundle each."""
        before = {part_id(one.summary) for one in self.quiver.segments()}
        for _ in range(parts):
            self.append(size_bytes=size_bytes)
            self.flush()
        return [p for s in self.quiver.segments() if (p := part_id(s.summary)) not in before]

    def segment(self, part: PartId) -> Segment:
        return next(one for one in self.quiver.segments() if part_id(one.summary) == part)

    def stop(self, *names: str) -> None:
        for name in names:
            self.at[name].is_up = False
        self.run(20.0)

    def has(self, name: str) -> set[PartId]:
        return set(self.at[name].history)

    def has_at(self, name: str, part: PartId) -> int:
        return [one.part.id for one in self.at[name].adopted].index(part)


@pytest.fixture
def sims() -> Iterator[list[Calm]]:
    made: list[Calm] = []
    yield made
    for sim in made:
        assert sim.problems() == []
        sim.quiver.close()


@pytest.fixture
def sim(sims: list[Calm]) -> Calm:
    sims.append(Calm())
    return sims[0]


def test_parts_go_to_all_nodes_and_their_segments_go(sim: Calm) -> None:
    parts = sim.seal(3)
    sim.run(10.0)
    assert sim.has("a") == sim.has("b") == set(parts)
    sim.tick()
    assert sim.quiver.segments() == ()
    assert sim.quiver.balance("node.a").pending.bundles == 0


def test_scenario_03_with_three_nodes_down_payload_is_stored_once_until_the_last_has_it(
    sims: list[Calm],
) -> None:
    sim = Calm(4)
    sims.append(sim)
    sim.stop("a", "b", "c")
    sim.seal(5, size_bytes=100_000)
    sim.run(30.0)
    sim.tick()
    held = sum(one.disk_bytes for one in sim.quiver.segments())
    assert len(sim.quiver.segments()) == 5
    assert sim.quiver._engine.retention.used_bytes() < held * 1.5 + 10 * MIB
    for number, name in enumerate("abc"):
        assert len(sim.quiver.segments()) == 5, number
        sim.at[name].restart()
        sim.run(100.0)
        sim.tick()
    assert sim.quiver.segments() == ()


def test_scenario_04_a_node_that_dies_after_some_parts_gets_the_others_once(sim: Calm) -> None:
    sim.stop("a")
    parts = sim.seal(6)
    sim.at["a"].restart()
    sim.network.cut_short = 1.0
    sim.run(20.0)
    sim.network.cut_short = 0.0
    sim.run(100.0)
    assert sim.has("a") == set(parts)
    assert len(sim.at["a"].history) == 6


def test_scenario_05_an_answer_that_is_lost_comes_again_as_have(sim: Calm) -> None:
    sim.run(10.0)
    (part,) = sim.seal()
    while part not in sim.has("a"):
        # Only what is answered after it has the part is lost.
        sim.run(0.001)
    sim.cut.add("a")
    sim.run(15.0)
    assert sim.waiting() == {"a": [(part.first_seq, part.last_seq)]}
    sim.cut.clear()
    sim.run(200.0)
    assert sim.waiting() == {}
    assert sim.handoff.workers["a"].counters.answers[AnswerKind.HAVE] == 1


def test_scenario_06_new_parts_and_catch_up_are_one_loop_and_nothing_is_sent_twice(
    sim: Calm,
) -> None:
    sim.stop("a")
    sim.seal(20)
    sim.at["a"].restart()
    for _ in range(20):
        sim.seal()
        sim.run(1.0)
    sim.run(60.0)
    worker = sim.handoff.workers["a"]
    assert worker.counters.sent_parts == len(sim.at["a"].history) == 40
    assert worker.counters.answers[AnswerKind.HAVE] == 0


def test_scenario_07_a_part_that_two_senders_hold_is_applied_once(sims: list[Calm]) -> None:
    one, two = Calm(1), Calm(1)
    sims.append(one)
    one.stop("a")
    (part,) = one.seal()
    # A copy of the sender, with the same segment.
    two.quiver.close()
    two.disk = one.disk.snapshot().kill()
    two.at, two.ever = one.at, one.ever
    two.start()
    one.at["a"].restart()
    for _ in range(30):
        one.run(5.0)
        two.run(5.0)
    assert one.at["a"].history == [part]
    assert two.waiting() == one.waiting() == {}
    two.quiver.close()


def test_scenario_08_defect_05_a_damaged_part_is_held_before_it_is_sent_and_others_flow(
    sim: Calm,
) -> None:
    sim.stop("a")
    parts = sim.seal(4)
    first, second = (sim.segment(part) for part in parts[:2])
    data = first.path / first.summary.files[0].name
    content = sim.disk.read(data)
    sim.disk.overwrite(data, len(content) // 2, bytes([content[len(content) // 2] ^ 1]))
    missing = second.path / second.summary.files[0].name
    sim.disk.unlink(missing, "test")
    sim.at["a"].restart()
    sim.run(100.0)
    assert sim.has("a") == set(parts[2:])
    held = sim.handoff.workers["a"].held
    assert set(held) == set(parts[:2])
    assert {one.kind for one in held.values()} == {"damaged"}
    sim.disk.overwrite(data, len(content) // 2, content[len(content) // 2 :][:1])
    sim.handoff.workers["a"].release(parts[0])
    sim.run(20.0)
    assert parts[0] in sim.has("a")
    assert sim.handoff.workers["a"].discard(parts[1])
    sim.accepted = {seq: x for seq, x in sim.accepted.items() if seq != parts[1].first_seq}


def test_scenario_09_fifty_poison_parts_at_the_head_do_not_hold_back_the_rest(sim: Calm) -> None:
    sim.stop("a")
    parts = sim.seal(55)
    for part in parts[:50]:
        sim.at["a"].lies[part] = PartAnswer(part, AnswerKind.REJECT, "a schema it does not like")
    sim.at["a"].restart()
    sim.run(100.0)
    assert sim.has("a") == set(parts[50:])
    held = sim.handoff.workers["a"].held
    assert len(held) == 50
    assert {one.reason for one in held.values()} == {"a schema it does not like"}
    sim.at["a"].lies.clear()
    assert sim.handoff.workers["a"].release() == 50
    sim.run(100.0)
    assert sim.has("a") == set(parts)


def test_scenario_10_busy_is_respected_and_expired_completes(sim: Calm) -> None:
    sim.run(10.0)
    (busy,) = sim.seal()
    node = sim.at["a"]
    node.lies[busy] = PartAnswer(busy, AnswerKind.BUSY, retry_after_s=30.0)
    sim.run(5.0)
    assert sim.handoff.monitor.state("a") is NodeState.BUSY
    offers = node.offers
    sim.run(20.0)
    assert node.offers == offers
    node.lies.clear()
    sim.run(20.0)
    assert busy in sim.has("a")
    (old,) = sim.seal()
    node.had[old.quiver_id].add(old.first_seq, old.end_seq)
    sim.run(20.0)
    assert sim.handoff.workers["a"].counters.answers[AnswerKind.EXPIRED] == 1
    sim.accepted = {seq: x for seq, x in sim.accepted.items() if seq != old.first_seq}


def test_scenario_10_what_a_busy_node_needs_all_the_same_is_sent_and_its_reason_is_told(
    sim: Calm,
) -> None:
    sim.stop("a")
    parts = sim.seal(6)
    node = sim.at["a"]
    for one in parts[1:]:
        node.lies[one] = PartAnswer(one, AnswerKind.BUSY, "too much is damaged", 1e6)
    node.restart()
    sim.run(60.0)
    assert sim.has("a") == {parts[0]}
    assert sim.handoff.monitor.state("a") is NodeState.BUSY
    (told, _) = backlog_statistics(sim.handoff, sim.clock.wall_ns())
    assert told.problem == "too much is damaged"
    offers = node.offers
    sim.run(600.0)
    assert node.offers == offers
    node.lies.clear()
    sim.clock.pass_s(1e6)
    sim.run(60.0)
    (told, _) = backlog_statistics(sim.handoff, sim.clock.wall_ns())
    assert (told.pending_parts, told.problem) == (0, None)


def test_scenario_10_a_part_that_fails_waits_alone_and_is_held_after_sixteen_times(
    sims: list[Calm],
) -> None:
    sim = Calm(1, HandoffSettings(scheduler=FAST, worker=WorkerSettings(part_pause_max_s=10.0)))
    sims.append(sim)
    sim.run(10.0)
    (part,) = sim.seal()
    sim.at["a"].lies[part] = PartAnswer(part, AnswerKind.RETRY, "a checksum")
    sim.run(20.0)
    (other,) = sim.seal()
    sim.run(20.0)
    assert other in sim.has("a")
    sim.run(16 * 10.0)
    assert sim.handoff.workers["a"].held[part].kind == "retry"
    sim.at["a"].lies.clear()
    sim.handoff.workers["a"].release(part)
    sim.run(10.0)


@pytest.mark.parametrize("kind", [AnswerKind.ACK, AnswerKind.NEED])
def test_a_node_that_answers_what_makes_no_sense_completes_nothing(
    sim: Calm, kind: AnswerKind
) -> None:
    sim.run(10.0)
    (part,) = sim.seal()
    # ACK for what was only offered, or NEED for what was sent.
    sim.at["a"].lies[part] = PartAnswer(part, kind)
    sim.run(60.0)
    assert part not in sim.has("a")
    assert sim.waiting() == {"a": [(part.first_seq, part.last_seq)]}
    sim.at["a"].lies.clear()
    sim.handoff.workers["a"].retry()
    sim.run(60.0)
    assert part in sim.has("a")


def test_scenario_11_defect_03_of_many_parts_only_the_failed_one_stays(sim: Calm) -> None:
    sim.stop("a")
    parts = sim.seal(8)
    sim.at["a"].lies[parts[3]] = PartAnswer(parts[3], AnswerKind.RETRY, "input/output error")
    sim.at["a"].restart()
    sim.run(30.0)
    assert sim.has("a") == set(parts) - {parts[3]}
    assert sim.waiting() == {"a": [(parts[3].first_seq, parts[3].last_seq)]}
    sim.at["a"].lies.clear()
    sim.run(600.0)
    assert sim.has("a") == set(parts)


def test_scenario_12_defect_04_all_slots_of_a_bundle_arrive_in_one_part(sim: Calm) -> None:
    sim.run(10.0)
    rows, index = pa.record_batch({"x": [1, 2]}), pa.record_batch({"key": ["k"]})
    sim.quiver.append({"rows": rows, "index": index})
    sim.flush()
    sim.run(10.0)
    (stored,) = sim.at["a"].adopted
    assert sum(name.endswith(("rows.arrow", "index.arrow")) for name in stored.files) == 2


def test_scenario_13_a_blackholed_node_does_not_slow_down_the_others(sim: Calm) -> None:
    sim.run(10.0)
    sim.cut.add("a")
    for _ in range(10):
        (part,) = sim.seal()
        sim.run(1.0)
        assert part in sim.has("b")
    sim.run(20.0)
    assert sim.handoff.healthy_nodes() == {"b"}
    sim.cut.clear()
    sim.run(120.0)
    assert sim.has("a") == sim.has("b")


def test_scenario_17_defect_02_nothing_is_enqueued_so_no_crash_can_lose_half_of_it(
    sim: Calm,
) -> None:
    sim.stop("a")
    sim.append(3)
    sim.crash("kill")
    sim.append(3)
    sim.flush()
    sim.crash("power")
    sim.at["a"].restart()
    sim.settle()
    assert sim.has("a") == sim.has("b") != set()


def test_scenario_20_a_lost_ledger_costs_offers_and_nothing_else(sim: Calm) -> None:
    sim.stop("b")
    parts = sim.seal(3)
    sim.run(10.0)
    for entry in sim.disk.list(PurePath("/q/ledger")):
        sim.disk.overwrite(PurePath("/q/ledger") / entry.name, 0, b"\xff" * 4096)
    sim.crash("kill")
    sim.at["b"].restart()
    sim.run(100.0)
    assert sim.has("a") == sim.has("b") == set(parts)
    assert len(sim.at["a"].history) == 3


def test_scenario_21_steps_of_the_clock_neither_stop_nor_drop_anything(sim: Calm) -> None:
    sim.stop("a")
    parts = sim.seal(2)
    for step_s in (86_400, -2 * 86_400):
        sim.clock.wall_offset_ns += step_s * 10**9
        parts += sim.seal(2)
        sim.tick()
        sim.run(10.0)
    sim.at["a"].restart()
    sim.run(100.0)
    assert sim.has("a") == set(parts)


def test_scenario_22_a_node_that_is_forgotten_while_it_is_sent_to_stays_forgotten(
    sim: Calm,
) -> None:
    sim.run(10.0)
    sim.seal()
    sim.drive()  # an offer is on its way
    sim.handoff.forget("a", "drop")
    sim.names.remove("a")
    sim.run(60.0)
    assert subscriber_of("a") not in sim.quiver.subscribers()
    assert sim.handoff.monitor.state("a") is NodeState.REMOVED
    sim.crash("kill")
    assert set(sim.handoff.workers) == {"b"}


def test_what_waits_for_a_forgotten_node_goes_to_others_if_asked_for(sims: list[Calm]) -> None:
    sim = Calm(3, HandoffSettings(replicas=1, block_seqs=1, scheduler=FAST))
    sims.append(sim)
    sim.stop("a")
    parts = sim.seal(30)
    sim.run(20.0)
    waiting = len(list(sim.handoff.workers["a"].reader.waiting()))
    assert 0 < waiting < 30
    assert sim.handoff.forget("a", "reassign") == waiting
    sim.names.remove("a")
    sim.run(60.0)
    assert sim.has("b") | sim.has("c") == set(parts)
    assert not sim.has("b") & sim.has("c")


def test_scenario_23_a_node_replaced_at_its_address_gets_nothing_until_it_is_rebound(
    sim: Calm,
) -> None:
    sim.run(10.0)
    sim.stop("a")
    fresh = sim.new_node("a")
    (part,) = sim.seal()
    sim.run(60.0)
    assert fresh.history == []
    assert "rebind" in (sim.handoff.workers["a"].refusal or "")
    sim.handoff.rebind("a")
    sim.run(60.0)
    assert fresh.history == [part]
    sim.crash("kill")
    assert sim.handoff.membership.bound["a"].node_id == fresh.node_id


@pytest.mark.parametrize("moment", ["before the offer", "before the put", "it has the part"])
def test_scenario_23_a_node_replaced_between_two_probes_settles_nothing(
    sim: Calm, moment: str
) -> None:
    sim.run(10.0)
    while sim.handoff.monitor.next_probe_s("a") < sim.clock.now_s + 3.0:
        sim.run(0.1)
    sim.run(0.5)  # no probe is on its way
    offers = sim.at["a"].offers
    (part,) = sim.seal()
    if moment == "before the put":
        while sim.at["a"].offers == offers:
            sim.run(0.001)
    fresh = sim.new_node("a")
    if moment == "it has the part":
        segment = sim.segment(part)
        offered = part_of(sim.disk, segment.path, segment.summary)
        fresh.adopt(StoredPart(offered, sim.sealed[part]))
    known = list(fresh.history)
    sim.run(1.0)
    worker = sim.handoff.workers["a"]
    assert fresh.history == known
    assert [part_id(one.summary) for one in worker.reader.waiting()] == [part]
    assert worker.held == {}
    assert worker.refusal is not None
    assert fresh.node_id in worker.refusal
    assert "rebind" in worker.refusal
    sim.run(60.0)
    assert fresh.history == known
    sim.handoff.rebind("a")
    sim.run(60.0)
    assert fresh.history == [part]
    assert not list(worker.reader.waiting())


def test_what_the_replaced_node_answers_after_a_rebind_settles_nothing(sim: Calm) -> None:
    sim.run(10.0)
    (part,) = sim.seal()
    while part not in sim.has("a"):
        sim.run(0.001)
    # Its answer is on its way.
    fresh = sim.new_node("a")
    sim.handoff.rebind("a")
    sim.run(60.0)
    assert fresh.history == [part]


def test_a_statement_of_the_replaced_node_that_comes_after_a_rebind_binds_nobody(
    sim: Calm,
) -> None:
    sim.run(10.0)
    while sim.handoff.monitor.next_probe_s("a") < sim.clock.now_s + 3.0:
        sim.run(0.1)
    sim.run(0.5)  # no probe is on its way
    sim.clock.now_s = sim.handoff.monitor.next_probe_s("a")
    call = sim.handoff.probers["a"].begin()
    assert call is not None
    statement = sim.at["a"].health("")
    fresh = sim.new_node("a")
    sim.handoff.rebind("a")
    sim.handoff.probers["a"].end(call, statement)
    assert sim.handoff.membership.bound["a"].node_id is None
    sim.run(20.0)
    assert sim.handoff.membership.bound["a"].node_id == fresh.node_id


def test_two_names_that_lead_to_one_node_are_noticed(sim: Calm) -> None:
    sim.run(10.0)
    sim.at["c"] = sim.at["a"]
    sim.ever["c"] = []
    sim.names.append("c")
    sim.handoff.configure(sim.names)
    (part,) = sim.seal()
    sim.run(30.0)
    assert sim.at["a"].history == [part]
    assert "two names" in (sim.handoff.workers["c"].refusal or "")
    sim.handoff.forget("c", "drop")
    sim.names.remove("c")


def test_scenario_25_a_node_that_left_the_configuration_is_kept_and_told(sim: Calm) -> None:
    sim.stop("a")
    (part,) = sim.seal()
    sim.names = ["b"]
    sim.crash("kill")
    assert sim.handoff.monitor.state("a") is NodeState.ORPHANED
    sim.seal(2)
    sim.run(30.0)
    sim.tick()
    assert [part_id(one.summary) for one in sim.quiver.segments()] == [part]
    sim.at["a"].restart()
    sim.names = ["a", "b"]
    sim.crash("kill")
    sim.run(60.0)
    assert sim.has("a") == {part}


def test_scenario_26_scenario_27_there_is_no_window_behind_which_a_part_is_applied_twice(
    sim: Calm,
) -> None:
    sim.run(10.0)
    (part,) = sim.seal()
    sim.run(10.0)
    node = sim.at["a"]
    node.remove(0)
    node.restart()
    sim.clock.wall_offset_ns += 400 * 86_400 * 10**9
    sim.stop("b")
    sim.quiver.replay("node.a", part.first_seq, part.first_seq + 1)
    sim.run(30.0)
    assert node.history == [part]
    assert sim.handoff.workers["a"].counters.answers[AnswerKind.EXPIRED] <= 1
    sim.at["b"].restart()
    sim.run(60.0)


def test_scenario_29_a_version_that_a_node_cannot_verify_is_held_until_it_is_upgraded(
    sim: Calm,
) -> None:
    sim.at["a"].segment_versions = (1,)
    sim.run(10.0)
    (part,) = sim.seal()
    sim.run(30.0)
    held = sim.handoff.workers["a"].held[part]
    assert (held.kind, held.reason) == ("version", "segment version 2; the node takes 1")
    sim.at["a"].segment_versions = (1, 2)
    sim.at["a"].restart()
    sim.run(60.0)
    assert part in sim.has("a")


def test_scenario_30_pause_and_resume_hold_at_once_and_across_a_restart(sim: Calm) -> None:
    sim.run(10.0)
    sim.handoff.workers["a"].reader.pause()
    (part,) = sim.seal()
    sim.run(30.0)
    sim.crash("kill")
    sim.run(30.0)
    assert part not in sim.has("a")
    sim.handoff.workers["a"].reader.resume()
    sim.run(10.0)
    assert part in sim.has("a")


def test_scenario_31_a_sender_that_stops_while_sending_goes_on_where_it_was(sim: Calm) -> None:
    sim.stop("a")
    parts = sim.seal(10)
    sim.at["a"].restart()
    sim.run(6.0)
    sim.drive()
    sim.handoff.close()
    sim.quiver.close()
    sim.start()
    sim.run(60.0)
    assert sim.has("a") == set(parts)


def test_scenario_34_a_part_without_rows_and_one_with_many_files_are_delivered(sim: Calm) -> None:
    sim.run(10.0)
    receipt = sim.quiver.heartbeat("p", 1)
    sim.accepted[receipt.seq] = b""
    sim.flush()
    receipt = sim.quiver.append(
        {f"slot{number}": pa.record_batch({f"c{number}": [number]}) for number in range(50)}
    )
    sim.accepted[receipt.seq] = b""
    sim.flush()
    sim.run(30.0)
    assert len(sim.at["a"].history) == 2
    assert sorted(len(one.files) for one in sim.at["a"].adopted) == [2, 52]


@pytest.mark.parametrize("replicas", [1, 2])
def test_scenario_35_with_all_owners_down_and_a_restart_all_is_delivered(
    sims: list[Calm], replicas: int
) -> None:
    sim = Calm(3, HandoffSettings(replicas=replicas, block_seqs=10, scheduler=FAST))
    sims.append(sim)
    sim.stop("a", "b", "c")
    parts = sim.seal(10)
    sim.crash("power")
    for name in "abc":
        sim.at[name].restart()
    sim.settle()
    assert set().union(*(sim.has(name) for name in "abc")) == set(parts)


def test_defect_01_equal_numbers_of_two_quivers_are_two_parts(sims: list[Calm]) -> None:
    one, two = Calm(1), Calm(1, seed=2)
    sims.append(one)
    two.at = one.at
    (first,), (second,) = one.seal(), two.seal()
    assert first[1:] == second[1:]
    one.run(20.0)
    two.run(20.0)
    assert set(one.at["a"].history) == {first, second}
    one.at["a"].history.remove(second)
    one.at["a"].adopted = one.at["a"].adopted[:1]
    two.quiver.close()


def test_defect_06_a_probe_that_hangs_does_not_delay_the_probe_of_another(sim: Calm) -> None:
    sim.cut.add("a")
    sim.run(1.0)
    assert sim.handoff.monitor.state("b") is NodeState.UP
    sim.cut.clear()
    sim.run(10.0)


def test_defect_07_one_call_carries_many_parts(sim: Calm) -> None:
    sim.stop("a")
    sim.seal(16)
    offers = sim.at["a"].offers
    sim.at["a"].restart()
    calls = 0
    begin = sim._begin

    def counted(name: str, task: object, call: object) -> None:
        nonlocal calls
        calls += name == "a" and type(call).__name__ == "SendParts"
        begin(name, task, call)  # type: ignore[arg-type]

    sim._begin = counted  # type: ignore[method-assign]
    sim.run(60.0)
    assert (calls, sim.at["a"].offers - offers) == (1, 16)


def test_new_parts_go_before_the_backlog_without_a_permit(sims: list[Calm]) -> None:
    slow = SchedulerSettings(slow_start_bytes_s=1.0, slow_start_end_bytes_s=1e15, parts_max=1)
    sim = Calm(1, HandoffSettings(scheduler=slow))
    sims.append(sim)
    sim.stop("a")
    sim.seal(5)
    sim.at["a"].restart()
    sim.run(30.0)
    caught_up = len(sim.has("a"))
    (part,) = sim.seal()
    sim.run(1.0)
    assert part in sim.has("a")
    assert caught_up < 5
    sim.handoff.scheduler._nodes["a"].pace.change(None)
    sim.run(60.0)


def test_what_a_node_does_not_own_is_filtered_and_told_to_it(sims: list[Calm]) -> None:
    sim = Calm(3, HandoffSettings(replicas=1, block_seqs=2, scheduler=FAST))
    sims.append(sim)
    sim.seal(20)
    sim.run(200.0)
    for name in "abc":
        node = sim.at[name]
        assert 0 < len(node.history) < 20
        (seen,) = node.seen.values()
        assert list(seen) == [(0, 20)]
        counts = sim.quiver.subscriber(subscriber_of(name)).counts
        assert sum(total.bundles for total in counts.values()) == 20


def test_a_node_that_is_away_does_not_hold_back_what_it_does_not_own(sims: list[Calm]) -> None:
    sim = Calm(2, HandoffSettings(replicas=1, block_seqs=1, scheduler=FAST))
    sims.append(sim)
    sim.stop("a")
    sim.seal(20)
    sim.run(30.0)
    sim.tick()
    assert len(sim.quiver.segments()) == 20 - len(sim.has("b"))
    sim.at["a"].restart()
    sim.run(60.0)


def test_a_node_that_is_added_gets_what_comes_from_now_on(sim: Calm) -> None:
    sim.seal(2)
    sim.run(20.0)
    sim.new_node("c")
    sim.names.append("c")
    sim.handoff.configure(sim.names)
    (part,) = sim.seal()
    sim.run(20.0)
    assert sim.has("c") == {part}


def test_a_drained_node_gets_what_waits_and_nothing_new(sim: Calm) -> None:
    sim.stop("a")
    parts = sim.seal(2)
    sim.handoff.drain("a")
    sim.seal(2)
    assert not sim.handoff.is_drained("a")
    sim.at["a"].restart()
    sim.run(60.0)
    assert sim.has("a") == set(parts)
    assert sim.handoff.is_drained("a")


def test_a_second_reader_of_a_nodes_subscriber_ends_the_worker(sim: Calm) -> None:
    sim.run(10.0)
    other = sim.quiver.part_reader("node.a")
    sim.seal()
    sim.run(10.0)
    assert sim.handoff.workers["a"].is_over
    other.close()
    sim.handoff.configure(sim.names)
    sim.run(20.0)
    assert len(sim.has("a")) == 1


def test_a_sync_point_is_reached_when_every_node_has_everything(sim: Calm) -> None:
    sim.stop("a")
    sim.append(2)  # not sealed yet
    point = SyncPoint.parse(str(sim.handoff.sync_point()))
    assert set(sim.handoff.reached(point).waiting) == {"a", "b"}
    sim.flush()
    sim.run(20.0)
    assert set(sim.handoff.reached(point).waiting) == {"a"}
    sim.at["a"].restart()
    sim.run(60.0)
    sim.append()  # after the point
    assert sim.handoff.reached(point).is_complete
    sim.settle()
    with pytest.raises(WrongQuiver):
        sim.handoff.reached(point._replace(quiver_id="another"))


def test_a_sync_point_says_what_was_lost_and_who_was_forgotten(sim: Calm) -> None:
    sim.stop("a")
    (part,) = sim.seal()
    point = sim.handoff.sync_point()
    sim.handoff.workers["a"].discard(part)
    sim.run(20.0)
    reached = sim.handoff.reached(point)
    assert reached.is_reached
    assert reached.lost == {"a": [(part.first_seq, part.last_seq + 1)]}
    sim.handoff.forget("b", "drop")
    sim.names.remove("b")
    assert sim.handoff.reached(point).forgotten == ("b",)


def test_scenario_15_a_slow_node_does_not_slow_down_fast_ones(sims: list[Calm]) -> None:
    sim = Calm(3)
    sims.append(sim)
    sim.stop("a", "b", "c")
    sim.seal(30)
    for name in "abc":
        sim.at[name].restart()
    sim.handoff.scheduler.set_rate(1.0, "a")
    sim.run(30.0)
    assert len(sim.has("b")) == len(sim.has("c")) == 30 > len(sim.has("a"))
    sim.handoff.scheduler.set_rate(None, "a")
    sim.run(60.0)


def test_a_part_that_breaks_the_connection_is_found_and_the_others_flow(sim: Calm) -> None:
    sim.stop("a")
    parts = sim.seal(8)
    poison = parts[2]
    put = FakeNode.put

    def breaking(node: FakeNode, one: object) -> PartAnswer:
        if node is sim.at["a"] and one.part.id == poison:  # type: ignore[attr-defined]
            raise OwnerGone("it broke", hint="")
        return put(node, one)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeNode, "put", breaking)
        sim.at["a"].restart()
        sim.run(600.0)
        assert sim.has("a") == set(parts) - {poison}
    sim.run(1200.0)
    assert sim.has("a") == set(parts)


def test_scenario_17_a_full_backlog_drops_what_another_owner_still_holds_and_says_exactly_what(
    sims: list[Calm],
) -> None:
    options = SubscriberOptions(max_segment_bytes=2 * MIB, on_full="drop_copied")
    sim = Calm(2, HandoffSettings(scheduler=FAST, subscriber=options))
    sims.append(sim)
    sim.stop("a")
    parts = []
    for _ in range(6):
        parts += sim.seal(1, size_bytes=500_000)
        sim.run(10.0)  # b takes it, and says so
    sim.tick()
    losses = sim.quiver.subscriber("node.a").losses
    assert losses == [(0, parts[2].first_seq, Outcome.DROPPED)]
    sim.at["a"].restart()
    sim.run(60.0)
    assert sim.has("a") == set(parts[2:])
    # What b removed since is held by nobody: it is not dropped for a.
    sim.stop("a")
    for _ in range(5):
        sim.seal(1, size_bytes=500_000)
        sim.run(10.0)
        while sim.at["b"].adopted:
            sim.at["b"].remove(0)
        sim.run(10.0)
    sim.tick()
    assert sim.quiver.subscriber("node.a").losses == losses
    assert sim.quiver.refusal() is not None
    sim.at["a"].restart()
    sim.run(60.0)


@pytest.mark.parametrize("what", ["removed", "replaced", "down"])
def test_scenario_17_what_an_owner_said_before_the_need_arose_is_no_ground_to_drop(
    sims: list[Calm], what: str
) -> None:
    options = SubscriberOptions(max_segment_bytes=2 * MIB, on_full="drop_copied")
    sim = Calm(2, HandoffSettings(scheduler=FAST, subscriber=options))
    sims.append(sim)
    sim.stop("a")
    for _ in range(4):
        sim.seal(1, size_bytes=500_000)
        sim.run(10.0)
    assert len(sim.has("b")) == 4
    # Right after its last statement b has nothing of it any more, or cannot say.
    node = sim.at["b"]
    if what == "removed":
        while node.adopted:
            node.remove(0)
    elif what == "replaced":
        sim.new_node("b")
    else:
        node.is_up = False
    (last,) = sim.seal(1, size_bytes=500_000)
    for _ in range(20):
        sim.tick()
        sim.run(0.5)
    # Only the last may go, and only if b, which is there, took it meanwhile.
    losses = sim.quiver.subscriber("node.a").losses
    assert losses == ([(last.first_seq, last.end_seq, Outcome.DROPPED)] * (what == "removed"))
    assert (sim.quiver.refusal() is None) == (what == "removed")
    node.restart()
    sim.at["b"] = node
    sim.at["a"].restart()
    sim.run(200.0)
    assert sim.quiver.refusal() is None
    assert len(sim.has("a")) == 5 - len(losses)
