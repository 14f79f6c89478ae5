"""Metadata that name what a client has begun: which calls are traced as part of it."""

import asyncio
from typing import Any

import pytest

from app.grpc.front import GrpcFront
from app.grpc.head import GrpcHead
from app.grpc.options import GrpcOptions
from app.trace.trace_parent import TraceParent
from tests.app.grpc.server import FakeService

ID, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = TraceParent(int(ID, 16), int(SPAN, 16))


def head(method: str, value: str, *, reads_parents: bool = True) -> GrpcHead:
    async def read() -> GrpcHead:
        service: Any = FakeService()
        front = GrpcFront(service, GrpcOptions(reads_parents=reads_parents), asyncio.get_running_loop())
        fields = {":method": "POST", ":scheme": "http", ":path": f"/inference.GRPCInferenceService/{method}"}
        fields |= {":authority": "x", "content-type": "application/grpc", "te": "trailers", "traceparent": value}
        return front.read_head([(name.encode(), text.encode()) for name, text in fields.items()], False)

    return asyncio.run(read())


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_inference_has_its_clients_parent(method: str) -> None:
    assert head(method, f"00-{ID}-{SPAN}-01").trace_parent == PARENT
    assert head(method, f"00-{ID}-{SPAN}-00").trace_parent is None
    assert head(method, "junk").trace_parent is None
    assert head(method, f"00-{ID}-{SPAN}-01", reads_parents=False).trace_parent is None


def test_other_methods_have_none() -> None:
    assert head("ServerLive", f"00-{ID}-{SPAN}-01").trace_parent is None
