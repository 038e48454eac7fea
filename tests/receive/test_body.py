"""Bodies are read within bounds of bytes and time."""

from __future__ import annotations

import asyncio
import gzip
import threading
import tracemalloc
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.patience import PATIENCE_S
from tests.receive.harness import Place

from holdfast.receive.admission import Admission
from holdfast.receive.body import ENCODINGS_MAX, RequestLimits, encodings_of, read_body
from holdfast.receive.responses import Disconnected, Reason, Refused

LIMITS = RequestLimits(
    max_body_bytes=1000, max_expanded_bytes=2000, body_timeout_s=30.0, min_body_bytes_per_s=1
)


def read(
    chunks: list[bytes], *, announced_bytes: int = 0, encodings: tuple[bytes, ...] = ()
) -> tuple[bytes, int]:
    """Return the body, and how many chunks were read for it (also if it was refused)."""
    waiting = list(chunks)
    taken = 0

    async def receive() -> dict[str, Any]:
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    admission = Admission(10, 10_000)
    admitted = admission.enter(0)
    try:
        body = asyncio.run(read_body(receive, announced_bytes, [*encodings], LIMITS, admitted))
    except Refused as refused:
        refused.add_note(str(taken))
        raise
    finally:
        admitted.leave()
        assert admission.in_flight_bytes == 0
    return body, taken


def refusal_of(call: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as refused:
        call()
    return refused.value


@pytest.mark.parametrize("chunks", [[b""], [b"text"], [b"te", b"", b"xt"], [b"x"] * 1000])
def test_a_plain_body_is_put_together(chunks: list[bytes]) -> None:
    assert read(chunks) == (b"".join(chunks), len(chunks))


def test_a_packed_body_is_unpacked() -> None:
    packed = gzip.compress(b"text" * 500)
    pieces = [packed[:5], packed[5:9], packed[9:]]
    assert read(pieces, encodings=(b"gzip",)) == (b"text" * 500, 3)


def test_a_body_that_announces_too_much_is_not_read() -> None:
    refused = refusal_of(lambda: read([b""], announced_bytes=1001))
    assert refused.reason is Reason.TOO_LARGE
    assert refused.__notes__ == ["0"]


def test_a_body_is_read_no_further_than_its_bound() -> None:
    refused = refusal_of(lambda: read([b"x" * 400] * 100))
    assert refused.reason is Reason.TOO_LARGE
    assert refused.__notes__ == ["3"]
    refused = refusal_of(lambda: read([b"x" * 1001]))
    assert refused.reason is Reason.TOO_LARGE


def test_an_unpacked_body_has_its_own_bound() -> None:
    refused = refusal_of(lambda: read([gzip.compress(bytes(2001))], encodings=(b"gzip",)))
    assert refused.reason is Reason.TOO_LARGE
    assert "max_expanded_size" in refused.answer.body.decode()
    assert len(read([gzip.compress(bytes(2000))], encodings=(b"gzip",))[0]) == 2000


def test_a_body_that_is_not_what_it_says_is_refused() -> None:
    refused = refusal_of(lambda: read([b"text"], encodings=(b"gzip",)))
    assert refused.reason is Reason.MALFORMED
    assert refused.answer.status == 400


def test_a_client_that_goes_away_is_noticed() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(Disconnected):
        asyncio.run(read_body(receive, 0, [], LIMITS, Admission(1, 1).enter(0)))


def slow(limits: RequestLimits, pause_s: float, encodings: list[bytes]) -> int:
    """Read a body that comes byte by byte; return how many came before it was refused."""
    came = 0

    async def receive() -> dict[str, Any]:
        nonlocal came
        await asyncio.sleep(pause_s)
        came += 1
        return {"type": "http.request", "body": b"x", "more_body": True}

    refused = refusal_of(
        lambda: asyncio.run(read_body(receive, 0, encodings, limits, Admission(1, 9999).enter(0)))
    )
    assert refused.reason is Reason.TIMEOUT
    assert refused.answer.status == 503, "clients send a 503 again, and lose a 408"
    assert b"retry-after" in dict(refused.answer.headers)
    return came


def test_a_client_that_sends_nothing_is_given_up() -> None:
    limits = RequestLimits(
        max_body_bytes=1000, max_expanded_bytes=1000, body_timeout_s=0.05, min_body_bytes_per_s=1
    )
    assert slow(limits, 3600, []) == 0
    assert slow(limits, 3600, [b"zstd"]) == 0


def test_a_client_that_sends_too_slowly_is_given_up() -> None:
    # Every pause is short enough, but all together are not.
    limits = RequestLimits(
        max_body_bytes=1000,
        max_expanded_bytes=1000,
        body_timeout_s=0.5,
        min_body_bytes_per_s=100_000,
    )
    assert slow(limits, 0.02, []) > 0


@pytest.mark.parametrize(
    ("header", "names"),
    [
        (b"gzip", [b"gzip"]),
        (b" GZIP , identity,Zstd,", [b"gzip", b"zstd"]),
        (b"identity", []),
        (b",".join([b"gzip"] * ENCODINGS_MAX), [b"gzip"] * ENCODINGS_MAX),
    ],
)
def test_encodings_are_read(header: bytes, names: list[bytes]) -> None:
    assert encodings_of(header) == names


@pytest.mark.parametrize(
    "header", [b"br", b"gzip, br", b"gzip;q=1", b",".join([b"gzip"] * (ENCODINGS_MAX + 1))]
)
def test_unknown_encodings_are_refused(header: bytes) -> None:
    refused = refusal_of(lambda: encodings_of(header))
    assert refused.answer.status == 415


# ------------------------------------------------------------------------------ large bodies


class HeldThreads(ThreadPoolExecutor):
    """Does nothing until it is let: what is given to it is not done by the loop."""

    def __init__(self) -> None:
        super().__init__(1)
        self.may_work = threading.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        def later() -> Any:
            assert self.may_work.wait(PATIENCE_S)
            return fn(*args, **named)

        return super().submit(later)


async def beside_the_loop(work: Coroutine[Any, Any, Any]) -> Any:
    """Return what comes of it; assert that the last of it is done in a thread."""
    threads = HeldThreads()
    asyncio.get_running_loop().set_default_executor(threads)
    doing = asyncio.create_task(work)
    for _ in range(200):
        await asyncio.sleep(0)
    assert not doing.done(), "the loop did it itself"
    threads.may_work.set()
    return await doing


def test_a_body_of_many_tiny_pieces_takes_no_more_memory_than_it_is_long() -> None:
    left = 30_000
    limits = RequestLimits(
        max_body_bytes=2 * left,
        max_expanded_bytes=2 * left,
        body_timeout_s=PATIENCE_S,
        min_body_bytes_per_s=1,
    )

    async def receive() -> dict[str, Any]:
        nonlocal left
        await asyncio.sleep(0)
        left -= 1
        return {"type": "http.request", "body": b"%02d" % (left % 100), "more_body": left > 0}

    tracemalloc.start()
    try:
        admitted = Admission(1, 2 * left).enter(0)
        body = asyncio.run(read_body(receive, 0, [], limits, admitted))
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()
    assert len(body) == 60_000


@pytest.mark.parametrize("payloads", [bytes(3 << 20), [bytes(1 << 20)] * 3])
def test_a_large_bundle_is_put_together_beside_the_loop(
    place: Place, payloads: bytes | list[bytes]
) -> None:
    receipt = asyncio.run(beside_the_loop(place.quiver.append_raw_async(payloads)))
    assert receipt.seq == 0
