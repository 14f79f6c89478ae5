"""`auto_complete_config` of models, run in a process of its own."""

import os

import pytest
from python_models import write_model

from deployments.backends.backend import ModelLoadError
from deployments.backends.python.auto_complete import complete

BARE = 'name: "auto" backend: "python"'
COMPLETE = """
    {before}
    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            {body}
        def execute(self, requests): ...
"""
FILL = """config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1], "optional": True})
            config.add_output({"name": "Y", "data_type": "TYPE_INT64", "dims": [2]})
            config.set_max_batch_size(16)
            config.set_dynamic_batching()
            config.set_model_transaction_policy({"decoupled": True})
            return config"""


def completed(tmp_path, code, config=BARE, **options):
    package = write_model(tmp_path, code, config, options.pop("files", None))
    return complete(package.config, package.model_path, package.version_path, package.file_path, **options)


def test_takes_what_the_model_adds(tmp_path):
    config = completed(tmp_path, COMPLETE.format(before="", body=FILL))
    assert config.name == "auto"
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (16, True)
    assert (config.input[0].name, list(config.input[0].dims), config.input[0].optional) == ("X", [-1], True)
    assert (config.output[0].name, config.output[0].data_type) == ("Y", 9)
    assert config.model_transaction_policy.decoupled


def test_agreeing_twice_changes_nothing_else(tmp_path):
    config = """name: "auto" backend: "python" max_batch_size: 4
        input { name: "X" data_type: TYPE_FP32 dims: [-1] optional: true }
        output { name: "Y" data_type: TYPE_INT64 dims: [2] }
        dynamic_batching { max_queue_delay_microseconds: 5 } parameters { key: "k" value { string_value: "v" } }"""
    body = FILL.replace("return config", "config.as_dict()['parameters']['k']['string_value'] = 'w'; return config")
    result = completed(tmp_path, COMPLETE.format(before="", body=body), config)
    assert result.dynamic_batching.max_queue_delay_microseconds == 5
    assert result.parameters["k"].string_value == "v"
    assert (len(result.input), len(result.output), result.max_batch_size) == (1, 1, 16)


def test_prints_and_helpers_do_no_harm(tmp_path, capfd):
    before = "import os, sys, helper; print('noise' * 50_000); os.write(1, b'{}\\n'); print('noise', file=sys.stderr)"
    config = completed(tmp_path, COMPLETE.format(before=before, body=FILL), files={"1/helper.py": "import json"})
    assert config.max_batch_size == 16
    assert capfd.readouterr().out == ""


def test_model_without_the_method_is_not_imported(tmp_path):
    code = "open('/no/such/file')\nclass TritonPythonModel:\n    def execute(self, requests): ..."
    assert completed(tmp_path, code).SerializeToString(deterministic=True) == b"\n\x04auto\x8a\x01\x06python"


def test_inherited_method_is_called(tmp_path):
    code = "from base import Base\nclass TritonPythonModel(Base):\n    def execute(self, requests): ..."
    base = """
    class Base:
        @staticmethod
        def auto_complete_config(config):
            config.set_max_batch_size(3)
            return config
    """
    assert completed(tmp_path, code, files={"base.py": base}).max_batch_size == 3


@pytest.mark.parametrize("known", ["", "data_type: TYPE_FP32", "dims: [-1]", "data_type: TYPE_FP32 dims: [-1]"])
def test_completes_tensors_of_which_the_configuration_says_a_part(tmp_path, known):
    config = f'{BARE} input {{ name: "X" {known} optional: true }} output {{ name: "Y" }}'
    body = FILL.replace(', "optional": True', "")
    result = completed(tmp_path, COMPLETE.format(before="", body=body), config)
    assert [(x.name, x.data_type, list(x.dims), x.optional) for x in result.input] == [("X", 11, [-1], True)]
    assert [(y.name, y.data_type, list(y.dims)) for y in result.output] == [("Y", 9, [2])]


@pytest.mark.parametrize(
    ("before", "body", "reason"),
    [
        ("", "return None", "auto_complete_config function in model 'auto' must return a valid pb.ModelConfig object."),
        ("", "raise ValueError('no shape')", "ValueError: no shape"),
        ("import no_such_module", "return config", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("", "import sys; sys.exit(4)", "SystemExit: 4"),
        ("import numpy as np", "config.as_dict()['max_batch_size'] = np.int64(4); return config",
         "TypeError: Object of type int64 is not JSON serializable"),
        ("import os", "os._exit(4)", "Stub process 'auto' is not healthy: auto_complete_config ended with exit code 4"),
        ("import os", "os.kill(os.getpid(), 11)",
         "Stub process 'auto' is not healthy: auto_complete_config ended with signal SIGSEGV"),
        ("", "config.as_dict()['input'] = [{'nam': 'X'}]; return config",
         "auto_complete_config function in model 'auto' must return a valid pb.ModelConfig object: "),
        ("", "config.set_max_batch_size(1); return config",
         "ValueError: configuration specified max_batch_size 2, but in auto-complete-config function for model 'auto' "
         "specified max_batch_size 1"),
        ("", "config.add_input({'name': 'X', 'data_type': 'TYPE_INT8', 'dims': [1]}); return config",
         "ValueError: unable to load model 'auto', configuration expects datatype TYPE_FP32 for input 'X', "
         "model provides TYPE_INT8"),
        ("", "config.add_input({'name': 'X', 'data_type': 'TYPE_FP32', 'dims': [2]}); return config",
         "ValueError: model 'auto', tensor 'X': the model expects dims [2] but the model configuration specifies "
         "dims [1]"),
        ("", "config.add_input({'name': 'X', 'data_type': 'TYPE_FP32', 'dims': [1], 'optional': True}); return config",
         "ValueError: model 'auto', tensor 'X': the model expects optional True but the model configuration specifies "
         "optional False"),
        ("", "config.add_output({'name': 'X', 'data_type': 'TYPE_FP32'}); return config",
         "ValueError: output 'X' in auto-complete-config function for model 'auto' is missing 'dims' property."),
        ("", "config.add_output({'name': 'X', 'data_type': 'TYPE_FP32', 'dims': [1], 'shape': 1}); return config",
         "ValueError: output 'X' in auto-complete-config function for model 'auto' contains property other than "
         "'name', 'data_type' and 'dims'."),
    ],
)  # fmt: skip
def test_failure_is_the_reason(tmp_path, before, body, reason):
    config = BARE + ' max_batch_size: 2 input { name: "X" data_type: TYPE_FP32 dims: [1] }'
    with pytest.raises(ModelLoadError) as raised:
        completed(tmp_path, COMPLETE.format(before=before, body=body), config)
    assert raised.value.reason.startswith(reason)
    assert str(tmp_path) not in raised.value.reason


def test_the_log_says_where_a_model_failed_and_what_it_printed_before(tmp_path, caplog):
    body = "print('reading shapes'); raise ValueError('no shape')"
    with pytest.raises(ModelLoadError):
        completed(tmp_path, COMPLETE.format(before="", body=body))
    (said,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert said.startswith("auto_complete_config of model 'auto' printed:\n")
    assert all(text in said for text in ("model.py", "in auto_complete_config", "reading shapes", body))


def test_hanging_model_and_what_it_started_are_ended(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with os.fdopen(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as alive:
        body = f"subprocess.Popen(['sleep', '600'], stdout=open({str(fifo)!r}, 'w')); time.sleep(600)"
        with pytest.raises(ModelLoadError, match=r"auto_complete_config of model 'auto' did not return within 2 s"):
            completed(tmp_path, COMPLETE.format(before="import subprocess, time", body=body), timeout_s=2.0)
        os.set_blocking(alive.fileno(), True)
        assert alive.read(1) == b""  # comes when the last process that can write is gone


def test_process_imports_no_framework(tmp_path):
    heavy = {"ray", "torch", "onnxruntime", "grpc", "tritonclient"}
    body = f"import sys; heavy = {heavy} & set(sys.modules); assert not heavy, heavy"
    completed(tmp_path, COMPLETE.format(before="", body=body + "; return config"))
