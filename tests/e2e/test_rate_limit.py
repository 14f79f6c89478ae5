"""The rate limiter over models in processes of their own."""

import itertools
import textwrap
import threading
from pathlib import Path

from tests.serving import Server, tensor, title_of

MODEL = """
    import os
    import time

    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            began = time.monotonic_ns()
            time.sleep(0.02 if requests[0].inputs()[0].as_numpy()[0] else 10)
            times = np.array([os.getpid(), began, time.monotonic_ns()], np.int64)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("TIMES", times)]) for _ in requests]
"""
CONFIG = """
    backend: "python"
    input {{ name: "GO" data_type: TYPE_INT32 dims: 1 }}
    output {{ name: "TIMES" data_type: TYPE_INT64 dims: 3 }}
    instance_group {{ kind: KIND_CPU rate_limiter {{ resources {{ name: "R" count: {count} }} }} }}
"""
GO = tensor("GO", "INT32", [1], [1])


def write_models(root: Path) -> Path:
    for name, count in (("first", 1), ("second", 1), ("greedy", 2)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "1/model.py").write_text(textwrap.dedent(MODEL))
        (root / name / "config.pbtxt").write_text(CONFIG.format(count=count))
    return root


def test_models_in_two_processes_with_one_resource_never_run_at_the_same_time(tmp_path: Path) -> None:
    flags = ("--rate-limit", "execution_count", "--rate-limit-resource", "R:1", "--num-cpus", "4", "--no-dashboard")
    server = Server(write_models(tmp_path / "models"), tmp_path / "log", *flags)
    try:
        server.wait_ready()
        reasons = {row["name"]: row.get("reason", "") for row in server.post("/v2/repository/index").json}
        assert 'Resource count for "R" is limited to 1 which will prevent scheduling' in reasons["greedy"], server.log()

        runs: list[tuple[int, int, int]] = []

        def ask(model: str) -> None:
            with server.client() as client:
                for _ in range(10):
                    answer = client.infer(model, GO)
                    assert answer.status == 200, answer.body
                    pid, began, ended = answer.json["outputs"][0]["data"]
                    runs.append((began, ended, pid))

        threads = [threading.Thread(target=ask, args=(model,)) for model in ("first", "second") * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(runs) == 40 and len({pid for _, _, pid in runs}) == 2
        assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(sorted(runs)))

        with server.client() as holding, server.client() as waiting:
            holding.send("POST", "/v2/models/first/infer", {"inputs": [tensor("GO", "INT32", [1], [0])]})
            server.statistics("first")  # comes after the request on every way that leads to the model
            waiting.send("POST", "/v2/models/second/infer", {"inputs": [GO]})
            server.statistics("second")
            title = "ray::ServeReplica:first"
            (holder,) = [process for process in server.descendants() if title_of(process).startswith(title)]
            holder.kill()
            assert waiting.receive().status == 200
        server.stop()
    finally:
        server.kill()
