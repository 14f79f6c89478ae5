"""Clients that ask at a fixed rate, check every answer, and connect anew when their connection breaks."""

import asyncio
import itertools
import json
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE_S = 30.0
QUICK_S = 0.5
"""An answer within it is as quick as if nothing had happened."""
REQUESTS_PER_CONNECTION = 50
"""After so many a client connects anew, so that an ingress that was started meanwhile is asked too."""
MODEL = """
import os
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        pid = np.array([os.getpid()], np.int64)
        answers = []
        for request in requests:
            time.sleep(PAUSE_S)
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            told(int(x[0]))
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", 2 * x), pb_utils.Tensor("PID", pid)]))
        return answers
"""
CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "Y" data_type: TYPE_INT32 dims: 1 }
output { name: "PID" data_type: TYPE_INT64 dims: 1 }
"""


def write_doubles(root: Path, name: str, config: str = "", pause_s: float = 0.0, told: str = "pass") -> None:
    """Write a model for such clients, which takes its time; `told` is what it does about each number `x`."""
    folder = root / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    code = f"PAUSE_S = {pause_s}\n{MODEL}\n\ndef told(x):\n{textwrap.indent(textwrap.dedent(told), ' ' * 4)}\n"
    (folder / "model.py").write_text(code)
    (root / name / "config.pbtxt").write_text(CONFIG + config)


@dataclass
class Outcome:
    """What became of the requests; `pids` are those of the processes that answered, in order.

    `answered` holds when each request with an answer was due, and how long that took, in seconds; `refusals` when those
    were due that got 503 with `Retry-After`, and `wrong` names everything else. `late_s` is how late the client itself
    was at most, in each second.
    """

    sent: int = 0
    answered: list[tuple[float, float]] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    reconnects: int = 0
    wrong: list[str] = field(default_factory=list)
    late_s: dict[int, float] = field(default_factory=dict)

    def quantile_s(self, share: float) -> float:
        """Return the time that this share of the answers took at most."""
        taken = sorted(took_s for _, took_s in self.answered)
        return taken[int(share * (len(taken) - 1))] if taken else 0.0

    @property
    def refused(self) -> int:
        return len(self.refusals)

    @property
    def own_delay_s(self) -> float:
        """How long the client itself stood still at most; answers that came meanwhile waited for it."""
        return max(self.late_s.values(), default=0.0)

    def recovered_s(self, since_s: float) -> float:
        """Return how long after this time the last request was due that was refused, or waited for long."""
        late = [at_s for at_s, took_s in self.answered if took_s > QUICK_S]
        return max((at_s - since_s for at_s in (*late, *self.refusals) if at_s > since_s), default=0.0)

    def history(self) -> str:
        """Tell of each second how many requests were due and refused, and how many answers came."""
        due = Counter(int(at_s) for at_s, _ in self.answered)
        refused = Counter(map(int, self.refusals))
        came = Counter(int(at_s + took_s) for at_s, took_s in self.answered)
        first, last = min(due | refused, default=0), max(due | refused | came, default=-1)
        seconds = range(first, last + 1)
        return "\n".join(
            f"second {at - first}: {due[at] + refused[at]} due, {refused[at]} of them refused, {came[at]} answers, "
            f"the client {1e3 * self.late_s.get(at, 0.0):.0f} ms late"
            for at in seconds
        )

    def __str__(self) -> str:
        quantiles = ", ".join(
            f"{name} {1e3 * self.quantile_s(share):.1f} ms"
            for name, share in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0))
        )
        return (
            f"{self.sent} requests, {len(self.answered)} answered, {self.refused} refused, {len(self.wrong)} wrong, "
            f"{self.reconnects} connections broke; {quantiles}"
        )


class CheckedLoad:
    """Asks a model for twice a number (its output Y), `rate` times a second, which may change, over some connections.

    A request whose connection breaks before its answer is sent again on a new connection, for up to `patience_s`.
    """

    def __init__(
        self, port: int, model: str, rate: float, connections: int = 16, patience_s: float = PATIENCE_S
    ) -> None:
        self.rate = rate
        self._patience_s = patience_s
        self.outcome = Outcome()
        self._port = port
        self._model = model
        self._connections = connections
        self._stop = threading.Event()
        self._under_way: dict[int, str] = {}

    @contextmanager
    def running(self) -> Iterator[Outcome]:
        """Ask until the block ends; then every request has been answered."""
        thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        thread.start()
        try:
            yield self.outcome
        finally:
            self._stop.set()
            thread.join(3 * PATIENCE_S)
            assert not thread.is_alive(), f"requests without an answer: {self._under_way}"

    async def _run(self) -> None:
        due: asyncio.Queue[tuple[int, float] | None] = asyncio.Queue()
        connections = [asyncio.create_task(self._connection(due)) for _ in range(self._connections)]
        at_s = time.monotonic()
        for number in itertools.count():
            await asyncio.sleep(max(0.0, at_s - time.monotonic()))
            if self._stop.is_set():
                break
            second, late_s = int(at_s), time.monotonic() - at_s
            self.outcome.late_s[second] = max(late_s, self.outcome.late_s.get(second, 0.0))
            due.put_nowait((number, at_s))
            at_s += 1 / self.rate
        for _ in connections:
            due.put_nowait(None)
        await asyncio.gather(*connections)

    async def _connection(self, due: "asyncio.Queue[tuple[int, float] | None]") -> None:
        stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        answers = 0
        while (next_one := await due.get()) is not None:
            number, at_s = next_one
            self.outcome.sent += 1
            self._under_way[number] = "not sent"
            ends_s = time.monotonic() + self._patience_s
            while True:
                try:
                    stream = stream or await asyncio.open_connection("127.0.0.1", self._port)
                    self._under_way[number] = f"sent from {stream[1].get_extra_info('sockname')}"
                    head, body = await _exchange(stream, self._request(number))
                except OSError as error:
                    self.outcome.reconnects += stream is not None
                    stream = None
                    if time.monotonic() > ends_s:
                        self.outcome.wrong.append(f"request {number}: {error!r}")
                        break
                    await asyncio.sleep(0.01)
                else:
                    self._take(number, head, body, at_s)
                    answers += 1
                    break
            if stream is not None and answers % REQUESTS_PER_CONNECTION == 0:
                stream[1].close()
                stream = None
            del self._under_way[number]
        if stream is not None:
            stream[1].close()

    def _request(self, number: int) -> bytes:
        body = json.dumps({"inputs": [{"name": "X", "datatype": "INT32", "shape": [1], "data": [number]}]})
        path = f"/v2/models/{self._model}/infer"
        return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()

    def _take(self, number: int, head: bytes, body: bytes, at_s: float) -> None:
        status = int(head.split()[1])
        outputs = {each["name"]: each["data"][0] for each in json.loads(body)["outputs"]} if status == 200 else {}
        if status == 503 and b"\r\nretry-after:" in head.lower():
            self.outcome.refusals.append(at_s)
        elif outputs.get("Y") == 2 * number:
            self.outcome.answered.append((at_s, time.monotonic() - at_s))
            self.outcome.pids.append(outputs["PID"])
        else:
            self.outcome.wrong.append(f"request {number}: {status} {body[:200]!r}")


async def _exchange(stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes) -> tuple[bytes, bytes]:
    """Return an answer's head and body.

    Raises:
        OSError: the connection broke.
    """
    reader, writer = stream
    writer.write(request)
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        return head, await reader.readexactly(length)
    except asyncio.IncompleteReadError as error:
        raise ConnectionResetError("the connection was closed") from error
