"""Models loaded once, in processes of their own."""

import textwrap
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.replica.hosted_model import HostedModel
from deployments.replica.trial_load import try_load
from repository_loader.package import InstanceSpec, ModelPackage

TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }'
GIB = 1 << 30


@pytest.fixture
def hosted(tmp_path):
    def make(initialize: str, config: str = "") -> HostedModel:
        version = tmp_path / "m" / "1"
        version.mkdir(parents=True)
        body = textwrap.indent(textwrap.dedent(initialize), "        ")
        code = "class TritonPythonModel:\n    def initialize(self, args):\n" + body
        code += "\n    def execute(self, requests):\n        raise ValueError('no warmth')\n"
        (version / "model.py").write_text(code)
        parsed = text_format.Parse(f'name: "m" backend: "python" {TENSORS} {config}', ModelConfig())
        package = ModelPackage("m", 1, parsed, str(version.parent), str(version), str(version / "model.py"))
        return HostedModel(package, (InstanceSpec("m_0", "CPU", 0), InstanceSpec("m_1", "CPU", 0)))

    return make


def test_a_model_that_loads_has_no_reason(hosted, tmp_path: Path) -> None:
    assert try_load(hosted(f"open({str(tmp_path / 'loaded')!r}, 'a').write('once ')"), GIB).reason == ""
    assert (tmp_path / "loaded").read_text() == "once "


REASONS = {
    "raises": ("print('looking')\nraise OSError('no weights')", "", "OSError: no weights"),
    "crashes": ("import os\nos._exit(7)", "", "loading 'm' version 1 ended with exit code 7"),
    "is killed": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
        "",
        "loading 'm' version 1 ended with signal SIGSEGV",
    ),
    "fails its warm-up": (
        "pass",
        'model_warmup { name: "w" batch_size: 1 '
        'inputs { key: "X" value { data_type: TYPE_FP32 dims: 1 zero_data: true } } }',
        "failed to run warmup sample 'w': Failed to process the request(s) for model 'm_0', message: "
        "ValueError: no warmth",
    ),
}


@pytest.mark.parametrize(("initialize", "config", "reason"), REASONS.values(), ids=REASONS)
def test_a_model_that_does_not_load_has_the_replicas_reason(hosted, initialize, config, reason) -> None:
    assert try_load(hosted(initialize, config), GIB).reason == reason


def test_what_a_model_printed_is_kept(hosted) -> None:
    assert "looking" in try_load(hosted("print('looking')\nraise OSError"), GIB).output


def test_time_is_bounded(hosted) -> None:
    trial = try_load(hosted("import threading\nthreading.Event().wait()"), GIB, timeout_s=3.0)
    assert trial.reason == "loading 'm' version 1 did not return within 3 s"


def test_memory_is_bounded(hosted) -> None:
    grow = "import threading\nself.hoard = bytearray(512 << 20)\nthreading.Event().wait()"
    trial = try_load(hosted(grow), 256 << 20, timeout_s=60.0)
    assert trial.reason == "loading 'm' version 1 took more than 256 MiB of memory"
