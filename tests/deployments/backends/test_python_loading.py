"""Loading, closing and logging of Python models."""

import logging
import sys
import textwrap
from dataclasses import replace

import pytest
from python_models import ECHO, floats, instances, request_of, run, write_model

from deployments.backends.backend import ModelLoadError
from deployments.backends.python.backend import PythonBackend
from protocol.errors import Internal


def test_missing_file_is_named_inside_the_repository(tmp_path):
    package = write_model(tmp_path, ECHO)
    (tmp_path / "echo" / "1" / "model.py").unlink()
    with pytest.raises(ModelLoadError) as raised:
        PythonBackend().load(package, instances(package))
    assert raised.value.reason == "Python model file not found in 'echo/1/model.py'"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("x = 1", "Python model 'echo' does not define the class 'TritonPythonModel'"),
        ("class TritonPythonModel: pass", "Python model 'echo' does not implement `execute` method."),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def (", "SyntaxError: invalid syntax (model.py, line 4)"),
        ("raise SystemExit('bye')", "SystemExit: bye"),
        (
            "class TritonPythonModel:\n"
            "    def execute(self, requests): ...\n"
            "    def initialize(self, args): raise pb_utils.TritonModelException('weights are missing')",
            "TritonModelException: weights are missing",
        ),
    ],
    ids=["class", "execute", "import", "syntax", "exit", "initialize"],
)
def test_what_the_models_code_raises_is_the_reason(load, code, reason):
    before = set(sys.modules)
    with pytest.raises(ModelLoadError) as raised:
        load(code)
    assert raised.value.reason == reason
    assert not [name for name in set(sys.modules) - before if name.startswith("eagleray_model_")]


def test_each_instance_imports_the_model_anew(tmp_path):
    package = write_model(tmp_path, "COUNT = []\n" + ECHO.replace("\n    ", "\n"))
    first, second = PythonBackend().load(package, instances(package, 2))
    assert (first.name, second.name) == ("echo_0", "echo_1")
    assert type(first._model) is not type(second._model)
    first.close()
    second.close()


def test_processes_of_a_model_load_at_the_same_time(tmp_path):
    package = write_model(
        tmp_path,
        """
        import os, time
        class TritonPythonModel:
            def initialize(self, args):
                folder = args["model_repository"]
                open(f"{folder}/{os.getpid()}.here", "w").close()
                while sum(name.endswith(".here") for name in os.listdir(folder)) < 3:
                    time.sleep(0.001)
            def execute(self, requests): ...
        """,
    )
    specs = [replace(spec, own_process=True) for spec in instances(package, 3)]
    loaded = PythonBackend().load(package, specs)
    assert [instance.name for instance in loaded] == ["echo_0", "echo_1", "echo_2"]
    for instance in loaded:
        instance.close()


def test_finalize_is_called_and_may_fail(load, caplog):
    instance = load("""
        class TritonPythonModel:
            def execute(self, requests): ...
            def finalize(self):
                raise ValueError("too late")
    """)
    instance.close()
    assert "too late" in caplog.text


@pytest.mark.parametrize(
    ("method", "ready"),
    [
        ("def is_ready(self): return True", True),
        ("def is_ready(self): return False", False),
        ("async def is_ready(self): return True", True),
        ("def is_ready(self): return 1", False),
        ("def is_ready(self): raise ValueError('no')", False),
        ("", True),
    ],
    ids=["yes", "no", "coroutine", "no bool", "raises", "absent"],
)
def test_asks_the_model_whether_it_is_ready(load, method, ready):
    instance = load(f"""
        class TritonPythonModel:
            def execute(self, requests): ...
            {method}
    """)
    assert instance.is_ready() is ready


def test_model_that_may_call_others_never_runs_inline(load):
    instance = load("""
        import helper
        class TritonPythonModel:
            def execute(self, requests):
                return helper.call()
    """, files={"1/helper.py": """
        import triton_python_backend_utils as pb_utils
        def call():
            return pb_utils.InferenceRequest(model_name="other", requested_output_names=["Y"], inputs=[]).exec()
    """})  # fmt: skip
    assert not instance.may_run_inline
    with pytest.raises(Internal, match="TritonModelException: BLS is only supported"):
        run(instance, request_of(X=floats(1)))


def test_a_model_loads_while_other_threads_import(tmp_path, monkeypatch):
    class Changing:
        """A finder whose dictionary another thread changes the first time."""

        calls = 0

        def find_spec(self, *_):
            return None

        def invalidate_caches(self):
            self.calls += 1
            if self.calls == 1:
                raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Changing()])
    package = write_model(tmp_path, ECHO)
    [instance] = PythonBackend().load(package, instances(package))
    assert run(instance, request_of(X=floats(1)))[0].outputs["Y"].tolist() == [[1.0]]
    instance.close()


@pytest.mark.parametrize("code", ["signal.signal(", "getattr(signal, 'sig' + 'nal')("], ids=["named", "hidden"])
def test_a_model_that_sets_signal_handlers_gets_a_process_of_its_own(load, caplog, code):
    caplog.set_level(logging.ERROR)
    instance = load(f"""
        import os, signal
        class TritonPythonModel:
            def initialize(self, args):
                {code}signal.SIGUSR1, self.count)
                self.counted = 0
            def count(self, *_):
                self.counted += 1
            def execute(self, requests):
                os.kill(os.getpid(), signal.SIGUSR1)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([[self.counted]], np.float32))])]
    """)
    assert run(instance, request_of(X=floats(1)))[0].outputs["Y"].tolist() == [[1.0]]
    assert not caplog.records


@pytest.mark.parametrize("file", ["1/model.py", "1/helper.py", "1/helper/__init__.py", "helper.py"])
def test_so_does_one_that_sets_them_in_execute(load, file):
    ignore = "import signal\ndef ignore(): signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
    code = """
        class TritonPythonModel:
            def execute(self, requests):
                ignore()
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones((1, 1), np.float32))])]
    """
    if file == "1/model.py":
        instance = load(ignore + textwrap.dedent(code))
    else:
        instance = load("from helper import ignore\n" + textwrap.dedent(code), files={file: ignore})
    assert run(instance, request_of(X=floats(1)))[0].outputs["Y"].tolist() == [[1.0]]


def test_model_logs_through_python_logging(load, caplog):
    caplog.set_level(logging.INFO)
    load("""
        class TritonPythonModel:
            def initialize(self, args):
                logger = pb_utils.Logger
                logger.log_info("100 % ready")
                logger.log("warned", logger.WARNING)
                logger.log_verbose("unseen")
            def execute(self, requests): ...
    """)
    assert [(r.levelname, r.getMessage(), r.filename) for r in caplog.records] == [
        ("INFO", "100 % ready", "model.py"), ("WARNING", "warned", "model.py"),
    ]  # fmt: skip


def test_the_log_of_a_model_that_cannot_be_loaded_says_which_it_is(load, caplog):
    with pytest.raises(ModelLoadError, match="ValueError: no weights"):
        load("""
            class TritonPythonModel:
                def initialize(self, args):
                    raise ValueError("no weights")
                def execute(self, requests): ...
        """)
    [record] = [each for each in caplog.records if each.exc_info or each.exc_text]
    assert (record.model, record.version) == ("echo", 1)


def test_model_that_asks_whether_it_is_cancelled_never_runs_inline(load):
    instance = load("""
        class TritonPythonModel:
            def execute(self, requests):
                while not requests[0].is_cancelled(): ...
    """)
    assert not instance.may_run_inline
