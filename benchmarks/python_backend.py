"""`python -m benchmarks.python_backend`: what only Python models do, beside Triton's Python backend: sequences, many
responses to one request, several instances that hold the interpreter.
"""

import asyncio
import json
import os
import statistics
import struct
import tempfile
import time
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import cast

import click
import uvloop
from tritonclient.grpc import service_pb2

from benchmarks.awake import awake
from benchmarks.body import Body
from benchmarks.home import Home, PreparationError, prepare
from benchmarks.load import LoadError, measure
from benchmarks.peers import Peer, PeerError, eagleray, triton
from benchmarks.rows import Work

SEQUENCES = 200
LENGTH = 20
"""Requests of a sequence."""
RESPONSES = 1000
STREAMS = 4
STREAM_S = 12.0
BUSY_MS = 5
INSTANCES = 4
BUSY_CLIENTS = 16
CORES = f"cores of {INSTANCES} instances that hold the interpreter"

HEAD = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


def given(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def answer(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)])

"""
ACCUMULATE = (
    HEAD
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            corrid = int(given(request, "CORRID").flat[0])
            total = given(request, "X")
            if not given(request, "START").flat[0]:
                total = total + self.sums[corrid]
            self.sums[corrid] = total
            if given(request, "END").flat[0]:
                del self.sums[corrid]
            responses.append(answer(total))
        return responses
"""
)
REPEAT = (
    HEAD
    + """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, x = request.get_response_sender(), given(request, "X")
            for _ in range(int(x.flat[0])):
                sender.send(answer(x))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)
HOLD = (
    HEAD
    + f"""
class TritonPythonModel:
    def execute(self, requests):
        for _ in requests:
            ends_s = time.thread_time() + {BUSY_MS / 1000}
            while time.thread_time() < ends_s:
                pass
        return [answer(given(request, "X")) for request in requests]
"""
)
TENSORS = """
backend: "python"
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "Y" data_type: TYPE_INT32 dims: 1 }
"""
ACCUMULATE_CONFIG = (
    TENSORS
    + """
max_batch_size: 64
instance_group { kind: KIND_CPU count: 1 }
sequence_batching {
  oldest { max_candidate_sequences: 256 }
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }
  control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
}
"""
)
REPEAT_CONFIG = TENSORS + "instance_group { kind: KIND_CPU count: 1 }\nmodel_transaction_policy { decoupled: true }\n"
HOLD_CONFIG = TENSORS + f"instance_group {{ kind: KIND_CPU count: {INSTANCES} }}\n"
MODELS = {
    "accumulate": (ACCUMULATE, ACCUMULATE_CONFIG),
    "repeat": (REPEAT, REPEAT_CONFIG),
    "hold": (HOLD, HOLD_CONFIG),
}


def write_repository(root: Path) -> None:
    for name, (code, config) in MODELS.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "1/model.py").write_text(code)
        (root / name / "config.pbtxt").write_text(f'name: "{name}"\n{config}')


def document(number: int, **parameters: object) -> dict[str, object]:
    return {
        "inputs": [{"name": "X", "datatype": "INT32", "shape": [1, 1] if parameters else [1], "data": [number]}],
        **({"parameters": parameters} if parameters else {}),
    }


class SequenceClient(asyncio.Protocol):
    """Sends one sequence after the other, a request at a time, and checks the sum at the end of each."""

    def __init__(self, number: int) -> None:
        self._sequence_id = number * 1_000_000
        self._at = 0
        self._waiting = bytearray()
        self.answered = 0
        self.wrong = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._send()

    def _send(self) -> None:
        if self._at == 0:
            self._sequence_id += 1
        ends = {"sequence_start": self._at == 0, "sequence_end": self._at == LENGTH - 1}
        body = json.dumps(document(1, sequence_id=self._sequence_id, **ends))
        head = f"POST /v2/models/accumulate/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write((head + body).encode())

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        head_length = self._waiting.find(b"\r\n\r\n") + 4
        if head_length < 4:
            return
        head = self._waiting[:head_length].lower()
        at = head.find(b"content-length:") + 15
        end = head_length + int(head[at : head.find(b"\r", at)])
        if len(self._waiting) < end:
            return
        self._at += 1
        self.wrong += not head.startswith(b"http/1.1 200")
        if self._at == LENGTH:
            self.wrong += json.loads(self._waiting[head_length:end])["outputs"][0]["data"] != [LENGTH]
            self._at = 0
        self._waiting.clear()
        self.answered += 1
        self._send()


async def sequences(port: int, duration_s: float) -> float:
    """Return requests per second of 200 live sequences."""
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(partial(SequenceClient, at + 1), "127.0.0.1", port) for at in range(SEQUENCES)]
    clients = [client for _, client in made]
    await asyncio.sleep(1.0)
    before, started_s = sum(client.answered for client in clients), time.monotonic()
    await asyncio.sleep(duration_s)
    rate = (sum(client.answered for client in clients) - before) / (time.monotonic() - started_s)
    for transport, _ in made:
        transport.abort()
    if wrong := sum(client.wrong for client in clients):
        raise LoadError(f"{wrong} answers to requests of sequences are wrong")
    return rate


def json_body(model: str, folder: Path, number: int) -> Body:
    file = folder / f"{model}.json"
    file.write_text(json.dumps(document(number)))
    return Body(file, f"/v2/models/{model}/infer", {"Content-Type": "application/json"})


def stream_body(folder: Path) -> Body:
    """Write a gRPC stream of one request for many responses."""
    request = service_pb2.ModelInferRequest(model_name="repeat")
    request.inputs.add(name="X", datatype="INT32", shape=[1])
    request.raw_input_contents.append(struct.pack("<i", RESPONSES))
    message = request.SerializeToString()
    file = folder / "repeat.stream"
    file.write_bytes(struct.pack(">BI", 0, len(message)) + message)
    path = "/inference.GRPCInferenceService/ModelStreamInfer"
    return Body(file, path, {"content-type": "application/grpc", "te": "trailers"})


def responses(peer: Peer, folder: Path, duration_s: float) -> float:
    """Return responses per second, of requests that have a thousand each."""
    url = f"{peer.http_url}/v2/models/repeat/generate_stream"
    with urllib.request.urlopen(url, json.dumps({"X": [RESPONSES]}).encode(), timeout=60) as events:
        count = sum(line.startswith(b"data:") for line in events)
    if count != RESPONSES:
        raise LoadError(f"{peer.name} sent {count} responses in place of {RESPONSES}")
    body = stream_body(folder)
    # Only whole requests are counted, and one of them may take seconds.
    return RESPONSES * measure(peer, Work("repeat", "grpc", STREAMS), body, body, max(duration_s, STREAM_S)).throughput


def held(peer: Peer, folder: Path, duration_s: float) -> float:
    """Return the cores' worth of computing that the instances did."""
    body = json_body("hold", folder, 1)
    return measure(peer, Work("hold", "http", BUSY_CLIENTS), body, body, duration_s).throughput * BUSY_MS / 1000


def spin(ends_s: float) -> int:
    """Compute as a request to `hold` does, again and again until a monotonic time, and return how often."""
    count = 0
    while time.monotonic() < ends_s:
        spun_s = time.thread_time() + BUSY_MS / 1000
        while time.thread_time() < spun_s:
            pass
        count += 1
    return count


def bare(duration_s: float) -> float:
    """Return the cores' worth of computing that bare processes do, as many as there are instances, and nothing else."""
    with ProcessPoolExecutor(INSTANCES) as processes:
        counts = processes.map(spin, [time.monotonic() + duration_s] * INSTANCES)
        return sum(counts) * BUSY_MS / 1000 / duration_s


def figures(peer: Peer, folder: Path, duration_s: float) -> dict[str, float]:
    return {
        f"requests/s of {SEQUENCES} sequences": uvloop.run(sequences(peer.port, duration_s)),
        f"responses/s, {RESPONSES} to a request": responses(peer, folder, duration_s),
        CORES: held(peer, folder, duration_s),
    }


@click.command(help=__doc__)
@click.option("--rounds", default=3, show_default=True, help="Rounds; medians are shown.")
@click.option("--duration", "duration_s", default=4.0, show_default=True, help="Seconds of each measurement.")
@click.option("--placement", default="isolated", show_default=True)
@click.option("--triton-port", default=18000, show_default=True, help="HTTP; the next two are taken too.")
@click.option("--eagleray-port", default=18100, show_default=True, help="HTTP; the next two are taken too.")
def main(rounds: int, duration_s: float, placement: str, triton_port: int, eagleray_port: int) -> None:
    home = Home.from_environment()
    taken: dict[str, dict[str, list[float]]] = {}
    cores: list[float] = []
    try:
        prepare(home, {"wrk", "h2load"})
        with awake(), tempfile.TemporaryDirectory(prefix="eagleray-python-") as name:
            folder = Path(name)
            write_repository(folder / "models")
            for number in range(rounds):
                peers = [
                    triton(home, list(MODELS), triton_port, folder / "models"),
                    eagleray(home, folder / "models", placement, list(MODELS), eagleray_port, None),
                ]
                cores.append(bare(duration_s))
                for peer in peers if number % 2 == 0 else reversed(peers):
                    with peer:
                        for what, figure in figures(peer, folder, duration_s).items():
                            taken.setdefault(what, {}).setdefault(peer.name, []).append(figure)
    except (PreparationError, PeerError, LoadError) as error:
        raise click.ClickException(str(error)) from error
    for what, of in taken.items():
        theirs, ours = (statistics.median(of[peer.name]) for peer in peers)
        click.echo(f"{what}: {ours:,.2f}, Triton {theirs:,.2f}, ratio {ours / theirs:.2f}")
        if what == CORES:
            worth = statistics.median(cores)
            click.echo(f"  bare processes: {worth:.2f}, of which {ours / worth:.2f}, Triton {theirs / worth:.2f}")
    click.echo(f"of {os.cpu_count()} cores; medians of {rounds} rounds of {duration_s:g} s, {placement}")


if __name__ == "__main__":
    main()
