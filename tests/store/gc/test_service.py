"""The collector over gRPC: real calls over loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.patience import PATIENCE_S
from tests.store.gc.stage import SETTINGS, Stage, staged
from tests.support.certificates import identity

from holdfast.errors import BadConfig
from holdfast.store.gc import gc_pb2 as pb
from holdfast.store.gc.collector import Collector
from holdfast.store.gc.service import REQUEST_CHUNKS_MAX, SERVICE, GcService
from holdfast.store.objects.objects import ChunkHash, hash_of

A, B, C = (hash_of(name) for name in (b"a", b"b", b"c"))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    # A collector that rests for ever, unless it is woken.
    settings = replace(SETTINGS, collect_every_s=3600.0)
    with staged(f"sqlite:///{tmp_path}/gc.sqlite", settings) as opened:
        yield opened


@contextmanager
def serving(stage: Stage, **options: Any) -> Iterator[GcService]:
    service = GcService(stage.collector(), stage.references, **options)
    service.start()
    try:
        yield service
    finally:
        service.stop()


def call(channel: grpc.Channel, method: str, request: Any, response: Any, **given: Any) -> Any:
    ask = channel.unary_unary(
        f"/{SERVICE}/{method}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=response.FromString,
    )
    return ask(request, timeout=given.pop("timeout", PATIENCE_S), **given)


def references_of(channel: grpc.Channel, chunk: pb.Chunk) -> list[ChunkHash]:
    ask = channel.unary_stream(
        f"/{SERVICE}/GetReferences",
        request_serializer=pb.GetReferencesRequest.SerializeToString,
        response_deserializer=pb.Chunk.FromString,
    )
    answers = ask(pb.GetReferencesRequest(chunk=chunk), timeout=PATIENCE_S)
    return sorted(ChunkHash(one.hash) for one in answers)


def chunks(*named: ChunkHash) -> list[pb.Chunk]:
    return [pb.Chunk(hash=one) for one in named]


def test_delete_chunks_takes_garbage_alone(stage: Stage) -> None:
    with serving(stage) as service, grpc.insecure_channel(f"127.0.0.1:{service.port}") as channel:
        with stage.references.open_job("j") as job:
            stage.upload(job, b"a")
            stage.upload(job, b"b")
            stage.publish(job, "c", [B])
        answer = call(
            channel,
            "DeleteChunks",
            pb.DeleteChunksRequest(chunks=chunks(A, B, C)),
            pb.DeleteChunksResponse,
        )
        assert answer.chunks == 1
        flush = pb.FlushDeletesRequest(chunks=chunks(A, B, C))
        call(channel, "FlushDeletes", flush, pb.FlushDeletesResponse)
        assert not stage.has(A)
        assert stage.has(B)
        assert service.failure is None
    stage.check_at_rest()


def test_flush_waits_until_the_object_is_gone(stage: Stage) -> None:
    """The seed's own promise: it answers when the delete has happened, and not before."""
    with stage.references.open_job("j") as job:
        stage.upload(job, b"a")
    started, go_on = threading.Event(), threading.Event()
    really: Callable[[Any], None] = stage.objects.delete_many

    def delete_many(keys: Any) -> None:
        started.set()
        assert go_on.wait(PATIENCE_S)
        really(keys)

    stage.objects.delete_many = delete_many  # type: ignore[method-assign]
    with serving(stage) as service, grpc.insecure_channel(f"127.0.0.1:{service.port}") as channel:
        assert started.wait(PATIENCE_S)
        flush = pb.FlushDeletesRequest(chunks=chunks(A))
        with pytest.raises(grpc.RpcError) as refused:
            call(channel, "FlushDeletes", flush, pb.FlushDeletesResponse, timeout=0.3)
        assert refused.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        go_on.set()
        call(channel, "FlushDeletes", flush, pb.FlushDeletesResponse)
        assert stage.objects.stored == {}


def test_get_references_streams_children(stage: Stage) -> None:
    with stage.references.open_job("j") as job:
        stage.upload(job, b"b")
        stage.upload(job, b"c")
        stage.upload(job, b"a", [B, C])
        stage.publish(job, "c", [A])
        (waiting,) = stage.references.reserve_chunks(job, [(hash_of(b"never"), 1)])
        with (
            serving(stage) as service,
            grpc.insecure_channel(f"127.0.0.1:{service.port}") as channel,
        ):
            key = stage.references.resolve([A])[A]
            assert references_of(channel, pb.Chunk(hash=A)) == sorted([B, C])
            named = pb.Chunk(hash=A, generation=key.generation)
            assert references_of(channel, named) == sorted([B, C])
            # Race 6: never uploaded, so there is nothing it refers to.
            never = pb.Chunk(hash=waiting.key.hash, generation=waiting.key.generation)
            assert references_of(channel, never) == []
            with pytest.raises(grpc.RpcError) as unknown:
                references_of(channel, pb.Chunk(hash=hash_of(b"other")))
            assert unknown.value.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("bad", [[b"short"], [A] * (REQUEST_CHUNKS_MAX + 1)], ids=["hash", "many"])
def test_bad_requests_are_refused(stage: Stage, bad: list[ChunkHash]) -> None:
    with serving(stage) as service, grpc.insecure_channel(f"127.0.0.1:{service.port}") as channel:
        request = pb.DeleteChunksRequest(chunks=chunks(*bad))
        with pytest.raises(grpc.RpcError) as refused:
            call(channel, "DeleteChunks", request, pb.DeleteChunksResponse)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_collector_that_fails_goes_on_later(stage: Stage) -> None:
    with stage.references.open_job("j") as job:
        stage.upload(job, b"a")
    stage.objects.deletes_time_out = True
    with serving(stage) as service, grpc.insecure_channel(f"127.0.0.1:{service.port}") as channel:
        pause = threading.Event()
        while service.failure is None:
            pause.wait(0.01)
        stage.objects.deletes_time_out = False
        flush = pb.FlushDeletesRequest(chunks=chunks(A))
        call(channel, "FlushDeletes", flush, pb.FlushDeletesResponse)
        assert stage.objects.stored == {}


def test_it_is_not_open_to_everybody(stage: Stage) -> None:
    for options in ({}, {"tokens": ["t"]}):
        with pytest.raises(BadConfig, match="everybody"):
            GcService(
                Collector(stage.references, stage.objects),
                stage.references,
                address="0.0.0.0:0",
                **options,  # type: ignore[arg-type]
            )


def test_tokens_and_tls(stage: Stage) -> None:
    own = identity("collector")
    with serving(stage, tokens=["right"], certificate=(own.key_pem(), own.pem)) as service:
        credentials = grpc.ssl_channel_credentials(own.pem)
        address = f"127.0.0.1:{service.port}"
        with grpc.secure_channel(address, credentials) as channel:
            flush = pb.FlushDeletesRequest(chunks=chunks(A))
            for metadata in ((), (("authorization", "Bearer wrong"),)):
                with pytest.raises(grpc.RpcError) as refused:
                    call(channel, "FlushDeletes", flush, pb.FlushDeletesResponse, metadata=metadata)
                assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
            right = (("authorization", "Bearer right"),)
            call(channel, "FlushDeletes", flush, pb.FlushDeletesResponse, metadata=right)
