"""What a sealed segment says of its rows: in its manifest, its bundle table and its Arrow files."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from tests.quiver.batches import extracting, numbers, seal
from tests.quiver.machine import START_NS, Machine, quiet

from holdfast.quiver import ColumnExtractor, ProducerConfig

NOW_US = START_NS // 1000
YEAR_2099_US = 4_071_006_245_000_000


def test_the_summary_has_clamped_times_and_its_batches_have_those_of_the_rows(
    machine: Machine,
) -> None:
    times = pa.array([-1, NOW_US, YEAR_2099_US], pa.timestamp("us", "UTC"))
    config = extracting(ColumnExtractor("at"))
    with machine.start(config) as quiver:
        quiver.append(pa.record_batch({"at": times}))
        summary = seal(quiver).summary
    assert summary.clamped_min_event_us == 0
    assert summary.clamped_max_event_us == NOW_US + int(config.max_skew_s * 1e6)
    (batch,) = summary.files[0].batches
    assert (batch.min_event_us, batch.max_event_us) == (-1, YEAR_2099_US)


def test_the_manifest_lists_the_newest_producers_first_and_no_more_than_are_remembered(
    machine: Machine,
) -> None:
    config = replace(quiet(), producers=ProducerConfig(max_count=3))
    with machine.start(config) as quiver:
        for name, jump_s in [("a", 0), ("b", 60), ("c", 0), ("d", -30), ("e", -60)]:
            machine.clock.jump(jump_s)
            quiver.append(numbers(1), producer=name, epoch=1)
        assert list(seal(quiver).summary.producers) == ["c", "b", "d"]


def test_a_start_that_remembers_fewer_producers_forgets_the_oldest_of_a_manifest(
    machine: Machine,
) -> None:
    with machine.start() as quiver:
        for name in "abc":
            machine.clock.jump(1)
            quiver.append(numbers(1), producer=name, epoch=1)
        seal(quiver)
    with machine.start(replace(quiet(), producers=ProducerConfig(max_count=2))) as quiver:
        answers = [quiver.append(numbers(1), producer=name, epoch=1) for name in "bca"]
    assert [answer.duplicate for answer in answers] == [True, True, False]
