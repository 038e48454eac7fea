"""A backend in every mood, an unmodified client in front: everything accepted arrives, in order."""

from __future__ import annotations

import functools
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tests.gateway.conftest import MakeBackend, MakeGateway
from tests.gateway.processes import Backend, Gateway, exporter, holdfast
from tests.gateway.producer import Producer, producer
from tests.patience import until

from holdfast.errors import BadInput


@dataclass
class Stage:
    """One gateway, one backend, one client."""

    gateway: Gateway
    backend: Backend
    producer: Producer
    # Whether events may arrive more than once: an answer that comes too late is not seen.
    may_repeat: bool = False

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
        assert self.may_repeat or len(taken) == len(accepted)
        until(lambda: self.gateway.destination("marquez")["lag_events"] == 0, "acks")


@pytest.fixture
def stage(make_gateway: MakeGateway, make_backend: MakeBackend) -> Iterator[Stage]:
    backend = make_backend()
    gateway = make_gateway({"marquez": exporter(backend.url)})
    with producer(gateway.url) as client:
        yield Stage(gateway, backend, client)


@pytest.fixture
def impatient(make_gateway: MakeGateway, make_backend: MakeBackend) -> Iterator[Stage]:
    """A stage on which no answer is waited for long."""
    backend = make_backend()
    gateway = make_gateway({"marquez": exporter(backend.url, send_timeout="1s")})
    with producer(gateway.url) as client:
        yield Stage(gateway, backend, client, may_repeat=True)


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

    # An ingress, a proxy, a wrong address: not the fault of the events, whatever it says.
    for status in (302, 404, 405, 409):
        stage.backend.feel(status=status)
        stage.emit(f"refused-{status}", 12)
        until(functools.partial(_is_held_by, stage, str(status)), f"held by {status}")
        stage.backend.feel()
        stage.check_arrived()
    assert holdfast("dlq", "ls", stage.gateway.config)["letters"] == []
    until(lambda: stage.gateway.balance("marquez")["pending"]["events"] == 0, "acks on disk")


def _is_held_by(stage: Stage, code: str) -> bool:
    held = stage.gateway.destination("marquez")["held"]
    return held is not None and held["code"] == code


def test_an_event_that_holds_a_destination_up_is_skipped_by_hand_and_replayed(
    make_gateway: MakeGateway, make_backend: MakeBackend
) -> None:
    marquez = make_backend("marquez")
    marquez.feel(jobs={"stuck": 500})
    gateway = make_gateway({"marquez": exporter(marquez.url)})
    with producer(gateway.url) as client:
        client.emit("a", "stuck", "b")
    until(lambda: gateway.destination("marquez")["held"] is not None, "held")
    held = gateway.destination("marquez")["held"]
    assert (held["seq"], held["row"], held["code"]) == (1, 0, "500")
    assert gateway.metric("gateway_destination_held_attempts", code="500") >= 1
    assert gateway.metric("gateway_destination_held_seconds", code="500") >= 0

    skip = ("destination", "skip", "marquez")
    for wrong in ("0", "2", "1/7", "17"):
        with pytest.raises(BadInput, match="does not hold 'marquez' up") as refused:
            holdfast(*skip, wrong, gateway.config, "--reason", "no", "--yes")
        assert "1/0" in refused.value.hint
    with pytest.raises(BadInput, match="does not name an event"):
        holdfast(*skip, "x", gateway.config, "--reason", "no", "--yes")
    with pytest.raises(BadInput, match="no terminal to ask on"):  # without --yes it asks
        holdfast(*skip, "1", gateway.config, "--reason", "no")
    assert len(letters(gateway)) == 0

    holdfast(*skip, "1", gateway.config, "--reason", "ticket 77", "--yes")
    until(lambda: len(marquez.taken()) == 2, "the rest")
    ((reason, destination, attempts),) = letters(gateway)
    assert (reason, destination) == ("skipped", "marquez")
    assert attempts >= 1
    (letter,) = holdfast("dlq", "ls", gateway.config)["letters"]
    assert letter["problems"][0]["rule"] == "500"
    assert letter["problems"][0]["message"].startswith("ticket 77 (it failed ")
    until(lambda: fate_of("1", gateway)["state"] == "dead_lettered", "its outcome on disk")
    assert fate_of("1", gateway)["reason"].startswith("skipped: 500: ticket 77")

    marquez.feel()
    told = holdfast("dlq", "replay", gateway.config, "--destination", "marquez")["to marquez"]
    assert told["delivered"] == 1
    assert len(marquez.taken()) == 3
    gateway.stop()


def fate_of(seq: str, gateway: Gateway) -> dict[str, Any]:
    """Return what `holdfast explain` says of an event with one destination."""
    (story,) = holdfast("explain", seq, gateway.config)["quivers"][:1]
    (fate,) = story["explanations"][0]["subscribers"]
    return dict(fate)


def test_a_backend_that_hangs_is_stopped_or_killed(impatient: Stage) -> None:
    stage = impatient
    stage.backend.feel(hang=True)
    stage.emit("hang")
    stage.wait_for_attempts(0)
    stage.backend.feel()
    stage.check_arrived()

    for number in (signal.SIGSTOP, signal.SIGKILL):
        failures = stage.failures()
        with away(stage.backend, number):
            stage.emit(number.name)
            stage.wait_for_failure(after=failures)
        stage.check_arrived()

    stage.gateway.stop()
    assert stage.gateway.messages()[-1] == "stopped; nothing waits"


def test_bad_events_are_set_aside_and_replayed_to_their_destination(
    make_gateway: MakeGateway, make_backend: MakeBackend
) -> None:
    marquez, datahub = make_backend("marquez"), make_backend("datahub")
    # 422 is for good. 500 is for this event only: all others are taken.
    marquez.feel(jobs={"unwanted": 422, "poison": 500, "large": 413})
    poison_settings = {"attempts": 3, "pairs": 10, "held": 0}
    gateway = make_gateway(
        {"marquez": exporter(marquez.url, poison=poison_settings), "datahub": exporter(datahub.url)}
    )
    jobs = ["a", "unwanted", "b", "poison", "c", "large", *"defghijklmno"]
    with producer(gateway.url) as client:
        client.emit(*jobs)
    until(lambda: len(datahub.taken()) == 18 and len(set(marquez.taken())) == 15, "delivery")
    assert datahub.taken() == client.accepted
    arrived = [one.job for one in marquez.arrivals() if one.status == 200]
    assert list(dict.fromkeys(arrived)) == [*"abcdefghijklmno"]
    until(lambda: len(letters(gateway)) == 3, "dead letters")
    permanent, poison, too_large = sorted(letters(gateway))
    assert (permanent, too_large) == (("permanent", "marquez", 1), ("too_large", "marquez", 1))
    # Three times alone, then in pairs with another one.
    assert poison[:2] == ("poison", "marquez")
    assert poison[2] >= 3 + 2 * 10
    assert gateway.metric("gateway_dead_letters_events", store="undelivered") == 3
    until(
        lambda: gateway.balance("marquez")["outcomes"]["dead_lettered"]["events"] == 3,
        "their outcomes on disk",
    )
    assert any("dead letter" in line for line in gateway.messages())

    marquez.feel(jobs={"large": 413})
    told = holdfast("dlq", "replay", gateway.config, "--destination", "marquez")["to marquez"]
    assert (told["delivered"], told["filed_again"]) == (2, 1)
    assert letters(gateway) == [("too_large", "marquez", 2)]
    replayed = [one.job for one in marquez.arrivals() if one.status == 200][len(arrived) :]
    assert sorted(replayed) == ["poison", "unwanted"]
    assert len(datahub.taken()) == 18, "a replay goes to one destination"
    gateway.stop()


def letters(gateway: Gateway) -> Sequence[tuple[str, str, int]]:
    """Return reason, destination and attempts of all dead letters."""
    told = holdfast("dlq", "ls", gateway.config)["letters"]
    return [(one["reason"], one["destination"], one["attempts"]) for one in told]
