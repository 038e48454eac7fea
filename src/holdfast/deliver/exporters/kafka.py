"""Produces events to a Kafka topic, with the keys that the OpenLineage clients give them.

The producer is idempotent and waits for all replicas. A send is delivered when every report of its
messages is there; they are waited for in a thread, because librdkafka calls back from `poll`. When
one message fails, what is still queued behind it is taken back, so that it does not overtake. The
broker refuses whole batches of messages, so a refused one is sent alone before that counts.

librdkafka retries by itself until `timeout`. What it then says is "timed out", whatever was behind
it, so the last trouble it told of (no broker, credentials) is kept for the reason.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from holdfast.deliver.exporter import (
    Answer,
    Exporter,
    ExporterContext,
    Failure,
    FailureClass,
)
from holdfast.errors import BadConfig, NotInstalled
from holdfast.extras import install_command, missing_modules
from holdfast.own_thread import in_thread
from holdfast.settings import DurationS, FileSettings, Secret, SizeBytes
from holdfast.signals.event import Event

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

# How long reports may take beyond `timeout`, after which librdkafka owes all of them.
GRACE_S = 3.0
POLL_S = 0.1
# A missing topic is reported after this time, not only when the message times out.
UNKNOWN_TOPIC_MS = 10_000

AUTH = frozenset(
    {
        *("_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED", "ILLEGAL_SASL_STATE"),
        *("UNSUPPORTED_SASL_MECHANISM", "TOPIC_AUTHORIZATION_FAILED"),
        *("CLUSTER_AUTHORIZATION_FAILED", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    }
)
# About the message. Whatever else a broker says is about itself, its topics or its policies.
TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})
PERMANENT = frozenset({"INVALID_RECORD"})
UNKNOWN_TOPIC = frozenset({"_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART", "TOPIC_EXCEPTION"})
TIMED_OUT = frozenset({"_MSG_TIMED_OUT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "REQUEST_TIMED_OUT"})
# Certainly never sent.
NOT_SENT = frozenset({"_PURGE_QUEUE", "_QUEUE_FULL"}) | UNKNOWN_TOPIC

# Ours to set, because the promise rests on them; or callbacks and code, which a file cannot hold.
FORBIDDEN = frozenset(
    {
        *("acks", "request.required.acks", "bootstrap.servers", "metadata.broker.list"),
        *("enable.idempotence", "enable.gapless.guarantee", "transactional.id"),
        *("message.timeout.ms", "delivery.timeout.ms", "message.max.bytes"),
        *("plugin.library.paths", "interceptors", "opaque", "default_topic_conf"),
        *("background_event_cb", "dr_cb", "dr_msg_cb", "error_cb", "log_cb", "logger"),
        *("oauth_cb", "on_delivery", "partitioner_cb", "rebalance_cb", "stats_cb", "throttle_cb"),
    }
)

log = logging.getLogger("holdfast.kafka")


def _as_text(value: object) -> object:
    """Return a number or a boolean as librdkafka writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


class Config(FileSettings):
    """A Kafka topic."""

    brokers: str
    """Brokers to begin with: `host:port,host:port`."""

    topic: str = Field(min_length=1, max_length=249)
    """The topic."""

    key: Literal["openlineage", "none"] = "openlineage"
    """The key of a message: `openlineage` keeps a job and its children in one partition."""

    client_config: dict[str, Annotated[Secret, BeforeValidator(_as_text)]] = Field(
        default_factory=dict, max_length=100
    )
    """Further settings of librdkafka, such as `security.protocol` and `sasl.password`. Their values
    are treated as secrets."""

    timeout: DurationS = Field(default=25.0, ge=1)
    """How long librdkafka may try to deliver a message. Shorter than the destination's
    `send_timeout`."""

    max_message_bytes: SizeBytes = Field(default=1_000_000, ge=1000)
    """The largest message; the topic's `max.message.bytes` must allow it."""

    max_batch_events: int = Field(default=500, ge=1, le=10_000)
    """How many messages are under way in one send."""

    max_batch_bytes: SizeBytes = Field(default=4 * 2**20, ge=1)
    """How many bytes are under way in one send; one event alone may be larger."""

    @field_validator("client_config")
    @classmethod
    def _is_not_ours(cls, value: dict[str, Secret]) -> dict[str, Secret]:
        ours = sorted(FORBIDDEN.intersection(value))
        if ours:
            raise ValueError(f"these are set by the exporter, or cannot be set: {', '.join(ours)}")
        return value


KeyOf = Callable[[object], str]


def make(config: Config, context: ExporterContext, key_of: KeyOf | None = None) -> Exporter:
    """Return the exporter; fails if the extra `kafka` is not installed."""
    if missing_modules("kafka"):
        raise NotInstalled("the exporter `kafka` is not installed", hint=install_command("kafka"))
    if key_of is None and config.key == "openlineage":
        from holdfast.signals.openlineage.names import kafka_key

        key_of = kafka_key
    exporter = KafkaExporter(config, context, key_of)
    exporter.check_settings()
    return exporter


class KafkaExporter:
    """One topic, one producer; several sends may wait for their reports at once."""

    def __init__(self, config: Config, context: ExporterContext, key_of: KeyOf | None) -> None:
        self._config = config
        self._name = context.name
        self._clock = context.seam.clock
        self._key_of = key_of
        self._producer: Producer | None = None
        self._replacing = threading.Lock()
        self._is_broken = False
        # What librdkafka told of last, while nothing was delivered since.
        self._trouble = ""
        self.max_batch_events = config.max_batch_events
        self.max_batch_bytes = config.max_batch_bytes

    async def start(self) -> None:
        """Make the producer; it connects by itself, and keeps trying."""
        self._producer = self._new_producer()

    async def close(self) -> None:
        """End the producer; nothing that was answered is still under way."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            await in_thread(f"exporter {self._name}", lambda: producer.flush(POLL_S))

    async def send(self, events: Sequence[Event]) -> Answer:
        keys = [self._key(event) for event in events]
        return await in_thread(f"exporter {self._name}", lambda: self._send(events, keys))

    def _key(self, event: Event) -> bytes | None:
        if self._key_of is None or not event.is_json:
            return None
        return self._key_of(event.document).encode("utf-8", "replace") or None

    # ----------------------------------------------------------------- in a thread

    def _send(self, events: Sequence[Event], keys: Sequence[bytes | None]) -> Answer:
        producer = self._usable_producer()
        give_up_at_s = self._clock.monotonic_s() + self._config.timeout + GRACE_S
        errors: dict[int, KafkaError | None] = {}
        queued: set[int] = set()
        for i, (event, key) in enumerate(zip(events, keys, strict=True)):
            error = self._produce(producer, event, key, partial(_note, errors, i), give_up_at_s)
            if error is None:
                queued.add(i)
                continue
            errors[i] = error
            if error.name() not in TOO_LARGE:  # which this side says, and will say again
                # Messages in front of it are under way and stay so. Those behind it are answered
                # as not sent.
                break  # what comes behind it must not overtake it
        self._await(producer, errors, queued, give_up_at_s)
        errors = dict(errors)  # a report that comes later still changes the other one
        if any(error is None for error in errors.values()):
            self._trouble = ""
        failed = {i: self._failure(errors.get(i, _NO_REPORT)) for i in range(len(events))}
        unsent = [i for i in range(len(events)) if i not in errors and i not in queued]
        failed |= dict.fromkeys(unsent, _UNSENT)
        return Answer({i: failure for i, failure in failed.items() if failure is not None})

    def _produce(
        self,
        producer: Producer,
        event: Event,
        key: bytes | None,
        note: Callable[[KafkaError | None, Message], None],
        give_up_at_s: float,
    ) -> KafkaError | None:
        """Queue one message; return why it was not taken."""
        from confluent_kafka import KafkaError, KafkaException

        while True:
            try:
                producer.produce(self._config.topic, event.payload, key, on_delivery=note)
            except BufferError:
                if self._clock.monotonic_s() > give_up_at_s:
                    return KafkaError(KafkaError._QUEUE_FULL)
                self._poll(producer)
            except KafkaException as raised:
                error: KafkaError = raised.args[0]
                return error
            else:
                return None

    def _await(
        self,
        producer: Producer,
        errors: dict[int, KafkaError | None],
        queued: set[int],
        give_up_at_s: float,
    ) -> None:
        """Wait for the reports of all queued messages; after a failure, take back what waits."""
        taken_back = False
        while not queued <= errors.keys():
            late_s = self._clock.monotonic_s() - give_up_at_s
            if late_s > GRACE_S:
                return
            if not taken_back and (late_s > 0 or _has_failed(errors, queued)):
                # What is in flight may have arrived; it is waited for while there is time. Only
                # when its time is over is it given up as well, with an outcome that nobody knows.
                producer.purge(in_queue=True, in_flight=late_s > 0, blocking=False)
                taken_back = True
            self._poll(producer)

    def _poll(self, producer: Producer) -> None:
        """Let reports come in."""
        from confluent_kafka import KafkaException

        try:
            producer.poll(POLL_S)
        except KafkaException as raised:  # how a fatal error is reported
            self._note_trouble(raised.args[0])
            time.sleep(POLL_S)

    def _failure(self, error: KafkaError | Failure | None) -> Failure | None:
        if error is None or isinstance(error, Failure):
            return error
        name = error.name()
        if name in TIMED_OUT and self._trouble:
            name = self._trouble
        # librdkafka remembers for long that it was not let in, and forever a fatal error.
        self._is_broken = self._is_broken or error.fatal() or name in AUTH
        return _told(name, maybe_delivered=error.name() not in NOT_SENT)

    # ---------------------------------------------------------------- the producer

    def check_settings(self) -> None:
        """Fail if librdkafka does not take the settings; no broker is asked.

        A producer is made and dropped: librdkafka is the only judge of its own settings, and says
        so only when it gets them.
        """
        self._new_producer()

    def _usable_producer(self) -> Producer:
        with self._replacing:
            if self._is_broken:
                self._producer, self._is_broken = self._new_producer(), False
            assert self._producer is not None, "BUG: the exporter was not started"
            return self._producer

    def _new_producer(self) -> Producer:
        from confluent_kafka import KafkaException, Producer

        settings: dict[str, Any] = {
            "linger.ms": "1",
            "topic.metadata.propagation.max.ms": str(UNKNOWN_TOPIC_MS),
            **{key: value.get_secret_value() for key, value in self._config.client_config.items()},
            "bootstrap.servers": self._config.brokers,
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": math.ceil(self._config.timeout * 1000),
            "message.max.bytes": self._config.max_message_bytes,
            "error_cb": self._note_trouble,
        }
        try:
            return Producer(settings, logger=log)
        except (KafkaException, ValueError, TypeError) as error:
            raise BadConfig(
                f"librdkafka does not take the configuration{_property(str(error))}",
                hint="see its CONFIGURATION.md for the keys and values of `client_config`",
            ) from None

    def _note_trouble(self, error: KafkaError) -> None:
        # Being refused explains the lost connections that come with it, not the other way round.
        if self._trouble not in AUTH:
            self._trouble = error.name()
        self._is_broken = self._is_broken or error.fatal()


_UNSENT = Failure(FailureClass.TRANSIENT, "not sent, because the one before it failed", "not_sent")
_NO_REPORT = Failure(
    FailureClass.TRANSIENT, "no report of its delivery in time", "no_report", maybe_delivered=True
)


def _note(
    errors: dict[int, KafkaError | None], i: int, error: KafkaError | None, _: Message
) -> None:
    errors[i] = error


def _has_failed(errors: dict[int, KafkaError | None], queued: set[int]) -> bool:
    """Whether a message failed that was on its way to the broker, and may be sent again."""
    # Of a copy: reports may come in meanwhile.
    return any(error is not None and i in queued for i, error in list(errors.items()))


def _told(name: str, *, maybe_delivered: bool) -> Failure:
    """Return the failure that librdkafka names so. Its texts may hold anything, its names not."""
    if name in AUTH:
        reason = f"the broker does not let us ({name}); check the credentials in `client_config`"
        return Failure(FailureClass.AUTH, reason, name)
    if name in TOO_LARGE:
        reason = f"the message is too large ({name}); see `max_message_size` and the topic's limit"
        return Failure(FailureClass.TOO_LARGE, reason, name)
    if name in PERMANENT:
        return Failure(FailureClass.PERMANENT, f"the broker refused the message ({name})", name)
    if name in UNKNOWN_TOPIC:
        # Not the event's fault, so it must not be set aside.
        reason = f"the topic is not there ({name}); make it, or check `topic`"
        return Failure(FailureClass.TRANSIENT, reason, name)
    reason = f"not delivered ({name})"
    return Failure(FailureClass.TRANSIENT, reason, name, maybe_delivered=maybe_delivered)


def _property(text: str) -> str:
    """Return which key it is about, without its value."""
    found = re.search(r'property:? "?([\w.]+)', text)
    return f": `{found[1]}`" if found else ""
