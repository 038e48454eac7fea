"""Figures over UDP: the same names, counters as deltas, bounded, and nothing ever waits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.graph.model import StatsdSettings
from holdfast.operate.metrics import Sample
from holdfast.operate.monitoring import DATAGRAM_BYTES_MAX, Statsd, StatsdLines

COUNTERS = {"sent_total", "failed_total"}


def lines(settings: StatsdSettings | None = None) -> StatsdLines:
    return StatsdLines(settings or StatsdSettings(), COUNTERS)


def sent(told: Sequence[bytes]) -> list[str]:
    return [line for datagram in told for line in datagram.decode().split("\n")]


def test_counters_are_sent_as_what_they_grew_by() -> None:
    one = lines()
    labels = {"destination": "marquez"}
    assert sent(one.datagrams([Sample("sent_total", labels, 5)])) == [
        "sent_total:5|c|#destination:marquez"
    ]
    assert sent(one.datagrams([Sample("sent_total", labels, 5)])) == []
    assert sent(one.datagrams([Sample("sent_total", labels, 12)])) == [
        "sent_total:7|c|#destination:marquez"
    ]
    # Begun anew: a destination that was ended and made again.
    assert sent(one.datagrams([Sample("sent_total", labels, 3)])) == [
        "sent_total:3|c|#destination:marquez"
    ]


def test_what_was_counted_before_the_start_is_not_sent() -> None:
    one = lines()
    one.take_as_sent([Sample("sent_total", {}, 1000), Sample("lag", {}, 5)])
    assert sent(one.datagrams([Sample("sent_total", {}, 1001)])) == ["sent_total:1|c"]


def test_gauges_are_sent_as_they_are_every_time() -> None:
    one = lines()
    for _ in range(2):
        assert sent(one.datagrams([Sample("lag", {}, 2.5), Sample("up", {}, True)])) == [
            "lag:2.5|g",
            "up:1|g",
        ]


def test_labels_can_be_parts_of_the_name() -> None:
    one = lines(StatsdSettings(labels="names"))
    record = Sample("lag", {"destination": "a.b c", "quiver": ""}, 1)
    assert sent(one.datagrams([record])) == ["lag.a_b_c.none:1|g"]


def test_what_would_break_the_format_is_replaced() -> None:
    record = Sample("lag", {"destination": "a|b:c,d#e\nf"}, 1)
    assert sent(lines().datagrams([record])) == ["lag:1|g|#destination:a_b_c_d_e_f"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["sent_total", "failed_total", "lag"]), st.text(max_size=300)),
        unique=True,
        max_size=40,
    )
)
def test_every_datagram_fits_and_nothing_is_left_out(named: list[tuple[str, str]]) -> None:
    records = [Sample(name, {"x": label}, 1) for name, label in named]
    told = lines().datagrams(records)
    assert all(len(datagram) <= DATAGRAM_BYTES_MAX for datagram in told)
    assert len(sent(told)) == len(records)


def test_what_did_not_fit_goes_first_next_time_and_no_count_is_lost() -> None:
    one = lines(StatsdSettings(max_packets=1))
    totals: dict[str, int] = {}
    records = [Sample("sent_total", {"x": f"{n:03d}" + "y" * 100}, 10) for n in range(50)]
    for _ in range(8):
        told = one.datagrams(records)
        assert len(told) <= 1
        for line in sent(told):
            label, value = line.partition("#x:")[2][:3], int(line.split(":")[1].split("|")[0])
            totals[label] = totals.get(label, 0) + value
    assert totals == {f"{n:03d}": 10 for n in range(50)}


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.settimeout(30)
        yield listening


def test_a_server_gets_the_figures_and_the_last_ones_at_the_end(server: socket.socket) -> None:
    settings = StatsdSettings(address=f"127.0.0.1:{server.getsockname()[1]}", interval=0.1)
    value = 0

    async def records() -> list[Sample]:
        return [Sample("sent_total", {}, value)]

    async def run() -> None:
        nonlocal value
        task = asyncio.create_task(Statsd(settings, COUNTERS, records).run())
        await asyncio.sleep(0)
        value = 5
        assert await asyncio.to_thread(server.recv, 4096) == b"sent_total:5|c"
        value = 7
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(run())
    assert server.recv(4096) == b"sent_total:2|c"


def test_what_cannot_be_sent_is_counted_and_stops_nothing() -> None:
    # Nothing can be sent to port 0.
    settings = StatsdSettings(address="127.0.0.1:0", interval=0.1)

    async def run() -> int:
        asked = asyncio.Semaphore(0)

        async def records() -> list[Sample]:
            asked.release()
            return [Sample("lag", {}, 1)]

        pusher = Statsd(settings, COUNTERS, records)
        task = asyncio.create_task(pusher.run())
        for _ in range(4):
            await asyncio.wait_for(asked.acquire(), 30)
        task.cancel()
        await asyncio.wait([task])
        return pusher.failures

    assert asyncio.run(run()) >= 3
