"""Our HTTP/2 beside grpcio's server (grpc.aio): each answers ModelInfer with a constant, in a process of its own.

    python -m benchmarks.grpc_servers

prints a table for `docs/grpc.md`: medians of rounds in turn, CPU of the server's process. `h2load` must be installed.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import uvloop
from tritonclient.grpc import service_pb2 as pb

from app.grpc.front import GrpcFront
from app.grpc.options import GrpcOptions
from app.service.service import Service
from benchmarks.measure import read_process

METHOD = "/inference.GRPCInferenceService/ModelInfer"
CONCURRENCIES = (1, 16, 64)
ROUNDS = 3
DURATION_S = 3
_RAW = bytes(64)
_REQUEST = pb.ModelInferRequest(
    model_name="mlp",
    inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 16]}],
    raw_input_contents=[_RAW],
).SerializeToString()
_RESPONSE: bytes = pb.ModelInferResponse(
    model_name="mlp",
    model_version="1",
    outputs=[{"name": "y", "datatype": "FP32", "shape": [1, 16]}],
    raw_output_contents=[_RAW],
).SerializeToString()


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    requests_per_s: float
    cpu_us: float
    """CPU time of the server for one request."""


class ConstantTarget:
    """Answers every request with the same response, at once."""

    version = 1
    ready = True

    def submit(self, parts: Sequence[Any], json_length: int | None, sink: Any, wire: int = 0) -> Any:
        sink.on_response(None, (_RESPONSE,), True)

    def cancel(self, token: Any) -> None:
        """Nothing is ever under way."""


async def serve_own() -> int:
    target = ConstantTarget()
    routing = SimpleNamespace(infer_target=lambda name, version: target, decoupled=lambda name: False)
    front = GrpcFront(cast(Service, SimpleNamespace(routing=routing)), GrpcOptions(), asyncio.get_running_loop())
    return await front.listen("127.0.0.1", 0)


async def serve_grpcio() -> int:
    async def infer(request: bytes, context: Any) -> bytes:
        return _RESPONSE

    handler = grpc.method_handlers_generic_handler(
        "inference.GRPCInferenceService", {"ModelInfer": grpc.unary_unary_rpc_method_handler(infer)}
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port: int = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _kept.append(server)  # it stops when it is collected
    return port


_kept: list[Any] = []
SERVERS = {"own HTTP/2": serve_own, "grpc.aio": serve_grpcio}


async def serve(name: str) -> None:
    """Serve until the process is ended; prints the port first."""
    print(await SERVERS[name](), flush=True)
    await asyncio.Event().wait()


def measure(port: int, pid: int, concurrency: int, body: Path) -> Row:
    command = ["h2load", "-t1", "-c", str(concurrency), "-m1", "-D", str(DURATION_S), "-d", str(body)]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"http://127.0.0.1:{port}{METHOD}"]
    before = read_process(pid)
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    after = read_process(pid)
    assert before is not None
    assert after is not None
    count = int(output.partition("status codes: ")[2].split()[0])
    return Row(count / DURATION_S, (after.cpu_s - before.cpu_s) * 1e6 / count)


def main() -> None:
    body = Path(tempfile.mkdtemp()) / "request"
    body.write_bytes(b"\0" + len(_REQUEST).to_bytes(4, "big") + _REQUEST)
    servers: dict[str, tuple[subprocess.Popen[str], int]] = {}
    rows: dict[tuple[str, int], list[Row]] = {}
    try:
        for name in SERVERS:
            command = [sys.executable, "-m", "benchmarks.grpc_servers", name]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            servers[name] = process, int(process.stdout.readline())
        for _ in range(ROUNDS):
            for concurrency in CONCURRENCIES:
                for name, (process, port) in servers.items():
                    rows.setdefault((name, concurrency), []).append(measure(port, process.pid, concurrency, body))
    finally:
        for process, _ in servers.values():
            process.terminate()
            process.wait(10)
        body.unlink()
        body.parent.rmdir()
    print(f"| server | req/s at c = {' / '.join(map(str, CONCURRENCIES))} | CPU µs per request |")
    print("|---|---|---|")
    for name in SERVERS:
        medians = [rows[name, concurrency] for concurrency in CONCURRENCIES]
        rates = [f"{statistics.median(row.requests_per_s for row in each):,.0f}" for each in medians]
        costs = [f"{statistics.median(row.cpu_us for row in each):.1f}" for each in medians]
        print(f"| {name}, constant answer | {' / '.join(rates)} | {' / '.join(costs)} |")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        uvloop.run(serve(sys.argv[1]))
    else:
        main()
