"""A model that may have no replica has one when it is loaded, and when somebody asks it."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.e2e.control.test_unloads import PARAMETER, Held, send, tags
from tests.serving import Server, tensor, wait_until

CODE = """
import os
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        while os.path.exists(%r):
            time.sleep(0.01)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TAG", np.array([%d], np.int32))]) for _ in requests]
"""
RULES: Mapping[str, int] = {"min_replicas": 0, "max_replicas": 1, "downscale_delay_s": 1}
LONGER_S = 6.0
"""Than it takes until a model that nobody asks has no replica."""


def sleeping(repository: Path, name: str, **rules: int) -> Held:
    model = Held(repository, name, code=CODE)
    model.configure("".join(PARAMETER % (f"autoscaling.{each}", value) for each, value in {**RULES, **rules}.items()))
    return model


def wait_asleep(server: Server, name: str) -> None:
    wait_until(lambda: server.replica_count(name) == 0, "no replica", 30)


def test_a_load_waits_for_a_first_replica_and_a_request_does_until_the_model_is_unloaded(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    model = sleeping(repository, "loads_long")
    model.hold()
    with ThreadPoolExecutor(1) as pool, http_client.InferenceServerClient(server.address, network_timeout=60) as loader:
        loaded = pool.submit(loader.load_model, "loads_long")
        with pytest.raises(TimeoutError):
            loaded.result(LONGER_S)
        model.let_go()
        loaded.result(60)
    wait_asleep(server, "loads_long")
    model.hold()
    with ExitStack() as stack:
        (asking,) = send(stack, server, "loads_long", 1)
        time.sleep(LONGER_S)
        triton.unload_model("loads_long")
        assert asking.receive().status == 503
    model.let_go()


def test_a_reload_tries_a_model_that_has_no_replica(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    sleeping(repository, "sleeps")
    triton.load_model("sleeps")
    wait_asleep(server, "sleeps")
    code = repository / "sleeps" / "1" / "model.py"
    right = code.read_text()
    code.write_text(right.replace("while os.path", "raise ValueError('it is broken')\n        while os.path"))
    with pytest.raises(InferenceServerException, match="it is broken"):
        triton.load_model("sleeps")
    code.write_text(right)
    triton.load_model("sleeps")
    wait_asleep(server, "sleeps")
    with ExitStack() as stack:
        assert tags(send(stack, server, "sleeps", 1)) == {1}
    triton.unload_model("sleeps")


def test_a_model_whose_replicas_fail_to_start_has_the_reason_and_is_tried_while_somebody_asks(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    sleeping(repository, "fails_awake")
    triton.load_model("fails_awake")
    wait_asleep(server, "fails_awake")
    starts = repository.parent / "starts"
    code = repository / "fails_awake" / "1" / "model.py"
    right = code.read_text()
    fails = f"open({str(starts)!r}, 'a').write('.'); raise ValueError('there is no weight')"
    code.write_text(right.replace("while os.path", f"{fails}\n        while os.path"))

    def state() -> tuple[str, bool, bool]:
        state, reason = server.states("fails_awake")["1"]
        return state, "there is no weight" in reason, triton.is_model_ready("fails_awake")

    with ExitStack() as stack:
        clients = send(stack, server, "fails_awake", 1)
        wait_until(lambda: state() == ("UNAVAILABLE", True, False), "the reason", 30)
        code.write_text(right)
        assert tags(clients) == {1}
    wait_until(lambda: state() == ("READY", False, True), "ready again", 30)
    wait_asleep(server, "fails_awake")
    code.write_text(right.replace("while os.path", f"{fails}\n        while os.path"))
    with ExitStack() as stack:
        send(stack, server, "fails_awake", 1)
        wait_until(lambda: state() == ("UNAVAILABLE", True, False), "the reason", 30)
    wait_until(lambda: state() == ("READY", False, True), "nobody asks", 30)
    wait_asleep(server, "fails_awake")
    count = starts.stat().st_size
    time.sleep(LONGER_S)
    assert starts.stat().st_size == count
    triton.unload_model("fails_awake")


def test_a_replica_loads_to_its_end_though_who_waited_for_it_is_gone(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    model = sleeping(repository, "wakes_slowly", start_timeout_s=1)
    triton.load_model("wakes_slowly")
    wait_asleep(server, "wakes_slowly")
    model.hold()
    with ExitStack() as stack:
        (asking,) = send(stack, server, "wakes_slowly", 1)
        assert asking.receive().json == {"error": "no replica of model 'wakes_slowly' has started in time"}
    time.sleep(LONGER_S)
    assert server.replica_count("wakes_slowly") == 1
    model.let_go()
    wait_asleep(server, "wakes_slowly")
    triton.unload_model("wakes_slowly")


def test_requests_that_are_answered_at_once_keep_a_replica(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    sleeping(repository, "asked_often")
    triton.load_model("asked_often")
    x = tensor("X", "INT32", [1], [0])
    with server.client() as client:
        assert client.infer("asked_often", x).status == 200
        until_s = time.monotonic() + LONGER_S
        while time.monotonic() < until_s:
            assert (client.infer("asked_often", x).status, server.replica_count("asked_often")) == (200, 1)
            time.sleep(0.3)
    wait_asleep(server, "asked_often")
    triton.unload_model("asked_often")


def test_a_request_that_does_not_wait_has_a_replica_started(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    sleeping(repository, "waits_for_nothing", start_timeout_s=0)
    triton.load_model("waits_for_nothing")
    wait_asleep(server, "waits_for_nothing")
    x = tensor("X", "INT32", [1], [0])
    assert server.infer("waits_for_nothing", x).status == 503
    wait_until(lambda: server.infer("waits_for_nothing", x).status == 200, "a replica", 30)
    triton.unload_model("waits_for_nothing")
