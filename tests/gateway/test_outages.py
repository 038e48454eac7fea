"""A backend in every mood, an unmodified client in front: everything accepted arrives, in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from tests.gateway.conftest import MakeBackend, MakeGateway
from tests.gateway.processes import Backend, Gateway, exporter, holdfast
from tests.gateway.producer import Producer, producer
from tests.patience import until


@dataclass
class Stage:
    """One gateway, one backend, one client."""

    gateway: Gateway
    backend: Backend
    producer: Producer
    # Events that may arrive more than once: no answer to them was seen.
    unanswered: list[str] = field(default_factory=list)

    def emit(self, mood: str, count: int = 3) -> list[str]:
        """Emit events while the backend does not take them; return their digests."""
        self.producer.emit(*(f"{mood}-{n}" for n in range(count)))
        return self.producer.accepted[-count:]

    def state(self) -> str:
        """The state of the destination."""
        return str(self.gateway.destination("marquez")["state"])

    def failures(self) -> float:
        """How many sends failed so far."""
        return self.gateway.metric("gateway_destination_failed_events_total", destination="marquez")

    def wait_for_failure(self, after: float) -> None:
        """Wait until another send failed."""
        until(lambda: self.failures() > after, "failure")

    def wait_for_attempts(self, status: int) -> None:
        """Wait until something was answered so, and tried again."""
        until(lambda: self.backend.attempts(status) >= 2, f"a second {status}")

    def check_arrived(self) -> None:
        """Wait until all has arrived; in order, and once unless nobody knew."""
        accepted = self.producer.accepted
        until(lambda: set(accepted) <= set(self.backend.taken()), "delivery")
        taken = self.backend.taken()
        assert list(dict.fromkeys(taken)) == accepted
        assert {one for one in taken if taken.count(one) > 1} <= set(self.unanswered)


@pytest.fixture
def stage(make_gateway: MakeGateway, make_backend: MakeBackend) -> Iterator[Stage]:
    backend = make_backend()
    gateway = make_gateway(
        {"marquez": exporter(backend.url, refusal_retry_s="200ms", send_timeout_s="1s")}
    )
    with producer(gateway.url) as client:
        yield Stage(gateway, backend, client)


@contextmanager
def away(backend: Backend, number: signal.Signals) -> Iterator[None]:
    """Stop or kill the backend, and bring it back."""
    if number is signal.SIGKILL:
        backend.kill()
        yield
        backend.start()
    else:
        backend.send_signal(number)
        yield
        backend.send_signal(signal.SIGCONT)


def test_a_backend_that_answers_with_errors(stage: Stage) -> None:
    stage.producer.emit("well")
    stage.check_arrived()
    for status, mood in [(500, {}), (503, {"retry_after": 1}), (429, {"retry_after": 0})]:
        stage.backend.feel(status=status, **mood)
        stage.emit(f"status-{status}")
        stage.wait_for_attempts(status)
        assert "marquez: fails, transient" in "\n".join(stage.gateway.messages())
        stage.backend.feel()
        stage.check_arrived()
    assert any("marquez: works again, after" in line for line in stage.gateway.messages())

    # Credentials: nothing more is tried until somebody says so.
    stage.backend.feel(status=401)
    stage.emit("unauthorized")
    until(lambda: stage.state() == "auth_failed", "auth_failed")
    assert stage.backend.attempts(401) == 1
    stage.backend.feel()
    holdfast("destination", "resume", "marquez", stage.gateway.config)
    stage.check_arrived()

    # A backend that refuses whatever it is given: that is not the fault of the events.
    for status in (400, 413):
        stage.backend.feel(status=status)
        stage.emit(f"refused-{status}", 12)
        until(lambda: stage.state() == "stalled", "stalled")
        stage.backend.feel()
        stage.check_arrived()
    assert holdfast("dlq", "ls", stage.gateway.config)["letters"] == []
    assert stage.gateway.balance("marquez")["pending"]["events"] == 0


def test_a_backend_that_hangs_is_stopped_or_killed(stage: Stage) -> None:
    stage.backend.feel(hang=True)
    stage.emit("hang")
    stage.wait_for_attempts(0)
    stage.backend.feel()
    stage.check_arrived()

    for number in (signal.SIGSTOP, signal.SIGKILL):
        failures = stage.failures()
        with away(stage.backend, number):
            first, *_ = stage.emit(number.name)
            # Sent into a stopped process, it may be found there when that goes on.
            stage.unanswered.append(first)
            stage.wait_for_failure(after=failures)
        stage.check_arrived()

    assert stage.gateway.destination("marquez")["lag_events"] == 0
    stage.gateway.stop()
    assert stage.gateway.messages()[-1] == "stopped; nothing waits"


def test_bad_events_are_set_aside_and_replayed_to_their_destination(
    make_gateway: MakeGateway, make_backend: MakeBackend
) -> None:
    marquez, datahub = make_backend("marquez"), make_backend("datahub")
    # 422 is for good. 500 is for this event only: the next one is taken.
    marquez.feel(jobs={"unwanted": 422, "poison": 500, "large": 413})
    gateway = make_gateway(
        {"marquez": exporter(marquez.url, poison_attempts=3), "datahub": exporter(datahub.url)}
    )
    with producer(gateway.url) as client:
        client.emit("a", "unwanted", "b", "poison", "c", "large", "d")
    until(lambda: len(datahub.taken()) == 7 and len(marquez.taken()) == 4, "delivery")
    assert datahub.taken() == client.accepted
    assert [one.job for one in marquez.arrivals() if one.status == 200] == ["a", "b", "c", "d"]
    until(lambda: len(letters(gateway)) == 3, "dead letters")
    permanent, poison, too_large = letters(gateway)
    assert (permanent, too_large) == (("permanent", "marquez", 1), ("too_large", "marquez", 1))
    # Three times, and until there is another event to compare with.
    assert poison[:2] == ("poison", "marquez")
    assert poison[2] >= 3
    assert gateway.metric("gateway_dead_letters_events", store="undelivered") == 3
    assert gateway.balance("marquez")["outcomes"]["dead_lettered"]["events"] == 3
    assert any("dead letter" in line for line in gateway.messages())

    marquez.feel(jobs={"large": 413})
    told = holdfast("dlq", "replay", gateway.config, "--destination", "marquez")["to marquez"]
    assert (told["delivered"], told["filed_again"]) == (2, 1)
    assert letters(gateway) == [("too_large", "marquez", 2)]
    assert [one.job for one in marquez.arrivals() if one.status == 200][4:] == [
        "unwanted",
        "poison",
    ]
    assert len(datahub.taken()) == 7, "a replay goes to one destination"
    gateway.stop()


def letters(gateway: Gateway) -> Sequence[tuple[str, str, int]]:
    """Return reason, destination and attempts of all dead letters."""
    told = holdfast("dlq", "ls", gateway.config)["letters"]
    return [(one["reason"], one["destination"], one["attempts"]) for one in told]
