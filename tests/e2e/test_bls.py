"""Python models that call others in processes of their own, load models, and count what they like."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import Answer, Server, tensor, wait_until

FLAGS = ("--model-control-mode", "explicit", "--placement", "packed", "--num-cpus", "6", "--no-dashboard")
LOADED = ("--load-model", "[!l]*")
PLACED = dict.fromkeys(("outer", "loads_lent", "lent", "starts_lent", "lent_first"), "embedded")
PLACED |= dict.fromkeys(("add_one", "countdown", "pong", "lone"), "isolated")
CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] }
"""
PLACEMENT = 'parameters { key: "eagleray.placement" value { string_value: "%s" } }'
DECOUPLED = "model_transaction_policy { decoupled: true }"
PRELUDE = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

def answer(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.asarray(array, np.int32))])

def request_to(name, request):
    return pb_utils.InferenceRequest(
        model_name=name, requested_output_names=["Y"], request_id=request.request_id(), inputs=request.inputs(),
        correlation_id=request.correlation_id(), flags=request.flags(),
    )

def outcome(response):
    if response.has_error():
        return pb_utils.InferenceResponse(error=response.error())
    return answer(response.output_tensors()[0].as_numpy())
"""
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        return [outcome(request_to(%r, r).exec()) for r in requests]
"""
SEVEN = "class TritonPythonModel:\n    def execute(self, requests): return [answer([7]) for r in requests]"
LOADER = """
class TritonPythonModel:
    def initialize(self, args):
        pb_utils.load_model(%r)
    def execute(self, requests):
        return [answer([8]) for r in requests]
"""
MODELS = {
    "add_one": """
        class TritonPythonModel:
            def initialize(self, args):
                family = pb_utils.MetricFamily("added_total", "What was added", pb_utils.MetricFamily.COUNTER)
                self.added = family.Metric(labels={"model": args["model_name"]})
            def execute(self, requests):
                self.added.increment(len(requests))
                return [answer(r.inputs()[0].as_numpy() + 1) for r in requests]
    """,
    "lazy": SEVEN,
    "caller": CALLER % "add_one",
    "outer": CALLER % "caller",
    "to_lazy": CALLER % "lazy",
    "to_itself": CALLER % "to_itself",
    "ping": CALLER % "pong",
    "pong": CALLER % "ping",
    "to_countdown": """
        class TritonPythonModel:
            def execute(self, requests):
                got = request_to("countdown", requests[0]).exec(decoupled=True)
                return [answer([int(t.as_numpy()[0]) for r in got for t in r.output_tensors()])]
    """,
    "countdown": """
        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    sender = request.get_response_sender()
                    for number in range(int(request.inputs()[0].as_numpy()[0]), 0, -1):
                        sender.send(answer([number]))
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """,
    "manager": """
        class TritonPythonModel:
            def execute(self, requests):
                ready = [pb_utils.is_model_ready("lazy")]
                pb_utils.load_model("lazy")
                ready.append(pb_utils.is_model_ready("lazy"))
                pb_utils.unload_model("lazy")
                return [answer(ready) for r in requests]
    """,
    "starts_later": LOADER % "later_first",
    "later_first": SEVEN,
    "starts_lent": LOADER % "lent_first",
    "lent_first": SEVEN,
    "loads_later": LOADER % "later",
    "later": SEVEN,
    "loads_lent": LOADER % "lent",
    "lent": SEVEN,
    "loads_lone": LOADER % "lone",
    "lone": SEVEN,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root: Path = tmp_path_factory.mktemp("bls")
    for name, code in MODELS.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(PRELUDE + textwrap.dedent(code))
        more = PLACEMENT % PLACED.get(name, "packed") + (DECOUPLED if name == "countdown" else "")
        (root / name / "config.pbtxt").write_text(CONFIG + more)
    started = Server(root, tmp_path_factory.mktemp("bls-log") / "log", *FLAGS, *LOADED)
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


def ask(server: Server, name: str, *values: int) -> Answer:
    return server.infer(name, tensor("X", "INT32", [len(values)], list(values)))


def data(answer: Answer) -> list[int]:
    assert answer.status == 200, answer.body
    return list(answer.json["outputs"][0]["data"])


def test_a_model_calls_models_of_other_processes(server: Server) -> None:
    assert data(ask(server, "outer", 1, 2)) == [2, 3]
    assert 'added_total{model="add_one"} 1' in server.metrics_text().splitlines()
    assert data(ask(server, "to_countdown", 3)) == [3, 2, 1]


def test_models_that_would_wait_for_each_other_are_told_so(server: Server) -> None:
    for name, chain in (("to_itself", "to_itself -> to_itself"), ("ping", "ping -> pong -> ping")):
        refused = ask(server, name, 1)
        assert refused.status == 400 and refused.error.endswith(f"an instance of its own that waits for it: {chain}")


def test_a_model_loads_and_unloads_others(server: Server) -> None:
    refused = ask(server, "to_lazy", 1)
    assert refused.error == "Failed for execute the inference request. Model 'lazy' is not ready."
    assert data(ask(server, "manager", 1)) == [0, 1]
    wait_until(lambda: ask(server, "to_lazy", 1).status != 200, "the end of lazy")
    assert server.post("/v2/repository/models/lazy/load").status == 200
    assert data(wait_until(lambda: found if (found := ask(server, "to_lazy", 1)).status == 200 else None, "lazy")) == [
        7
    ]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["later", "lent"])
def test_a_model_that_is_loaded_when_its_process_starts_loads_another_of_that_process(
    server: Server, name: str
) -> None:
    assert (data(ask(server, f"starts_{name}", 1)), data(ask(server, f"{name}_first", 1))) == ([8], [7])


@pytest.mark.parametrize("name", ["later", "lent", "lone"])
def test_a_model_loads_another_while_it_is_loading(server: Server, name: str) -> None:
    """In its own process, packed and embedded, and in another."""
    assert server.post(f"/v2/repository/models/loads_{name}/load").status == 200
    assert (data(ask(server, f"loads_{name}", 1)), data(ask(server, name, 1))) == ([8], [7])
