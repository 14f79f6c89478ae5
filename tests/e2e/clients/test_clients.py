"""Triton's own clients, unmodified: every public method of all four, against a server in each placement."""

import asyncio
import inspect
import json
import os
import queue
import random
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from tests.gpus import has_gpu
from tests.serving import Server, infer_path

MODULES = {
    "http": tritonclient.http,
    "http.aio": tritonclient.http.aio,
    "grpc": tritonclient.grpc,
    "grpc.aio": tritonclient.grpc.aio,
}
FIRST, SECOND = np.arange(16, dtype=np.int32).reshape(1, 16), np.full((1, 16), 3, np.int32)
NO_CONTROL = "explicit model load / unload is not allowed if polling is enabled"
TIMEOUT_S = 60.0


class Driver:
    """One client of any of the four modules, called as if all were synchronous."""

    def __init__(self, name: str, server: Server) -> None:
        self.name = name
        self.module: Any = MODULES[name]
        self.grpc = name.startswith("grpc")
        self.aio = name.endswith("aio")
        self._runner = asyncio.Runner()
        self._address = server.wait_for(r"gRPC\s+(\S+)")[1] if self.grpc else server.address
        self.client = self.run(self._make)

    async def _make(self) -> Any:
        return self.module.InferenceServerClient(self._address)

    def run(self, make: Callable[[], Any]) -> Any:
        return self._runner.run(make())

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        self.call("close")
        self._runner.close()

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        if not inspect.iscoroutinefunction(getattr(self.client, method)):
            return getattr(self.client, method)(*arguments, **keywords)

        async def wait() -> Any:
            return await getattr(self.client, method)(*arguments, **keywords)

        return self.run(wait)

    def get(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call what answers with JSON, or with messages that can be had as JSON."""
        return self.call(method, *arguments, **keywords, **({"as_json": True} if self.grpc else {}))

    def input(self, name: str, array: np.ndarray, datatype: str) -> Any:
        made = self.module.InferInput(name, list(array.shape), datatype)
        made.set_data_from_numpy(array)
        return made

    def pair(self) -> list[Any]:
        return [self.input("INPUT0", FIRST, "INT32"), self.input("INPUT1", SECOND, "INT32")]

    def slow(self, seconds: float) -> list[Any]:
        return [self.input("SECONDS", np.array([seconds], np.float32), "FP32")]


def check_sum(result: Any) -> None:
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), FIRST + SECOND)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), FIRST - SECOND)


def refused(driver: Driver, text: str, method: str, *arguments: Any, **keywords: Any) -> InferenceServerException:
    with pytest.raises(InferenceServerException, match=text) as raised:
        driver.call(method, *arguments, **keywords)
    return raised.value


def live(driver: Driver) -> None:
    assert driver.call("is_server_live", headers={"x-any": "thing"})


def ready(driver: Driver) -> None:
    assert driver.call("is_server_ready")


def model_ready(driver: Driver) -> None:
    assert driver.call("is_model_ready", "simple")
    assert driver.call("is_model_ready", "simple", "1")
    assert not driver.call("is_model_ready", "nope")
    assert not driver.call("is_model_ready", "simple", "9")


def server_metadata(driver: Driver) -> None:
    found = driver.get("get_server_metadata")
    assert found["name"] == "triton"
    assert {"system_shared_memory", "cuda_shared_memory"} <= set(found["extensions"])


def model_metadata(driver: Driver) -> None:
    found = driver.get("get_model_metadata", "simple", "1")
    assert (found["name"], found["versions"], found["platform"]) == ("simple", ["1"], "onnxruntime_onnx")
    refused(driver, "Request for unknown model: 'simple' version 9 is not found", "get_model_metadata", "simple", "9")


def model_config(driver: Driver) -> None:
    found = driver.get("get_model_config", "simple")
    assert (found["config"] if driver.grpc else found)["max_batch_size"] == 8


def repository_index(driver: Driver) -> None:
    found = driver.get("get_model_repository_index")
    states = {row["name"]: row["state"] for row in (found["models"] if driver.grpc else found)}
    assert states["simple"] == "READY"


def load(driver: Driver) -> None:
    refused(driver, NO_CONTROL, "load_model", "simple")
    refused(driver, NO_CONTROL, "load_model", "simple", config="{}", files={"file:1/model.onnx": b"x"})


def unload(driver: Driver) -> None:
    refused(driver, NO_CONTROL, "unload_model", "simple", unload_dependents=True)


def statistics(driver: Driver) -> None:
    def count() -> int:
        (row,) = driver.get("get_inference_statistics", "simple", "1")["model_stats"]
        return int(row.get("inference_count", 0))

    before = count()
    driver.call("infer", "simple", driver.pair())
    assert count() == before + 1
    assert len(driver.get("get_inference_statistics")["model_stats"]) > 1


def trace_settings(driver: Driver) -> None:
    for found in (driver.get("get_trace_settings"), driver.get("get_trace_settings", "simple")):
        rate = (found["settings"] if driver.grpc else found)["trace_rate"]
        assert rate == ({"value": ["1000"]} if driver.grpc else "1000")


def update_trace_settings(driver: Driver) -> None:
    for value, shown in (("7", "7"), (None, "1000")):
        found = driver.get("update_trace_settings", "halves", {"trace_rate": value})
        rate = (found["settings"] if driver.grpc else found)["trace_rate"]
        assert rate == ({"value": [shown]} if driver.grpc else shown)


def log_settings(driver: Driver) -> None:
    found = driver.get("get_log_settings")
    assert (found["settings"] if driver.grpc else found)["log_info"] == ({"bool_param": True} if driver.grpc else True)


def update_log_settings(driver: Driver) -> None:
    for value in ("ISO8601", "default"):
        found = driver.get("update_log_settings", {"log_format": value})
        shown = (found["settings"] if driver.grpc else found)["log_format"]
        assert shown == ({"string_param": value} if driver.grpc else value)


def system_regions(driver: Driver) -> None:
    """Tensors in both directions through a region, and all that can be asked of one."""
    key, name = f"/eagleray_test_{driver.name}", "test"
    region = shm.create_shared_memory_region(name, key, 256)
    try:
        shm.set_shared_memory_region(region, [FIRST, SECOND])
        assert name in str(shm.mapped_shared_memory_regions())
        driver.call("register_system_shared_memory", name, key, 256)
        found = driver.get("get_system_shared_memory_status", name)
        row = found["regions"][name] if driver.grpc else found[0]
        assert (row["key"], int(row["byte_size"])) == (key, 256)
        refused(driver, "already in manager", "register_system_shared_memory", name, key, 256)
        inputs = [driver.module.InferInput(each, [1, 16], "INT32") for each in ("INPUT0", "INPUT1")]
        outputs = [driver.module.InferRequestedOutput(each) for each in ("OUTPUT0", "OUTPUT1")]
        for place, tensor in enumerate([*inputs, *outputs]):
            tensor.set_shared_memory(name, 64, offset=64 * place)
        driver.call("infer", "simple", inputs, outputs=outputs)
        for offset, expected in ((128, FIRST + SECOND), (192, FIRST - SECOND)):
            np.testing.assert_array_equal(shm.get_contents_as_numpy(region, np.int32, [1, 16], offset), expected)
        driver.call("unregister_system_shared_memory", name)
        assert driver.get("get_system_shared_memory_status") in ({}, [])
        refused(driver, "Unable to find shared memory region: 'test'", "infer", "simple", inputs, outputs=outputs)
        driver.call("unregister_system_shared_memory")
    finally:
        shm.destroy_shared_memory_region(region)
    assert name not in str(shm.mapped_shared_memory_regions())


def cuda_regions(driver: Driver) -> None:
    text = "failed to register CUDA shared memory region: 'r', GPUs not supported"
    if not has_gpu():
        refused(driver, text, "register_cuda_shared_memory", "r", b"AAAA", 0, 64)
    assert driver.get("get_cuda_shared_memory_status") in ({}, [])
    refused(driver, "Unable to find cuda shared memory region: 'r'", "get_cuda_shared_memory_status", "r")
    driver.call("unregister_cuda_shared_memory", "r")
    driver.call("unregister_cuda_shared_memory")


def infer(driver: Driver) -> None:
    """With an id, metadata, compression, chosen outputs; and what is wrong with it."""
    result = driver.call("infer", "simple", driver.pair(), request_id="7", headers={"x-any": "thing"})
    check_sum(result)
    response = result.get_response()
    assert (response.id if driver.grpc else response["id"]) == "7"
    for algorithm in ("gzip", "deflate"):
        if driver.grpc:
            check_sum(driver.call("infer", "simple", driver.pair(), compression_algorithm=algorithm))
        else:
            both = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
            check_sum(driver.call("infer", "simple", driver.pair(), **both))
    only = [driver.module.InferRequestedOutput("OUTPUT1")]
    assert driver.call("infer", "simple", driver.pair(), outputs=only).get_output("OUTPUT0") is None
    refused(driver, "Request for unknown model: 'nope' is not found", "infer", "nope", driver.pair())
    refused(driver, "expected 2 inputs but got 1 inputs", "infer", "simple", driver.pair()[:1])
    if driver.grpc:
        error = refused(driver, "Deadline Exceeded", "infer", "slow", driver.slow(1), client_timeout=0.2)
        assert error.status() == "StatusCode.DEADLINE_EXCEEDED"
    assert driver.call("is_server_live")


def bodies(driver: Driver) -> None:
    """The client makes and reads bodies that another library sends."""
    body, json_length = driver.module.InferenceServerClient.generate_request_body(driver.pair())
    assert json_length is not None and len(body) == json_length + 128
    both = b'{"model_name":"simple","outputs":[{"name":"Y","datatype":"INT32","shape":[1],"data":[5]}]}'
    result = driver.module.InferenceServerClient.parse_response_body(both)
    assert result.as_numpy("Y").tolist() == [5]


def async_infer(driver: Driver) -> None:
    if not driver.grpc:
        pending = [driver.client.async_infer("simple", driver.pair()) for _ in range(8)]
        for each in pending:
            check_sum(each.get_result())
        return
    got: queue.Queue[Any] = queue.Queue()
    for _ in range(8):
        driver.client.async_infer("simple", driver.pair(), lambda result, error: got.put((result, error)))
    for _ in range(8):
        result, error = got.get(timeout=TIMEOUT_S)
        assert error is None
        check_sum(result)
    call = driver.client.async_infer("slow", driver.slow(1), lambda result, error: got.put((result, error)))
    call.cancel()
    assert got.get(timeout=TIMEOUT_S)[1].status() == "StatusCode.CANCELLED"


def stream(driver: Driver) -> None:
    """Answers in order, an error that does not end the stream, compression, cancellation."""
    got: queue.Queue[Any] = queue.Queue()
    for algorithm in (None, "gzip"):
        driver.client.start_stream(
            lambda result, error: got.put((result, error)),
            stream_timeout=TIMEOUT_S,
            headers={"x-any": "thing"},
            compression_algorithm=algorithm,
        )
        for i in range(4):
            model = "nope" if i == 2 else "simple"
            driver.client.async_stream_infer(model, driver.pair(), request_id=str(i))
        answers = [got.get(timeout=TIMEOUT_S) for _ in range(4)]
        driver.client.stop_stream()
        assert [result and result.get_response().id for result, _ in answers] == ["0", "1", None, "3"]
        assert answers[2][1].message() == "Request for unknown model: 'nope' is not found"
        check_sum(answers[3][0])
    driver.client.start_stream(lambda result, error: got.put((result, error)))
    driver.client.async_stream_infer("slow", driver.slow(1))
    driver.client.stop_stream(cancel_requests=True)
    assert got.get(timeout=TIMEOUT_S)[1].status() == "StatusCode.CANCELLED"


def aio_stream(driver: Driver) -> None:
    async def ask() -> list[Any]:
        async def requests() -> Any:
            for i in range(4):
                yield {"model_name": "simple", "inputs": driver.pair(), "request_id": str(i)}

        return [each async for each in driver.client.stream_infer(requests(), stream_timeout=TIMEOUT_S)]

    answers = driver.run(ask)
    assert [result.get_response().id for result, error in answers if error is None] == ["0", "1", "2", "3"]
    for result, _ in answers:
        check_sum(result)

    async def cancel() -> None:
        async def requests() -> Any:
            yield {"model_name": "slow", "inputs": driver.slow(1)}

        answers = driver.client.stream_infer(requests())
        assert answers.cancel()
        await anext(answers)

    with pytest.raises(asyncio.CancelledError):
        driver.run(cancel)
    assert driver.call("is_server_live")


def plugin(driver: Driver) -> None:
    """A plugin puts headers into requests."""
    called = []

    class Plugin(tritonclient.http.InferenceServerClientPlugin):  # type: ignore[misc]
        def __call__(self, request: Any) -> None:
            called.append(request.headers)
            request.headers["x-from-plugin"] = "yes"

    driver.client.register_plugin(Plugin())
    assert driver.client.plugin() is not None
    assert driver.call("is_server_live")
    assert called
    driver.client.unregister_plugin()
    assert driver.client.plugin() is None


def close(driver: Driver) -> None:
    assert driver.call("is_server_live")
    driver.call("close")


DRIVES: dict[Callable[[Driver], None], tuple[str, ...]] = {
    live: ("is_server_live",),
    ready: ("is_server_ready",),
    model_ready: ("is_model_ready",),
    server_metadata: ("get_server_metadata",),
    model_metadata: ("get_model_metadata",),
    model_config: ("get_model_config",),
    repository_index: ("get_model_repository_index",),
    load: ("load_model",),
    unload: ("unload_model",),
    statistics: ("get_inference_statistics",),
    trace_settings: ("get_trace_settings",),
    update_trace_settings: ("update_trace_settings",),
    log_settings: ("get_log_settings",),
    update_log_settings: ("update_log_settings",),
    system_regions: (
        "register_system_shared_memory",
        "get_system_shared_memory_status",
        "unregister_system_shared_memory",
    ),
    cuda_regions: ("register_cuda_shared_memory", "get_cuda_shared_memory_status", "unregister_cuda_shared_memory"),
    infer: ("infer",),
    bodies: ("generate_request_body", "parse_response_body"),
    async_infer: ("async_infer",),
    stream: ("start_stream", "async_stream_infer", "stop_stream"),
    aio_stream: ("stream_infer",),
    plugin: ("register_plugin", "plugin", "unregister_plugin"),
    close: ("close",),
}
"""What each of the functions above drives; it runs with the clients that have all of it."""


def public_methods(name: str) -> set[str]:
    client = MODULES[name].InferenceServerClient
    return {method for method, _ in inspect.getmembers(client, callable) if not method.startswith("_")}


RUNS = [(name, drive) for name in MODULES for drive, methods in DRIVES.items() if public_methods(name) >= set(methods)]


@pytest.mark.parametrize(("name", "drive"), RUNS, ids=[f"{name}-{drive.__name__}" for name, drive in RUNS])
def test_client_is_served(open_server: Server, name: str, drive: Callable[[Driver], None]) -> None:
    with Driver(name, open_server) as driver:
        drive(driver)


@pytest.mark.parametrize("name", MODULES)
def test_every_public_method_is_driven(name: str) -> None:
    driven = {method for run, drive in RUNS if run == name for method in DRIVES[drive]}
    assert driven == public_methods(name)


def test_every_shared_memory_helper_is_driven() -> None:
    helpers = {name for name, _ in inspect.getmembers(shm, inspect.isfunction) if not name.startswith("_")}
    assert helpers <= set(system_regions.__code__.co_names)


def test_http_client_gives_up_at_its_deadline(open_server: Server) -> None:
    with Driver("http", open_server) as driver:
        hasty = tritonclient.http.InferenceServerClient(open_server.address, network_timeout=0.2)
        with hasty, pytest.raises(TimeoutError):
            hasty.infer("slow", driver.slow(1))
        check_sum(driver.call("infer", "simple", driver.pair()))


@pytest.mark.parametrize("name", MODULES)
def test_headers_reach_the_model_as_parameters(open_server: Server, name: str) -> None:
    with Driver(name, open_server) as driver:
        wanted = driver.module.InferInput("X", [1], "INT32")
        wanted.set_data_from_numpy(np.array([5], np.int32))
        result = driver.call(
            "infer", "async_model", [wanted], headers={"x-tenant": "red", "x-other": "blue"}, parameters={"own": "1"}
        )
        info = json.loads(result.as_numpy("INFO")[0])
        assert {key.lower(): value for key, value in info["parameters"].items()} == {"x-tenant": "red", "own": "1"}


def test_shared_memory_that_shrinks_while_it_is_used_ends_no_process(open_server: Server) -> None:
    """A client makes its object smaller and larger, again and again, while models read and write it."""
    key, size = f"eagleray-test-{secrets.token_hex(8)}", 4 << 20
    path = Path("/dev/shm", key)
    path.write_bytes(bytes(2 * size))
    before, ended = open_server.replica_pids(), threading.Event()

    def shrink() -> None:
        while not ended.wait(random.random() / 200):
            os.truncate(path, random.choice((0, size, 2 * size)))

    shrinking = threading.Thread(target=shrink)
    try:
        with open_server.client() as client:
            register = f"/v2/systemsharedmemory/region/{key}/register"
            assert client.request("POST", register, {"key": key, "byte_size": 2 * size}).status == 200
            given = {"shared_memory_region": key, "shared_memory_byte_size": size}
            tensors = {
                "inputs": [{"name": "X", "datatype": "FP32", "shape": [size // 4], "parameters": given}],
                "outputs": [{"name": "Y", "parameters": given | {"shared_memory_offset": size}}],
            }
            assert client.request("POST", infer_path("floats"), tensors).status == 200
            shrinking.start()
            for _ in range(100):
                answer = client.request("POST", infer_path("floats"), tensors)
                assert answer.status == 200 or "is larger than its object" in answer.error
            ended.set()
            shrinking.join()
            os.truncate(path, 2 * size)
            for change in (f"/v2/systemsharedmemory/region/{key}/unregister", register):
                assert client.request("POST", change, {"key": key, "byte_size": 2 * size}).status == 200
            path.write_bytes(b"\1" * size + bytes(size))
            assert client.request("POST", infer_path("floats"), tensors).status == 200
            assert path.read_bytes() == b"\1" * 2 * size
            client.request("POST", f"/v2/systemsharedmemory/region/{key}/unregister")
    finally:
        ended.set()
        path.unlink()
    assert open_server.replica_pids() == before
