"""The loop: everything accepted goes out, or has another outcome in the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.deliver.backend import (
    BAD,
    DOWN,
    Backend,
    fails,
    fails_for,
    hangs,
    raises,
)
from tests.deliver.stage import NAME, Stage
from tests.deliver.tuned import tuned_settings
from tests.deliver.virtual import really
from tests.quiver.machine import START_NS
from tests.readers.setting import keep

from holdfast.deliver.destination import DeliverySettings, Destination, State
from holdfast.deliver.exporter import Answer, FailureClass
from holdfast.deliver.sending import LoopTimer
from holdfast.errors import BadConfig, BadInput
from holdfast.quiver import Outcome, Position
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.faulty import FaultKind
from holdfast.signals.event import Event


def settings(**values: object) -> DeliverySettings:
    return tuned_settings(**{"retention_size": None, **values})


# ------------------------------------------------------------------------- the plain way


def test_events_go_out_in_order_and_are_acknowledged(stage: Stage) -> None:
    stage.append_each(b"a", b"b", b"c")
    stage.append(b"d", b"e")
    stage.deliver_all()
    assert stage.backend.taken == [b"a", b"b", b"c", b"d", b"e"]
    assert stage.outcomes() == {Outcome.ACKED: (4, 5)}
    assert stage.backend.started
    assert stage.backend.closed


def test_an_idle_destination_sends_what_arrives_without_any_time_passing(stage: Stage) -> None:
    async def play(destination: Destination) -> None:
        await stage.timer.quiet()
        before_s = stage.timer.now_s()
        # In a thread: the answer to an append comes before anybody hears of its arrival.
        await asyncio.to_thread(stage.append, b"a")
        await really(lambda: stage.backend.taken == [b"a"])
        await asyncio.to_thread(stage.append, b"b")
        await really(lambda: stage.backend.taken == [b"a", b"b"])
        assert stage.timer.now_s() == before_s

    stage.run(play)


def test_batches_are_filled_up_to_both_bounds(stage: Stage) -> None:
    stage.backend.max_batch_events, stage.backend.max_batch_bytes = 3, 100
    stage.append_each(b"a", b"b", b"c", b"d", b"x" * 60, b"y" * 60, b"z" * 200, b"e")
    stage.deliver_all()
    assert stage.backend.sends == [
        [b"a", b"b", b"c"],
        [b"d", b"x" * 60],
        [b"y" * 60],
        [b"z" * 200],
        [b"e"],
    ]


def test_a_restart_goes_on_where_the_last_process_stopped(stage: Stage) -> None:
    stage.append(b"a", b"b")
    stage.deliver_all()
    stage.kill()
    stage.append(b"c")
    stage.deliver_all()
    assert stage.backend.taken == [b"a", b"b", b"c"]


def test_heartbeats_are_resolved_though_there_is_nothing_to_send(stage: Stage) -> None:
    stage.append(b"a")
    stage.quiver.heartbeat("producer", START_NS)

    async def play(destination: Destination) -> None:
        await stage.timer.until(lambda: not stage.quiver.balance(NAME).pending.bundles)

    stage.run(play)
    assert stage.outcomes() == {Outcome.ACKED: (2, 1)}


def test_reading_ahead_is_bounded(stage: Stage) -> None:
    stage.append_each(*(b"%d" % number for number in range(50)))
    stage.backend.otherwise = hangs()

    async def play(destination: Destination) -> None:
        await stage.timer.quiet()
        delivery = destination._delivery
        assert delivery is not None
        assert delivery.window.pending_events == 7

    stage.run(play, settings(window_events=7))


def test_reading_ahead_is_bounded_in_bytes(stage: Stage) -> None:
    stage.append_each(*(b"x" * 1000 for _ in range(50)))
    stage.backend.otherwise = hangs()

    async def play(destination: Destination) -> None:
        await stage.timer.quiet()
        delivery = destination._delivery
        assert delivery is not None
        assert delivery.window.pending_events == 4

    stage.run(play, settings(read_ahead_size=4500))


# ------------------------------------------------------------------------ processors


def test_filtered_events_have_that_outcome_and_are_not_sent(stage: Stage) -> None:
    stage.paths = [lambda event: None if event.payload.startswith(b"no") else event]
    stage.append(b"no 1", b"yes 1", b"no 2")
    stage.append_each(b"no 3", b"yes 2")
    stage.deliver_all()
    assert stage.backend.taken == [b"yes 1", b"yes 2"]
    assert {outcome: counts.events for outcome, counts in stage.outcomes().items()} == {
        Outcome.ACKED: 2,
        Outcome.FILTERED: 3,
    }
    assert stage.statistics().filtered == 3


def test_very_many_filtered_events_in_a_row(stage: Stage) -> None:
    stage.paths = [lambda event: None if event.payload != b"last" else event]
    for _ in range(5):
        stage.append(*(b"%d" % number for number in range(100)))
    stage.append(b"last")
    stage.deliver_all()
    assert stage.backend.taken == [b"last"]
    assert stage.events(Outcome.FILTERED) == 500


def test_an_event_goes_by_the_first_path_that_lets_it_through_and_once(stage: Stage) -> None:
    def upper(event: Event) -> Event | None:
        return event.with_document("A") if event.payload == b'"a"' else None

    stage.paths = [upper, lambda event: event]
    stage.append_each(b'"a"', b'"b"')
    stage.deliver_all()
    assert stage.backend.taken == [b'"A"', b'"b"']


def test_an_event_that_a_processor_cannot_take_is_set_aside_and_blocks_nobody(
    stage: Stage,
) -> None:
    def fragile(event: Event) -> Event | None:
        if event.payload == b"b":
            raise KeyError("the payload's own text")
        return event

    stage.paths = [fragile]
    stage.append_each(b"a", b"b", b"c")
    stage.deliver_all()
    assert stage.backend.taken == [b"a", b"c"]
    (letter,) = stage.letters.stored
    assert (letter.payload, letter.reason, letter.attempts) == (b"b", "processor", 0)
    assert letter.problems == ({"rule": "KeyError", "message": "a processor raised KeyError"},)
    assert stage.events(Outcome.DEAD_LETTERED) == 1


def test_a_letter_holds_the_event_as_it_was_accepted(stage: Stage) -> None:
    stage.paths = [lambda event: event.with_document("rewritten")]
    stage.backend.script = [fails(BAD)]
    seq = stage.append(b'"original"', b'"second"')
    stage.deliver_all()
    (letter,) = stage.letters.stored
    assert letter.payload == b'"original"'
    assert letter.position == f"{stage.quiver.quiver_id}/{seq}/0"
    assert (letter.destination, letter.attempts) == (NAME, 1)


# --------------------------------------------------------------------- bad exporters


def test_an_exporter_that_hangs_is_cut_off_and_tried_again(stage: Stage) -> None:
    stage.append_each(b"a", b"b")
    stage.backend.script = [hangs(), hangs(taken=True)]
    stage.deliver_all(settings(send_timeout_s=20.0))
    assert stage.backend.taken == [b"a", b"a", b"b"]
    assert stage.statistics().failed == {"transient": 2}
    assert "send_timeout_s" in str(stage.statistics().last_error)


def test_an_exporter_that_raises_is_tried_again_and_its_words_are_not_repeated(
    stage: Stage,
) -> None:
    stage.append_each(b"a", b"b")
    stage.backend.script = [raises(), raises()]
    stage.deliver_all()
    assert stage.backend.taken == [b"a", b"b"]
    assert "RuntimeError" in str(stage.statistics().last_error)
    assert "secret" not in str(stage.statistics().last_error)


@pytest.mark.parametrize("nonsense", [Answer({5: DOWN}), Answer({-1: DOWN}), None, "ok"])
def test_an_answer_that_makes_no_sense_counts_as_a_failure(stage: Stage, nonsense: object) -> None:
    stage.append_each(b"a", b"b")
    stage.backend.script = [lambda backend, events: nonsense]  # type: ignore[list-item,return-value]
    stage.deliver_all()
    assert stage.backend.taken == [b"a", b"b"]
    assert stage.statistics().failed == {"transient": 1}


class Deaf(Backend):
    """Does not end when it is cancelled, until it is let go."""

    async def send(self, events: Sequence[Event]) -> Answer:
        if len(self.sends) == 1:
            self.sends.append([])
            self.let_go = asyncio.Event()
            while not self.let_go.is_set():
                try:
                    await self.let_go.wait()
                except asyncio.CancelledError:
                    continue
            self.sends.append([b"ended"])
            return Answer()
        return await super().send(events)


def test_a_send_that_does_not_heed_its_end_is_waited_for_and_never_doubled(stage: Stage) -> None:
    stage.append_each(b"a", b"b", b"c")
    deaf = Deaf()

    async def play(destination: Destination) -> None:
        await stage.timer.until(lambda: "has not ended" in str(stage.statistics().last_error))
        assert deaf.sends == [[b"a"], []]
        assert stage.statistics().state is State.BACKING_OFF
        deaf.let_go.set()
        await stage.timer.until(lambda: stage.pending() == 0)
        assert deaf.sends[2] == [b"ended"]
        assert deaf.taken == [b"a", b"b", b"c"]

    stage.run(play, exporter=deaf)


def test_an_exporter_that_does_not_start_is_started_again(stage: Stage) -> None:
    class Shy(Backend):
        tries = 0

        async def start(self) -> None:
            self.tries += 1
            if self.tries < 3:
                raise OSError("no")

    stage.append(b"a")
    shy = Shy()
    stage.deliver_all(exporter=shy)
    assert shy.taken == [b"a"]
    assert shy.tries == 3


def test_why_an_exporter_does_not_start_is_told_whole(stage: Stage) -> None:
    class Wrong(Backend):
        async def start(self) -> None:
            raise BadConfig("there is no setting `not.a.setting`", hint="see CONFIGURATION.md")

    async def play(destination: Destination) -> None:
        await stage.timer.until(lambda: stage.statistics().last_error is not None)
        told = stage.statistics().last_error
        assert told is not None
        assert "there is no setting `not.a.setting`" in told
        assert "see CONFIGURATION.md" in told

    stage.run(play, exporter=Wrong())


# --------------------------------------------------------------------- bad surroundings


def test_a_destination_stalls_while_the_dead_letters_do_not_take_a_letter(stage: Stage) -> None:
    stage.append_each(b"bad", b"b", b"c")
    stage.backend.otherwise = fails_for({b"bad": BAD})
    stage.letters.refusals = 1_000_000

    async def play(destination: Destination) -> None:
        await stage.timer.until(lambda: stage.statistics().state is State.STALLED)
        await stage.timer.pass_s(3600.0)
        assert "the dead letters do not take it" in str(stage.statistics().stalled_by)
        assert stage.backend.sends == [[b"bad"]]
        assert stage.pending() == 3
        stage.letters.refusals = 0
        await stage.timer.until(lambda: stage.pending() == 0)
        assert stage.statistics().stalled_by is None

    stage.run(play)
    assert stage.letters.payloads == [b"bad"]
    assert stage.backend.taken == [b"b", b"c"]


def test_after_a_stop_in_a_stall_order_is_kept_by_sending_again(stage: Stage) -> None:
    stage.append_each(b"bad", b"b")
    stage.backend.otherwise = fails_for({b"bad": BAD})
    stage.letters.refusals = 1_000_000

    async def play(destination: Destination) -> None:
        await stage.timer.until(lambda: stage.statistics().state is State.STALLED)

    stage.run(play)
    assert stage.pending() == 2, "nothing overtakes bad before it has its letter"
    stage.backend.otherwise = fails_for({})
    stage.deliver_all()
    assert stage.backend.taken == [b"bad", b"b"]


def test_a_ledger_that_cannot_be_written_stalls_the_destination_and_loses_nothing(
    stage: Stage,
) -> None:
    stage.append_each(b"a", b"b")

    def reached(point: str) -> None:
        if point == "deliver-sent" and len(stage.backend.sends) == 1:
            assert stage.disk is not None
            stage.disk.arm(QuiverPoint.LEDGER_WRITE, FaultKind.ENOSPC, 1, 3)

    stage.reached = reached

    async def play(destination: Destination) -> None:
        await stage.timer.until(lambda: stage.statistics().state is State.STALLED)
        assert stage.backend.sends == [[b"a"]]
        assert "the ledger cannot be written" in str(stage.statistics().stalled_by)
        await stage.timer.until(lambda: stage.pending() == 0)

    stage.run(play)
    assert stage.backend.taken == [b"a", b"b"]


def test_a_reader_in_its_place_stalls_a_destination_until_it_is_resumed(stage: Stage) -> None:
    stage.append(b"a")

    async def play(destination: Destination) -> None:
        await stage.timer.until(lambda: stage.pending() == 0)
        other = stage.quiver.cursor(NAME)
        await asyncio.to_thread(stage.append, b"b")
        await stage.timer.until(lambda: stage.statistics().state is State.STALLED)
        assert "replaced" in str(stage.statistics().stalled_by)
        other.close()
        destination.resume()
        await stage.timer.until(lambda: stage.pending() == 0)

    stage.run(play)
    assert stage.backend.taken == [b"a", b"b"]


# ------------------------------------------------------------------- stopping and pausing


def test_a_stop_waits_for_what_is_under_way_and_leaves_the_rest(stage: Stage) -> None:
    stage.append_each(b"a", b"b")
    go_on = asyncio.Event()

    class Slow(Backend):
        async def send(self, events: Sequence[Event]) -> Answer:
            await go_on.wait()
            return await super().send(events)

    slow = Slow()

    async def main() -> None:
        destination = stage.make(exporter=slow)
        task = asyncio.ensure_future(destination.run())
        await stage.timer.quiet()
        stopping = asyncio.ensure_future(destination.stop(10.0))
        await stage.timer.quiet()
        assert not stopping.done()
        go_on.set()
        await stopping
        await task

    asyncio.run(main())
    assert slow.taken == [b"a"]
    assert slow.closed
    assert stage.pending() == 1
    stage.check()


def test_a_stop_cuts_off_what_takes_too_long(stage: Stage) -> None:
    stage.append_each(b"a", b"b")
    stage.backend.otherwise = hangs()

    async def main() -> None:
        destination = stage.make(settings(send_timeout_s=1000.0))
        task = asyncio.ensure_future(destination.run())
        await stage.timer.quiet()
        stopping = asyncio.ensure_future(destination.stop(10.0))
        await stage.timer.pass_s(9.0)
        assert not stopping.done()
        await stage.timer.pass_s(2.0)
        await stopping
        await task

    asyncio.run(main())
    assert stage.backend.in_send == 0, "the send was cancelled"
    assert stage.pending() == 2


def test_a_destination_that_never_ran_is_stopped_too(stage: Stage) -> None:
    async def main() -> None:
        destination = stage.make()
        await destination.stop(1.0)
        await destination.run()
        assert destination.statistics().state is State.STOPPED

    asyncio.run(main())


def test_a_cancelled_run_lets_go_of_everything(stage: Stage) -> None:
    stage.append(b"a")
    stage.backend.otherwise = hangs()

    async def main() -> None:
        task = asyncio.ensure_future(stage.make().run())
        await stage.timer.quiet()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert stage.backend.closed
    assert stage.pending() == 1


def test_a_pause_survives_a_restart(stage: Stage) -> None:
    stage.append_each(b"a")

    async def pause(destination: Destination) -> None:
        await stage.timer.until(lambda: stage.pending() == 0)
        destination.pause()
        await asyncio.to_thread(stage.append, b"b")
        await stage.timer.pass_s(3600.0)
        assert stage.statistics().state is State.PAUSED

    async def resume(destination: Destination) -> None:
        await stage.timer.pass_s(3600.0)
        assert stage.statistics().state is State.PAUSED
        assert stage.backend.taken == [b"a"]
        destination.resume()
        await stage.timer.until(lambda: stage.pending() == 0)

    stage.run(pause)
    stage.kill()
    stage.run(resume)
    assert stage.backend.taken == [b"a", b"b"]


def test_a_pause_stops_what_was_read_already(stage: Stage) -> None:
    stage.append_each(b"a", b"b", b"c")

    def reached(point: str) -> None:
        if point == "deliver-sent" and stage.destination is not None:
            stage.destination.pause()

    stage.reached = reached

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(3600.0)
        assert stage.backend.taken == [b"a"]
        destination.resume()
        await stage.timer.pass_s(3600.0)
        assert stage.backend.taken == [b"a", b"b"]

    stage.run(play)


# ---------------------------------------------------------------------------- redrive


def test_a_redriven_event_goes_through_the_processors_once_and_leaves_no_trace(
    stage: Stage,
) -> None:
    def careful(event: Event) -> Event | None:
        if event.payload == b'"odd"':
            raise ValueError
        return event.with_document("redacted") if event.payload == b'"secret"' else None

    stage.paths = [careful]
    payloads = [b'"secret"', b'"other"', b'"odd"']
    events = [Event("q", Position(0), "events", payload, {}, 0) for payload in payloads]

    async def play(destination: Destination) -> None:
        await stage.timer.quiet()
        answer = await destination.redrive(events)
        assert {i: (f.kind, f.code) for i, f in answer.failed.items()} == {
            1: (FailureClass.PERMANENT, "filtered"),
            2: (FailureClass.PERMANENT, "processor"),
        }
        stage.backend.script = [fails(DOWN)]
        assert (await destination.redrive(events[:1])).failed == {0: DOWN}

    stage.run(play)
    assert stage.backend.taken == [b'"redacted"']
    with pytest.raises(BadInput, match="is not running"):
        asyncio.run(stage.make().redrive(events))


def test_a_redriven_event_does_not_wait_for_ever_for_a_destination_that_is_stuck(
    stage: Stage,
) -> None:
    stage.append_each(b"bad", b"b")
    stage.backend.otherwise = fails_for({b"bad": BAD})
    stage.letters.refusals = 1_000_000
    event = Event("q", Position(0), "events", b"c", {}, 0)

    async def play(destination: Destination) -> None:
        await stage.timer.until(lambda: stage.statistics().state is State.STALLED)
        redriving = asyncio.ensure_future(destination.redrive([event]))
        await stage.timer.pass_s(31.0)
        assert (await redriving).failed[0].code == "busy"
        stage.letters.refusals = 0
        await stage.timer.until(lambda: stage.pending() == 0)
        assert (await destination.redrive([event])).failed == {}

    stage.run(play, settings(send_timeout_s=30.0))
    assert stage.backend.taken == [b"b", b"c"]


# ------------------------------------------------------------------------- real time


def test_the_same_with_the_event_loops_own_clock(stage: Stage) -> None:
    stage.append_each(b"a", b"b", b"c")
    stage.backend.script = [fails(DOWN), hangs(), raises(), fails(DOWN)]

    async def main() -> None:
        delivery = settings(send_timeout_s=0.5, retry_initial_s=0.01, breaker_open_s=0.01)
        destination = stage.make(delivery)
        destination.timer = LoopTimer()
        task = asyncio.ensure_future(destination.run())
        await really(lambda: stage.pending() == 0)
        await destination.stop(10.0)
        await task

    asyncio.run(main())
    assert stage.backend.taken == [b"a", b"b", b"c"]
    assert stage.backend.closed


# --------------------------------------------------------------------------- settings


def test_changed_limits_are_applied_at_the_next_start(stage: Stage) -> None:
    stage.deliver_all(settings(retention_time_s=7200.0, on_full="block"))
    options = stage.quiver._engine.ledger.subscriber(NAME).options
    assert (options.max_bytes, options.max_age_s, options.on_full) == (None, 7200.0, "block")
    stage.deliver_all(settings(retention_time_s=3600.0, retention_size="2MB"))
    options = stage.quiver._engine.ledger.subscriber(NAME).options
    assert (options.max_bytes, options.max_age_s) == (2 << 20, 3600.0)
    assert options.on_full == "drop_oldest"


def test_statistics_tell_of_sends_and_lag(stage: Stage) -> None:
    stage.append_each(b"aaaa", b"bb")
    stage.backend.script = [lambda backend, events: backend.take(events), fails(DOWN)]
    stage.backend.otherwise = hangs()

    async def play(destination: Destination) -> None:
        await stage.timer.until(lambda: len(stage.backend.sends) == 3)
        await stage.timer.quiet()
        found = stage.statistics()
        assert (found.name, found.state) == (NAME, State.RUNNING)
        assert (found.sends, found.sent_events, found.sent_bytes) == (3, 1, 4)
        assert found.failed == {"transient": 1}
        assert (found.lag_events, found.in_flight_events, found.active_lanes) == (1, 1, 1)
        assert found.oldest_age_s is not None
        assert found.last_error == "transient 503: service unavailable"

    stage.run(play)
    assert stage.statistics().state is State.STOPPED


def test_what_retention_took_during_an_outage_is_not_sent_and_is_counted(stage: Stage) -> None:
    stage.append_each(b"a", b"b", b"c")
    stage.backend.otherwise = fails(DOWN)

    async def play(destination: Destination) -> None:
        await stage.timer.quiet()
        # Longer than a plan protects what was read (retention.max_pin_s), and than it is kept.
        await stage.timer.pass_s(3 * 3600.0)
        keep(stage.quiver)
        await asyncio.to_thread(stage.append, b"d")
        stage.backend.otherwise = lambda backend, events: backend.take(events)
        await stage.timer.until(lambda: stage.pending() == 0)

    stage.run(play, settings(retention_time_s=7200.0))
    assert stage.backend.taken == [b"d"]
    assert stage.outcomes() == {Outcome.EXPIRED: (3, 3), Outcome.ACKED: (1, 1)}
    assert stage.statistics().lost_events == {"dropped": 0, "expired": 3, "damaged": 0}
