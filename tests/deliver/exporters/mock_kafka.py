"""librdkafka's mock cluster: brokers on loopback sockets that can be told to fail.

confluent-kafka starts one inside a producer (`test.mock.num.brokers`) but gives no handle to it, so
its C functions are called directly. Exporters connect to it over TCP, as to any other cluster.
"""

from __future__ import annotations

import ctypes
import glob
import os
from collections.abc import Callable
from typing import Any, Self

import confluent_kafka
from confluent_kafka import Consumer, TopicPartition
from tests.patience import PATIENCE_S

PRODUCE = 0  # Kafka's number of the request


def library() -> ctypes.CDLL:
    package = os.path.dirname(confluent_kafka.__file__)
    (path,) = glob.glob(os.path.join(package + ".libs", "librdkafka*"))
    return ctypes.CDLL(path)


class MockKafka:
    """A cluster of one broker, with one topic `lineage` of four partitions."""

    def __enter__(self) -> Self:
        self._library = library()
        conf = self._call("rd_kafka_conf_new", ctypes.c_void_p)
        text = ctypes.create_string_buffer(512)
        self._client = self._call(
            "rd_kafka_new", ctypes.c_void_p, 0, ctypes.c_void_p(conf), text, len(text)
        )
        assert self._client, text.value
        self._cluster = self._call(
            "rd_kafka_mock_cluster_new", ctypes.c_void_p, ctypes.c_void_p(self._client), 1
        )
        self.make_topic("lineage", 4)
        return self

    def __exit__(self, *_: object) -> None:
        self._call("rd_kafka_mock_cluster_destroy", None, ctypes.c_void_p(self._cluster))
        self._call("rd_kafka_destroy", None, ctypes.c_void_p(self._client))

    @property
    def brokers(self) -> str:
        found: bytes = self._on_cluster("rd_kafka_mock_cluster_bootstraps", ctypes.c_char_p)
        return found.decode()

    def make_topic(self, name: str, partitions: int) -> None:
        self._on_cluster("rd_kafka_mock_topic_create", ctypes.c_int, name.encode(), partitions, 1)

    def fail_produce(self, *codes: int) -> None:
        """Answer the next produce requests with these error codes."""
        errors = (ctypes.c_int * len(codes))(*codes)
        count = ctypes.c_size_t(len(codes))
        name = "rd_kafka_mock_push_request_errors_array"
        self._on_cluster(name, None, ctypes.c_int16(PRODUCE), count, errors)

    def set_round_trip_ms(self, round_trip_ms: int) -> None:
        self._on_cluster("rd_kafka_mock_broker_set_rtt", ctypes.c_int, 1, round_trip_ms)

    def set_down(self, down: bool) -> None:
        name = "rd_kafka_mock_broker_set_down" if down else "rd_kafka_mock_broker_set_up"
        self._on_cluster(name, ctypes.c_int, 1)

    def messages(self, count: int, topic: str = "lineage") -> list[tuple[str | None, bytes, int]]:
        """Return key, value and partition of the first messages."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.brokers,
                "group.id": "test",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        try:
            partitions = consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            found = consumer.consume(count, PATIENCE_S)
        finally:
            consumer.close()
        assert len(found) == count
        return [(_text(m.key()), bytes(m.value() or b""), m.partition() or 0) for m in found]

    def _on_cluster(self, name: str, result: Any, *arguments: Any) -> Any:
        return self._call(name, result, ctypes.c_void_p(self._cluster), *arguments)

    def _call(self, name: str, result: Any, *arguments: Any) -> Any:
        function: Callable[..., Any] = getattr(self._library, name)
        function.restype = result  # type: ignore[attr-defined]
        return function(*arguments)


def _text(key: Any) -> str | None:
    return None if key is None else bytes(key).decode()
