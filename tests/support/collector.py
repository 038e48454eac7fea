"""grpcio's server as a backend that takes OTLP."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc


class Collector(grpc.GenericRpcHandler):
    """grpcio's server as the backend; `decide` may abort a call, or return its answer."""

    def __init__(self, port: int = 0) -> None:
        self.seen: list[tuple[str, bytes, dict[str, Any]]] = []
        self.decide: Callable[[bytes, grpc.ServicerContext], bytes] = lambda body, call: b""
        self.server = grpc.server(futures.ThreadPoolExecutor(2), [self])
        self.port = self.server.add_insecure_port(f"127.0.0.1:{port}")
        self.server.start()
        self.url = f"http://127.0.0.1:{self.port}"

    def service(self, details: Any) -> Any:
        def handle(body: bytes, call: grpc.ServicerContext) -> bytes:
            metadata: Any = call.invocation_metadata()
            self.seen.append((details.method, body, dict(metadata)))
            return self.decide(body, call)

        return grpc.unary_unary_rpc_method_handler(handle)

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body, _ in self.seen]
