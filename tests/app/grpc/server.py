"""A gRPC port in a thread with a loop of its own, over models that are made up here."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import uvloop
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from app.grpc.front import GrpcFront
from app.grpc.options import GrpcOptions
from app.service.client_shared_memory import ClientSharedMemory
from app.service.model_control import NoModelControl
from deployments.lane.wire import GRPC_STREAM
from protocol.errors import InvalidArgument, NotFound, ServingError, Unavailable, Unsupported


class FakeTarget:
    """Answers with its inputs as outputs; the request's id says what else happens.

    `hold`: nothing, until `release`; `fail`: an error; `many:N`: N responses, and an empty end.
    """

    version = 1
    ready = True
    shared = False

    def __init__(self, name: str, service: "FakeService") -> None:
        self.model_name = name
        self._service = service

    def submit(self, parts: Sequence[Any], json_length: int | None, sink: Any, wire: int = 0) -> Any:
        try:
            request = pb.ModelInferRequest.FromString(b"".join(parts))
        except DecodeError:
            sink.on_error(InvalidArgument("failed to parse the request as a ModelInferRequest"))
            return None
        self._service.requests.append(request)
        if self._service.decoupled(self.model_name) and wire != GRPC_STREAM:
            sink.on_error(Unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy"))
        elif request.id.startswith("fail"):
            sink.on_error(InvalidArgument("räksmörgås: 100 % wrong"))
        elif request.id.startswith("hold"):
            self._service.held[request.id] = lambda: self._answer(request, sink, wire)
            self._service.arrived.release()
            return request.id
        elif request.id.startswith("many:"):
            for _ in range(int(request.id[5:])):
                self._answer(request, sink, wire, final=False)
            sink.on_response(None, (), True)
        else:
            self._answer(request, sink, wire)
        return request.id

    def cancel(self, token: Any) -> None:
        self._service.held.pop(token, None)
        self._service.cancelled.append(token)
        self._service.gave_up.release()

    def _answer(self, request: Any, sink: Any, wire: int, final: bool = True) -> None:
        response = pb.ModelInferResponse(model_name=self.model_name, model_version="1", id=request.id)
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=False):
            response.outputs.add(name=tensor.name.replace("IN", "OUT"), datatype=tensor.datatype, shape=tensor.shape)
            response.raw_output_contents.append(raw)
        if wire == GRPC_STREAM:
            response.parameters["triton_final_response"].bool_param = final
            data = pb.ModelStreamInferResponse(infer_response=response).SerializeToString()
        else:
            data = response.SerializeToString()
        half = len(data) // 2
        sink.on_response(None, (data[:half], memoryview(data)[half:]), final)


class FakeService:
    def __init__(self) -> None:
        self.targets = {name: FakeTarget(name, self) for name in ("identity", "decoupled")}
        self.requests: list[pb.ModelInferRequest] = []
        self.held: dict[str, Callable[[], None]] = {}
        self.cancelled: list[str] = []
        self.arrived = threading.Semaphore(0)
        self.gave_up = threading.Semaphore(0)
        self.resolved = 0
        self.ready = True
        # It is every part of the service in one.
        self.routing = self.health = self.metadata = self.statistics = self.settings = self
        self.control = NoModelControl()
        regions: Any = SimpleNamespace(status=lambda region, *, on_device: [])
        self.shared_memory = ClientSharedMemory(regions, allowed=False)

    def infer_target(self, name: str, version: int = -1) -> Any:
        return self.target(name, version)

    def target(self, name: str, version: int = -1) -> Any:
        self.resolved += 1
        if name == "loading":
            raise Unavailable("Request for unknown model: 'loading' version 1 is not at ready state")
        if name not in self.targets:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        if version not in (-1, 1):
            raise NotFound(f"Request for unknown model: '{name}' version {version} is not found")
        return self.targets[name]

    def decoupled(self, name: str) -> bool:
        return name == "decoupled"

    def server_ready(self) -> bool:
        return self.ready

    def model_ready(self, name: str, version: int = -1) -> bool:
        try:
            self.target(name, version)
        except (NotFound, Unavailable):
            return False
        return True

    def server(self) -> dict[str, Any]:
        return {"name": "triton", "version": "1", "extensions": ["statistics"]}

    def model(self, name: str, version: int = -1) -> dict[str, Any]:
        self.target(name, version)
        tensor = {"datatype": "FP32", "shape": [-1]}
        return {
            "name": name,
            "versions": ["1"],
            "platform": "onnxruntime_onnx",
            "inputs": [{"name": "IN", **tensor}],
            "outputs": [{"name": "OUT", **tensor}],
        }

    def config(self, name: str, version: int = -1) -> bytes:
        self.target(name, version)
        return b'{"name":"%s","max_batch_size":8}' % name.encode()

    def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        rows = [{"name": "identity", "version": "1", "state": "READY"}]
        return rows if ready_only else [*rows, {"name": "other"}]

    async def update_trace(self, changes: dict[str, Any], model: str = "") -> dict[str, Any]:
        return changes

    async def update_log(self, changes: dict[str, Any]) -> dict[str, Any]:
        return changes

    async def of(self, name: str = "", version: int = -1) -> list[dict[str, Any]]:
        if name not in ("", "identity"):
            raise InvalidArgument(f"requested model '{name}' is not available")
        await asyncio.sleep(0)
        return [{"name": "identity", "version": "1", "inference_count": 7}]


class Server:
    def __init__(self, front: GrpcFront, service: FakeService, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.front = front
        self.service = service
        self.url = f"127.0.0.1:{port}"
        self.port = port
        self._loop = loop

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function on the server's thread and return its result."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def release(self, request_id: str) -> None:
        self.call(self.service.held.pop(request_id))

    def wait_arrived(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.service.arrived.acquire(timeout=10)

    def wait_cancelled(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.service.gave_up.acquire(timeout=10)


@contextlib.contextmanager
def serving(options: GrpcOptions | None = None, service: Any = None, **more: Any) -> Iterator[Server]:
    """Serve on a port that the system chooses, a service of made-up models if none is given."""
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    service = service or FakeService()

    async def start() -> tuple[GrpcFront, int]:
        front = GrpcFront(service, options or GrpcOptions(), loop, **more)
        return front, await front.listen("127.0.0.1", 0)

    try:
        front, port = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
        try:
            yield Server(front, service, port, loop)
        finally:
            asyncio.run_coroutine_threadsafe(front.close(1.0), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def request(
    model: str = "identity", values: Sequence[float] = (1.0, 2.0), request_id: str = "", version: str = ""
) -> Any:
    import numpy as np

    message = pb.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    message.inputs.add(name="IN", datatype="FP32", shape=[len(values)])
    message.raw_input_contents.append(np.asarray(values, "<f4").tobytes())
    return message


__all__ = ["FakeService", "Server", "ServingError", "request", "serving"]
