"""Warm-up of decoupled models, whose responses come when `execute` has long returned."""

import asyncio
import textwrap
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import ModelLoadError
from deployments.core import loader
from deployments.core.clock import LoopClock
from deployments.core.core import Core
from deployments.core.model_version import ModelVersion
from repository_loader.normalisation import normalise
from repository_loader.package import InstanceSpec, ModelPackage

CONFIG = """
backend: "%s" model_transaction_policy { decoupled: true }
input { name: "IN" data_type: TYPE_INT32 dims: 1 } output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
model_warmup { name: "w" batch_size: 1 count: 2 inputs { key: "IN" value { data_type: TYPE_INT32 dims: 1 zero_data: true } } }
"""
LATE = """
    import threading
    import time
    from pathlib import Path
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            threading.Thread(target=self.end, args=(requests[0].get_response_sender(),)).start()

        def end(self, sender):
            time.sleep(0.2)
            with Path(__file__).with_name("ended").open("a") as ended:
                ended.write("x")
            %s
"""
ENDS = "sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)"
FAILS = "sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError('cold')))"
DIES = "__import__('os')._exit(3)"


async def loaded(folder: Path, backend: str, own_process: bool = False, more: str = "") -> ModelVersion:
    config = text_format.Parse(CONFIG % backend + more, ModelConfig())
    config.name = "m"
    list(normalise(config, ()))
    clock = LoopClock(asyncio.get_running_loop())
    package = ModelPackage("m", 1, config, str(folder), str(folder), str(folder / "model.py"))
    return await loader.load(package, [InstanceSpec("m_0", "CPU", 0, own_process=own_process)], clock, Core(clock))


@pytest.mark.parametrize("own_process", [False, True], ids=["here", "process"])
def test_a_model_is_loaded_when_its_samples_are_answered_to_the_end(tmp_path: Path, own_process: bool) -> None:
    (tmp_path / "model.py").write_text(textwrap.dedent(LATE % ENDS))

    async def run() -> None:
        version = await loaded(tmp_path, "python", own_process=own_process)
        assert (tmp_path / "ended").read_text() == "xx"
        assert (version.statistics.counts.success_count, version.statistics.counts.execution_count) == (2, 2)
        await version.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("ends", "own_process", "told"),
    [(FAILS, False, "cold"), (FAILS, True, "cold"), (DIES, True, "ended with exit code 3")],
    ids=["here", "process", "death"],
)
def test_a_sample_that_fails_while_it_is_answered_fails_the_load(
    tmp_path: Path, ends: str, own_process: bool, told: str
) -> None:
    (tmp_path / "model.py").write_text(textwrap.dedent(LATE % ends))
    with pytest.raises(ModelLoadError, match=f"failed to run warmup sample 'w': .*{told}"):
        asyncio.run(loaded(tmp_path, "python", own_process=own_process))


def test_a_backend_whose_responses_the_loop_sends_is_warmed_up(tmp_path: Path) -> None:
    async def run() -> None:
        version = await loaded(tmp_path, "square")
        assert version.statistics.counts.success_count == 2
        await version.close()

    asyncio.run(run())


@pytest.mark.parametrize("own_process", [False, True], ids=["here", "process"])
def test_an_input_that_is_not_declared_reaches_a_python_model(tmp_path: Path, own_process: bool) -> None:
    more = """
        from pathlib import Path
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                tensor = pb_utils.get_input_tensor_by_name(requests[0], "MORE")
                Path(__file__).with_name("shape").write_text(str(tensor and tensor.shape()))
                requests[0].get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    (tmp_path / "model.py").write_text(textwrap.dedent(more))
    sample = """model_warmup { name: "more" batch_size: 1
        inputs { key: "IN" value { data_type: TYPE_INT32 dims: 1 zero_data: true } }
        inputs { key: "MORE" value { data_type: TYPE_STRING dims: [ 2, 3 ] zero_data: true } } }"""

    async def run() -> None:
        version = await loaded(tmp_path, "python", own_process=own_process, more=sample)
        assert (tmp_path / "shape").read_text() == "[2, 3]"
        await version.close()

    asyncio.run(run())


@pytest.mark.parametrize("own_process", [False, True], ids=["here", "process"])
def test_a_sample_that_is_to_run_again_is_over(tmp_path: Path, own_process: bool) -> None:
    again = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
    """
    (tmp_path / "model.py").write_text(textwrap.dedent(again))

    async def run() -> None:
        iterative = "sequence_batching { iterative_sequence: true }"
        version = await loaded(tmp_path, "python", own_process=own_process, more=iterative)
        assert version.statistics.counts.execution_count == 2
        await version.close()

    asyncio.run(run())
