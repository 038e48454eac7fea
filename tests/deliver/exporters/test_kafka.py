"""The kafka exporter against librdkafka's mock cluster."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.facet_v2 import RunFacet, parent_run
from openlineage.client.serde import Serde
from openlineage.client.transport.kafka import KafkaConfig, KafkaTransport
from pydantic import ValidationError
from tests.deliver.exporters.backend import Backend
from tests.deliver.exporters.mock_kafka import MockKafka
from tests.deliver.exporters.sending import context, event, events, send, send_one, with_exporter
from tests.patience import PATIENCE_S, SCALE, until_async
from tests.ports import free_port

from holdfast.deliver.exporter import Answer, Exporter, FailureClass
from holdfast.deliver.exporters import kafka
from holdfast.errors import BadConfig, NotInstalled
from holdfast.extras import install_command

HUSH = "hush-hush-42"


@pytest.fixture
def cluster() -> Iterator[MockKafka]:
    with MockKafka() as started:
        yield started


def exporter(cluster: MockKafka | str, **config: Any) -> Exporter:
    brokers = cluster if isinstance(cluster, str) else cluster.brokers
    given = {"brokers": brokers, "topic": "lineage", "timeout": 20} | config
    return kafka.make(kafka.Config.model_validate(given), context())


def job_event(n: int, job: str) -> dict[str, Any]:
    return {"n": n, "run": {"runId": "x"}, "job": {"namespace": "ns", "name": job}}


def test_messages_are_the_events_with_the_keys_of_the_clients(cluster: MockKafka) -> None:
    payloads = [json.dumps(job_event(n, f"job {n % 3}")).encode() for n in range(30)]
    sent = [event(n, payload) for n, payload in enumerate(payloads)]
    assert send(exporter(cluster), sent[:20], sent[20:]) == [Answer(), Answer()]
    found = cluster.messages(30)
    assert sorted(value for _, value, _ in found) == sorted(payloads)
    for job in range(3):
        mine = [(k, v, p) for k, v, p in found if k == f"run:ns/job {job}"]
        assert [json.loads(value)["n"] for _, value, _ in mine] == list(range(job, 30, 3))
        assert len({partition for _, _, partition in mine}) == 1


def test_the_keys_are_those_of_the_real_client(cluster: MockKafka) -> None:
    run_id = "3f5e83fa-3480-44ff-99c5-ff943904e5e8"
    parent = parent_run.ParentRunFacet(
        run=parent_run.Run(runId=run_id), job=parent_run.Job(namespace="ns", name="root")
    )
    both: list[tuple[str, dict[str, RunFacet]]] = [("child", {"parent": parent}), ("alone", {})]
    theirs = [
        RunEvent(
            eventTime="2025-01-01T00:00:00Z",
            run=Run(runId=run_id, facets=facets),
            job=Job(namespace="ns", name=name),
            eventType=RunState.START,
            producer="https://example.org",
        )
        for name, facets in both
    ]
    client = KafkaTransport(
        KafkaConfig({"bootstrap.servers": cluster.brokers, "log_level": "0"}, "lineage")
    )
    for one in theirs:
        client.emit(one)
    client.close(PATIENCE_S)
    ours = [event(n, Serde.to_json(one).encode()) for n, one in enumerate(theirs)]
    assert send(exporter(cluster), ours) == [Answer()]
    keys = sorted(str(key) for key, _, _ in cluster.messages(4))
    assert keys == ["run:ns/alone", "run:ns/alone", "run:ns/root", "run:ns/root"]


def test_no_keys(cluster: MockKafka) -> None:
    sent = [event(1, json.dumps(job_event(1, "j")).encode()), event(2, b"\xff not json")]
    assert send(exporter(cluster, key="none"), sent[:1]) == [Answer()]
    assert send(exporter(cluster), sent[1:]) == [Answer()]
    assert [key for key, _, _ in cluster.messages(2)] == [None, None]


def test_parallel_sends(cluster: MockKafka) -> None:
    async def use(started: Exporter) -> list[Answer]:
        return await asyncio.gather(*(started.send(events(5, 10 * n)) for n in range(8)))

    assert with_exporter(exporter(cluster), use) == [Answer()] * 8
    assert len(cluster.messages(40)) == 40


def test_a_message_that_is_too_large_stands_alone(cluster: MockKafka) -> None:
    large = event(2, b'"%s"' % (b"x" * 2_000_000))
    (result,) = send(exporter(cluster), [event(1), large, event(3)])
    assert {i: f.kind for i, f in result.failed.items()} == {1: FailureClass.TOO_LARGE}
    assert "max_message_size" in result.failed[1].reason
    assert len(cluster.messages(2)) == 2
    assert send(exporter(cluster, max_message_bytes="3MB"), [large]) == [Answer()]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, FailureClass.TOO_LARGE),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, FailureClass.AUTH),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, FailureClass.AUTH),
        (KafkaError.INVALID_RECORD, FailureClass.PERMANENT),
    ],
)
def test_what_the_broker_says(cluster: MockKafka, code: int, kind: FailureClass) -> None:
    cluster.fail_produce(code)
    failed, then = send(exporter(cluster), [event()], [event()])
    assert failed.failed[0].kind is kind
    assert then == Answer()
    assert len(cluster.messages(1)) == 1


def test_what_passes_is_retried_by_the_client(cluster: MockKafka) -> None:
    cluster.fail_produce(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REQUEST_TIMED_OUT)
    assert send(exporter(cluster, timeout=20), [event()]) == [Answer()]


def test_nothing_overtakes_a_message_that_failed(cluster: MockKafka) -> None:
    config = {"batch.num.messages": 1, "max.in.flight": 1}
    same_job = [event(n, json.dumps(job_event(n, "j")).encode()) for n in range(100)]

    async def use(started: Exporter) -> Answer:
        assert await started.send([event(999)]) == Answer()  # so that it is connected
        # Long enough to take back what is queued, though this process be stopped for a moment.
        cluster.set_round_trip_ms(100)
        cluster.fail_produce(KafkaError.INVALID_REQUIRED_ACKS)
        return await started.send(same_job)

    result = with_exporter(exporter(cluster, client_config=config), use)
    assert result.failed[0].code == "INVALID_REQUIRED_ACKS"
    # What was queued was taken back; only the next one may have been on its way already.
    assert {failure.kind for failure in result.failed.values()} == {FailureClass.TRANSIENT}
    assert len(result.failed) > 90


def test_an_unknown_topic_is_not_the_events_fault(
    cluster: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "UNKNOWN_TOPIC_MS", 100)
    config = {"allow.auto.create.topics": False, "topic.metadata.refresh.interval.ms": 100}
    made = exporter(cluster, topic="no topic at all!", client_config=config, timeout=15)
    failure = send_one(made)
    assert failure is not None
    assert failure.kind is FailureClass.TRANSIENT
    assert "`topic`" in failure.reason


def test_no_broker_is_transient() -> None:
    failure = send_one(exporter(f"127.0.0.1:{free_port()}", timeout=2 * SCALE))
    assert failure is not None
    assert failure.kind is FailureClass.TRANSIENT
    assert "_ALL_BROKERS_DOWN" in failure.reason or "_TRANSPORT" in failure.reason


def test_a_broker_that_returns(cluster: MockKafka) -> None:
    async def use(started: Exporter) -> None:
        cluster.set_down(True)
        failed = (await started.send([event(1)])).failed
        assert failed[0].kind is FailureClass.TRANSIENT
        cluster.set_down(False)

        async def is_taken() -> bool:
            return await started.send([event(1)]) == Answer()

        # As often as it takes: the client waits longer and longer before it connects again.
        await until_async(is_taken)

    with_exporter(exporter(cluster, timeout=1), use)


def test_a_certificate_that_is_not_trusted_is_our_trouble(certificates: Any) -> None:
    with Backend(tls=certificates.server_context()) as broker:
        config = {"security.protocol": "SSL"}
        failure = send_one(
            exporter(f"127.0.0.1:{broker.port}", client_config=config, timeout=3 * SCALE)
        )
    assert failure is not None
    assert (failure.kind, failure.code) == (FailureClass.AUTH, "_SSL")


def test_a_fatal_error_is_survived(cluster: MockKafka) -> None:
    cluster.fail_produce(KafkaError.UNKNOWN_PRODUCER_ID, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)

    async def use(started: Exporter) -> list[Answer]:
        results = [await started.send([event()])]
        while results[-1].failed and len(results) < 5:
            results.append(await started.send([event()]))
        return results

    results = with_exporter(exporter(cluster, timeout=5), use)
    assert results[0].failed[0].kind is FailureClass.TRANSIENT
    assert results[-1] == Answer()


@pytest.mark.parametrize("key", ["acks", "bootstrap.servers", "transactional.id"])
def test_what_is_ours_cannot_be_set(key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        exporter("h:1", client_config={key: HUSH})


@pytest.mark.parametrize(
    "config",
    [
        {"no.such.key": HUSH},
        {"security.protocol": HUSH},
        {"queue.buffering.max.messages": HUSH},
        {"sasl.mechanism": HUSH, "security.protocol": "SASL_PLAINTEXT"},
    ],
)
def test_a_configuration_that_librdkafka_does_not_take(config: dict[str, str]) -> None:
    with pytest.raises(BadConfig, match="librdkafka does not take") as raised:
        exporter("h:1", client_config=config)
    assert HUSH not in str(raised.value)


def test_secrets_are_not_shown(cluster: MockKafka, caplog: pytest.LogCaptureFixture) -> None:
    config = {"sasl.password": HUSH, "sasl.username": HUSH, "linger.ms": 5, "log_level": 7}
    given = {"brokers": cluster.brokers, "topic": "lineage", "client_config": config}
    made = kafka.Config.model_validate(given)
    with caplog.at_level(logging.DEBUG):
        assert send_one(kafka.make(made, context())) is None
    assert HUSH not in repr(made) + str(made) + made.model_dump_json() + caplog.text


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "missing_modules", lambda extra: ["confluent_kafka"])
    with pytest.raises(NotInstalled, match="not installed") as raised:
        exporter("h:1")
    assert raised.value.hint == install_command("kafka")
